"""`aibench-tui plan check`: what a plan would do on this machine, or the one thing that is wrong with it."""

from __future__ import annotations

import argparse
from collections import Counter

from engine import exits
from engine.hardware.inventory import discover
from engine.plan_file import check_plan, load_plan
from engine.schedule import estimate_s, expand, resolve_devices
from tui.cli.numbers import span
from tui.cli.printing import say


def main(arguments: argparse.Namespace) -> int:
    """Check it. Devices are looked for; no framework is loaded and nothing is measured."""
    plan = load_plan(arguments.file)
    check_plan(plan, str(arguments.file))
    devices = resolve_devices(plan.target.devices, discover().devices)
    frameworks = {device.device: plan.target.framework for device in devices}
    trials = expand(plan, devices, frameworks)
    say(f"{arguments.file}: {len(trials)} trials, about {span(estimate_s(plan, trials))}")
    for (scenario, environment), count in Counter((trial.scenario, trial.environment) for trial in trials).items():
        say(f"  {scenario} · {environment}: {count}")
    say("  on " + ", ".join(f"{device.name} ({device.device})" for device in devices))
    return exits.DONE
