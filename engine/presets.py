"""Plans that come with the program, as TOML files read by the loader that reads everyone's plans."""

from __future__ import annotations

from pathlib import Path

from engine.errors import AibenchError
from engine.plan import Plan
from engine.plan_file import load_plan
from engine.schema import nearest, shown

_FOLDER = Path(__file__).resolve().parent / "catalog" / "presets"


def preset_names() -> tuple[str, ...]:
    """The names of all presets, in alphabetical order."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def preset(name: str) -> Plan:
    """The preset of this name.

    Raises AibenchError (code 2) with the nearest name and the list, where there is none.
    """
    names = preset_names()
    if name not in names:
        do = f"{nearest(name, names)}there are: {', '.join(names)}"
        raise AibenchError(f"there is no preset {shown(name)}", do)
    return load_plan(_FOLDER / f"{name}.toml")
