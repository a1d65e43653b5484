"""A stand-in for NVML: a compiled library that answers from a recording of a real device, with faults on demand."""

from __future__ import annotations

import ast
import csv
import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

Value = int | str

SOURCE = Path(__file__).with_name("stub.c")
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "nvml"
IDLE = FIXTURES / "h200-idle.json"
LOAD = FIXTURES / "h200-bf16-gemm.csv"

# What the recording of readers lacks, as nvidia-smi -q said of the same idle device.
_FROM_NVIDIA_SMI: dict[str, Value] = {
    "ClockInfo(1,)": 345,
    "SupportedClocksEventReasons": 511,
    "PcieThroughput(1,)": 603,
    "TotalEccErrors(0,0)": 0,
    "TotalEccErrors(1,0)": 0,
}

_NOT_SUPPORTED = 3


def uuid(index: int) -> str:
    """The UUID of the stub's device `index`; the recording's own is blanked."""
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def recorded_device(path: Path = IDLE) -> dict[str, Value]:
    """A recording as the stub's keys for one device; errors become return codes."""
    state = dict(_FROM_NVIDIA_SMI)
    for key, entry in json.loads(path.read_text()).items():
        state |= _entry(key, entry)
    return state


def recorded_load(path: Path = LOAD) -> Iterator[dict[str, float]]:
    """The rows of a recorded load, as numbers by column."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield {key: float(value) for key, value in row.items()}


def _entry(key: str, entry: Any) -> dict[str, Value]:
    if key.startswith("NVML_FI_"):
        field = f"field.{getattr(pynvml, key)}"
        return {f"{field}.ret": entry["ret"], f"{field}.type": entry["type"], f"{field}.ull": entry["ull"]}
    if isinstance(entry, dict) and "v" not in entry:
        return {}  # an error: a key without a value is "Not Supported", which all errors of the recording are
    return _value(key, ast.literal_eval(entry["v"] if isinstance(entry, dict) else entry))


def _value(key: str, value: Any) -> dict[str, Value]:
    if isinstance(value, dict):
        return {f"{key}.{name}": part for name, part in value.items()}
    if isinstance(value, list | tuple):
        return {f"{key}[{place}]": part for place, part in enumerate(value)} or {key: 0}
    return {key: value.decode() if isinstance(value, bytes) else value}


class Stub:
    """The library in a folder of its own with the state it answers from; changes take effect at the next call."""

    def __init__(self, folder: Path, devices: int = 1) -> None:
        self._state_file = folder / "state"
        self._library = folder / "library"
        self._library.mkdir()
        (self._library / "libnvidia-ml.so.1").write_bytes(compiled())
        self._state: dict[str, Value] = {
            "count": devices,
            "driver": "580.159.04",
            "nvml": "13.580.159.04",
            "cuda": 13000,
        }
        for index in range(devices):
            self._state |= {f"{index}.{key}": value for key, value in recorded_device().items()}
            self._state[f"{index}.UUID"] = uuid(index)
        self.set({})

    def set(self, changes: Mapping[str, Value | None]) -> None:
        """Changes keys of the state; None takes one away."""
        for key, value in changes.items():
            if value is None:
                self._state.pop(key, None)
            else:
                self._state[key] = value
        fresh = self._state_file.with_suffix(".new")
        text = "".join(f"{key} {value}\n" for key, value in self._state.items())
        fresh.write_text(text, encoding="utf-8", errors="surrogateescape")
        fresh.replace(self._state_file)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that is to load the stub."""
        return os.environ | {"LD_LIBRARY_PATH": str(self._library), "NVML_STUB_STATE": str(self._state_file)}


@functools.cache
def compiled() -> bytes:
    """The compiled stub; skips the test where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (gcc) to build the NVML stub with")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "stub.so")
        options = ["-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread"]
        subprocess.run(
            [compiler, *options, "-o", str(library), str(SOURCE)], check=True, capture_output=True, timeout=60
        )
        return library.read_bytes()
