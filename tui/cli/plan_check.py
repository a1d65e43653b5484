"""`aibench-tui plan check`: what a plan would do on this machine, or the one thing that is wrong with it."""

from __future__ import annotations

import argparse
from collections import Counter

from engine import exits
from engine.hardware.inventory import discover
from engine.plan_file import check_plan
from engine.schedule import estimate_s, expand, resolve_devices
from engine.setup import arms, own_python
from tui.cli.numbers import span
from tui.cli.printing import say
from tui.cli.run import STDIN, read_plan


def main(arguments: argparse.Namespace) -> int:
    """Check it. Devices and container runtimes are looked for; no framework is loaded and nothing is measured."""
    plan = read_plan(arguments.file)
    name = STDIN if str(arguments.file) == "-" else str(arguments.file)
    check_plan(plan, name)
    devices = resolve_devices(plan.target.devices, discover().devices)
    arms(devices, plan.environments, own_python().path)
    frameworks = {device.device: plan.target.framework for device in devices}
    trials = expand(plan, devices, frameworks)
    many = f"{len(trials)} trials" if len(trials) != 1 else "1 trial"
    say(f"{name}: {many}, about {span(estimate_s(plan, trials))}")
    for (scenario, environment), count in Counter((trial.scenario, trial.environment) for trial in trials).items():
        say(f"  {scenario} · {environment}: {count}")
    say("  on " + ", ".join(f"{device.name} ({device.device})" for device in devices))
    return exits.DONE
