"""`aibench-tui completion SHELL`: the shell's code, and the live values that it asks for."""

from __future__ import annotations

import argparse

from engine import exits


def main(arguments: argparse.Namespace) -> int:
    """Print the code; `eval` it in the shell's start file."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["aibench-tui"], shell=arguments.shell))
    return exits.DONE


def values(kind: str) -> list[str]:
    """What can stand for a scenario, a preset or a session right now."""
    if kind == "scenarios":
        from engine.registry import scenarios

        return sorted({part for name in scenarios() for part in (name, name.rpartition("/")[2])})
    if kind == "presets":
        from engine.presets import preset_names

        return list(preset_names())
    from engine import sessions

    return ["latest", *(folder.name for folder in sessions.folders(sessions.default_folder()))]
