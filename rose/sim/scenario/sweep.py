"""A file of several scenarios: one for each value of a field that is swept."""

import copy
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from rose.sim.scenario.fields import refused, shown
from rose.sim.scenario.scenario import Scenario, scenario_from

SWEEP: Final = "sweep"
_VALUES_MAX: Final = 1000
_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\[\d{1,4}\])?(?:\.[A-Za-z_]\w*(?:\[\d{1,4}\])?)*")
_STEP: Final = re.compile(r"[A-Za-z_]\w*|\d+")


def scenarios_from(content: object) -> tuple[Scenario, ...]:
    """Return the scenarios of a file: one, or as many as `sweep` has values.

    `sweep: {field: "borrowed[0].count", values: [4, 8]}` makes two, whose names end in the value.

    Raises:
        InvalidArgument: as `scenario_from`; or the field that is swept is not in the file.
    """
    if not isinstance(content, Mapping) or SWEEP not in content:
        return (scenario_from(content),)
    plain = {name: value for name, value in content.items() if name != SWEEP}
    field, values = _swept(content[SWEEP])
    return tuple(scenario_from(_with(plain, field, value)) for value in values)


def _swept(sweep: object) -> tuple[str, list[Any]]:
    if not isinstance(sweep, Mapping) or set(sweep) != {"field", "values"}:
        raise refused(SWEEP, "give the two fields `field` and `values`, and nothing else")
    field, values = sweep["field"], sweep["values"]
    if not (isinstance(field, str) and _PATH.fullmatch(field)):
        raise refused(
            f"{SWEEP}.field", f"{shown(field)} is no path; give one, such as jobs[0].batch"
        )
    if not (isinstance(values, list) and 0 < len(values) <= _VALUES_MAX):
        raise refused(f"{SWEEP}.values", f"give a list of 1 to {_VALUES_MAX} values")
    return field, values


def _with(content: dict[str, Any], field: str, value: object) -> dict[str, Any]:
    """Return a copy with one field changed; it must be there, so that a typing error is noticed."""
    changed = copy.deepcopy(content)
    *steps, last = [int(step) if step.isdigit() else step for step in _STEP.findall(field)]
    at: Any = changed
    for step in steps:
        at = at[step] if _has(at, step) else None
    if not _has(at, last):
        raise refused(
            f"{SWEEP}.field",
            f"the file has no {field}; write it down to have it changed",
        )
    at[last] = value
    changed["name"] = f"{content.get('name')}, {field} {_flow(value)}"
    return changed


def _flow(value: object) -> str:
    """Return a value in a line of a name, as a file would say it."""
    if not isinstance(value, list | dict):
        return str(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.strip()


def _has(at: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(at, list) and step < len(at)
    return isinstance(at, dict) and step in at
