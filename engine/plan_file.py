"""Plans read, checked and written: TOML that a person can edit, and one line for whatever is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import tomli_w

from engine.errors import AibenchError
from engine.files import MAX_PLAN_BYTES
from engine.plan import SCHEMA, Environment, Plan, ScenarioChoice
from engine.registry import Find, find, plan_variants
from engine.schema import convert_table, join, refusal, short_name, shown
from engine.text import clean
from engine.toml import parse_toml, read_toml
from engine.worker.card import Parameter

_INT_MAX = 2**63 - 1

_CPUS_LEAST = 0.01
"""The least share of a CPU: the kernel's quota is at least 1 ms, and runtimes set it per 100 ms."""

MAX_TRIALS = 2400
"""What always fits, with the longest names and five metrics a trial: into one journal line (1.5 KiB a trial) and into
the 16 MiB of a session file without telemetry (6.6 KB a trial). A week of trials of five minutes is 2016."""

_HEAD = """\
# A plan of aibench-tui: everything that a run will do. Check it with 'aibench-tui plan check FILE', run it with
# 'aibench-tui run --plan FILE'. A line that starts with "# " and a key shows a value that is not set.
"""


def load_plan(path: Path) -> Plan:
    """The plan in a file of at most 1 MiB.

    Keys, types, ranges and forms are checked; what takes the scenarios to know is left to `check_plan`, since
    the command line may still change the plan. Raises AibenchError (code 2).
    """
    with _short_errors():
        data = read_toml(path, limit_bytes=MAX_PLAN_BYTES, what=short_name(str(path)))
    return to_plan(data, what=str(path))


def parse_plan(text: str, what: str) -> Plan:
    """The plan in a text of at most 1 MiB; `what` names it in errors. Raises AibenchError (code 2)."""
    if len(text) > MAX_PLAN_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_PLAN_BYTES:
        raise refusal(what, "", "a plan has at most 1 MiB")
    with _short_errors():
        data = parse_toml(text, what=short_name(what))
    return to_plan(data, what=what)


@contextmanager
def _short_errors() -> Iterator[None]:
    """Keep the parser's errors, which quote the document, as short as those of `refusal`."""
    try:
        yield
    except AibenchError as error:
        raise AibenchError(clean(error.what, 300), clean(error.do, 98), code=error.code) from None


def dump_plan(plan: Plan) -> str:
    """The plan as TOML with every key that says something; `parse_plan` gives an equal plan back."""
    data = msgspec.to_builtins(plan)
    environments, scenarios = data.pop("environment"), data.pop("scenario")
    blocks = [tomli_w.dumps(data)]
    blocks += [f"[[environment]]\n{tomli_w.dumps(_said(environment))}" for environment in environments]
    for scenario in scenarios:
        parameters = scenario.pop("parameters")
        inner = tomli_w.dumps({"scenario": {"parameters": parameters}}) if parameters else ""
        blocks.append(f"[[scenario]]\n{tomli_w.dumps(scenario)}{inner}")
    return "\n".join(blocks)


def _said(environment: dict[str, Any]) -> dict[str, Any]:
    """An environment without the keys that mean "not limited"."""
    return {key: value for key, value in environment.items() if value not in ("", 0.0)}


def to_plan(data: dict[str, Any], *, what: str) -> Plan:
    """A plan from plain data, as TOML gives them. Raises AibenchError (code 2)."""
    version = data.get("schema", SCHEMA)
    if type(version) is int and version > SCHEMA:
        problem = f"{shown(version)} is newer than this program knows ({SCHEMA})"
        raise refusal(what, "schema", problem, "use a newer aibench-tui, or make a plan with 'aibench-tui plan init'")
    refuse_unsafe(data, what)
    return convert_table(data, Plan, what=what)


def refuse_unsafe(value: Any, what: str, path: str = "") -> None:
    """Refuse strings that could do something to a terminal, and numbers that no other program could read."""
    if isinstance(value, str) and clean(value) != value:
        raise refusal(what, path, f"{shown(value)} holds control or invisible characters, or over 4096", "remove them")
    if isinstance(value, int) and abs(value) > _INT_MAX:
        raise refusal(what, path, f"{shown(value)} is not allowed", f"allowed: whole numbers to {_INT_MAX}")
    if isinstance(value, float) and not math.isfinite(value):
        raise refusal(what, path, f"{value} is not allowed", "allowed: finite numbers")
    if isinstance(value, dict):
        for key, item in value.items():
            refuse_unsafe(key, what, join(path, key))
            refuse_unsafe(item, what, join(path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            refuse_unsafe(item, what, f"{path}[{index}]")


def check_plan(plan: Plan, what: str = "plan", *, find: Find = find) -> None:
    """Refuse a plan that cannot be run as it stands; `what` names it in errors.

    Everything the loader checks is checked again, for plans changed by flags or made by the screen. Raises
    AibenchError (code 2).
    """
    to_plan(msgspec.to_builtins(plan), what=what)
    if plan.repetition.trial_timeout_s <= plan.repetition.seconds:
        problem = f"{plan.repetition.trial_timeout_s:g} s is no longer than repetition.seconds"
        raise refusal(what, "repetition.trial_timeout_s", problem, "every trial would time out; raise it")
    for index, environment in enumerate(plan.environments):
        check_environment(environment, what, f"environment[{index}]")
    _check_labels(plan, what)
    _check_scenarios(plan, what, find)


def check_environment(environment: Environment, what: str, path: str = "") -> None:
    """Refuse an environment that contradicts itself. Raises AibenchError (code 2)."""
    prefix = f"{path}." if path else ""
    if environment.name != environment.name.strip() or not (environment.name or "-").isprintable():
        raise refusal(what, f"{prefix}name", f"{shown(environment.name)} is not allowed", "allowed: printable text")
    if environment.kind == "bare":
        _check_bare(environment, what, path)
    if 0 < environment.cpus < _CPUS_LEAST:
        do = f"allowed: {_CPUS_LEAST} and more, or 0 for no limit"
        raise refusal(what, f"{prefix}cpus", f"{environment.cpus:g} is not allowed", do)
    for part in environment.cpuset.split(","):
        low, _, high = part.partition("-")
        if high and int(high) < int(low):
            raise refusal(what, f"{prefix}cpuset", f"{shown(part)} runs backwards", f"such as {high}-{low}")


def _check_bare(environment: Environment, what: str, path: str) -> None:
    """A bare trial is an ordinary process: nothing limits it and no image holds it."""
    default = Environment()
    given = [
        key for key in environment.__struct_fields__
        if key not in ("kind", "name") and getattr(environment, key) != getattr(default, key)
    ]  # fmt: skip
    if given:
        do = "use kind podman, docker or nerdctl, or leave it out"
        raise refusal(what, path, f"a bare environment takes no {', '.join(given)}", do)


def _check_labels(plan: Plan, what: str) -> None:
    labels: set[str] = set()
    for index, environment in enumerate(plan.environments):
        if environment.label in labels:
            problem = f"{shown(environment.label)} names an earlier environment too"
            raise refusal(what, f"environment[{index}].name", problem, "give each a name of its own")
        labels.add(environment.label)


def _check_scenarios(plan: Plan, what: str, find: Find) -> None:
    """Every scenario takes its parameters on at least one kind of device that the plan may find."""
    if not plan.scenarios:
        raise refusal(what, "", "no scenario is chosen", "add a [[scenario]] with an id, or use --scenario")
    errors: list[AibenchError] = []
    counts: list[int] = []
    for kind in ("cpu",) if plan.target.devices == ("cpu",) else ("cuda", "cpu"):
        try:
            counts.append(len(plan_variants(plan.scenarios, kind, what=what, find=find)))
        except AibenchError as error:
            errors.append(error)
    if not counts:
        raise errors[0]
    check_trial_count(max(counts) * len(plan.environments) * plan.repetition.repeat, what)


def check_trial_count(count: int, what: str) -> None:
    """Refuse more trials than a run can hold. Raises AibenchError (code 2)."""
    if count > MAX_TRIALS:
        raise refusal(what, "", f"{count} trials planned", f"at most {MAX_TRIALS}; lower repeat, or split the plan")


def plan_template(plan: Plan, *, find: Find = find) -> str:
    """The plan as commented TOML; `parse_plan` gives an equal plan back.

    Raises AibenchError (code 2) for a scenario that is not known.
    """
    blocks = [_HEAD + "\n".join(_struct_lines(plan))]
    blocks.append(_table("[target]", plan.target))
    blocks += [_environment(environment) for environment in plan.environments]
    kind = "cpu" if plan.target.devices == ("cpu",) else "cuda"
    blocks += [_scenario(choice, kind, find) for choice in plan.scenarios]
    blocks.append(_table("[repetition]", plan.repetition))
    blocks.append(_table("[output]", plan.output))
    return "\n\n".join(blocks) + "\n"


def _table(head: str, part: msgspec.Struct) -> str:
    return "\n".join([head, *_struct_lines(part)])


def _struct_lines(part: msgspec.Struct) -> Iterator[str]:
    """A line for each key of a struct that has a meaning of its own; tables within it have blocks of their own."""
    for field in msgspec.structs.fields(part):
        if meaning := _meaning(field.type):
            yield _line(field.encode_name, getattr(part, field.name), meaning)


def _environment(environment: Environment) -> str:
    """An arm: limits that are not set stand as comments, for a bare environment takes none."""
    lines = ["[[environment]]"]
    for field in msgspec.structs.fields(environment):
        value = getattr(environment, field.name)
        unset = field.name != "kind" and value == field.default
        lines.append(_line(field.encode_name, value, _meaning(field.type), unset=unset))
    return "\n".join(lines)


def _scenario(choice: ScenarioChoice, device_kind: str, find: Find) -> str:
    """A scenario: its parameters, those at their defaults for a device kind as comments."""
    lines = [_table("[[scenario]]", choice)]
    for parameter in find(choice.id).CARD.parameters:
        lines += ["[scenario.parameters]"] if len(lines) == 1 else []
        value = choice.parameters.get(parameter.name, parameter.default(device_kind))
        lines.append(_line(parameter.name, value, _takes(parameter), unset=parameter.name not in choice.parameters))
    return "\n".join(lines)


def _takes(parameter: Parameter) -> str:
    allowed = ", ".join(str(value) for value in parameter.allowed) or parameter.form
    return f"{parameter.meaning}: {allowed}" if allowed else parameter.meaning


def _meaning(kind: Any) -> str:
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note.description for note in notes if note.description), "")


def _line(key: str, value: Any, meaning: str, *, unset: bool = False) -> str:
    """`key = value  # meaning` on one line, arrays too; as a comment where the key is not set."""
    text = f"{tomli_w.dumps({key: ''}).split(' = ')[0]} = {_value(value)}"
    return f"{'# ' if unset else ''}{text}  # {' '.join(meaning.split())}"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")
