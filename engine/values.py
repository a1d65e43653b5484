"""Values that are not there. Absent, unsupported, zero and negative are four different things everywhere."""

from __future__ import annotations

import msgspec


class Missing(msgspec.Struct, frozen=True, tag_field="is", tag="missing"):
    """A value that could not be had, with the reason and the source that refused it.

    In JSON it is `{"is": "missing", "missing": reason, "source": source}` (`is` may be left out where no other kind of
    object can stand); in TOML its key is left out and `<key>_reason` stands
    beside it. It is never a zero and never a guess.
    """

    missing: str
    source: str = ""


Scalar = bool | int | float | str
"""What one field of a fingerprint or one parameter may hold; numbers are finite."""

Reading = float | Missing
"""One number, or the reason why there is none."""
