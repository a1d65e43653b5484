"""The lines a telemetry process prints: what it can read (once, and at each change), then what it read."""

from __future__ import annotations

import msgspec

HOST = "host"
"""The `device` of samples that belong to the whole node."""


class Sources(msgspec.Struct, frozen=True, tag_field="line", tag="sources"):
    """What one provider gives for one device: the reader behind each quantity, and a reason for each one missing."""

    t: float
    device: str
    provider: str
    sources: dict[str, str]
    missing: dict[str, str]


class Sample(msgspec.Struct, frozen=True, tag_field="line", tag="sample"):
    """Readings of one device at monotonic second `t`. A quantity that was not read this time is not in `values`.

    Names carry their unit: power_w, energy_j, temperature_c, memory_temperature_c, sm_clock_mhz, memory_clock_mhz,
    utilisation_percent, memory_used_bytes, power_limit_w, pcie_rx_bytes_per_s ... A clock event bit is a 0/1
    quantity `limit_<reason>`, so that its mean over a window is the share of the window it was set.
    """

    t: float
    device: str
    provider: str
    values: dict[str, float]


class Stalled(msgspec.Struct, frozen=True, tag_field="line", tag="stalled"):
    """A provider has not answered for `seconds`; its readings are missing until it does (then seconds = 0).

    `doing` names the call that does not return, where the provider knows.
    """

    t: float
    device: str
    provider: str
    seconds: float
    doing: str = ""


Line = Sources | Sample | Stalled
