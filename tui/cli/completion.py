"""`aibench-tui completion SHELL`: the shell's code, and the live values that it asks for."""

from __future__ import annotations

import argparse

from engine import exits
from engine.text import clean


def main(arguments: argparse.Namespace) -> int:
    """Print the code; `eval` it in the shell's start file. It is for the shell alone, so it is printed as it is."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["aibench-tui"], shell=arguments.shell))
    return exits.DONE


def values(kind: str) -> list[str]:
    """What can stand for a scenario, a preset, an arm or a session right now."""
    if kind == "scenarios":
        from engine.registry import scenarios

        return sorted({part for name in scenarios() for part in (name, name.rpartition("/")[2])})
    if kind == "environments":
        return ["bare", "podman", "podman,cpus=", "docker,image=", "nerdctl,image="]
    if kind == "presets":
        from engine.presets import preset_names

        return list(preset_names())
    from engine import sessions

    names = [folder.name for folder in sessions.folders(sessions.default_folder())]
    return ["latest", *(name for name in names if clean(name) == name)]  # the shell prints them as they are
