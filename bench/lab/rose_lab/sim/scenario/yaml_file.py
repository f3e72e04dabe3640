"""Scenario files, with one scenario, or with a scenario for each value of a swept field.

Only this module imports PyYAML, of the extra `sim`.
"""

import copy
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from rose.errors import InvalidArgument
from rose.whole_file import read_input
from rose_lab.sim.scenario.scenario import Scenario, scenario_from

_FILE_BYTES_MAX: Final = 1 << 20
SWEEP: Final = "sweep"
_VALUES_MAX: Final = 1000
_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\[\d{1,4}\])?(?:\.[A-Za-z_]\w*(?:\[\d{1,4}\])?)*")
_STEP: Final = re.compile(r"[A-Za-z_]\w*|\d+")


def read_scenarios(path: Path) -> tuple[Scenario, ...]:
    """Read a scenario file, with one scenario or a sweep.

    Raises:
        InvalidArgument: the file cannot be read, is not YAML, or a field is invalid; the message
            names file and field.
    """
    try:
        content = read_input(path, bytes_max=_FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from None
    try:
        return scenarios_from(parsed(content))
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None


def parsed(content: bytes | str) -> object:
    """Parse YAML.

    Raises:
        InvalidArgument: the content is not YAML; the message names the line.
    """
    try:
        _check_nodes(yaml.compose(content, Loader=yaml.SafeLoader), set())
        return yaml.safe_load(content)
    except InvalidArgument:  # It is a ValueError too, but its message is final.
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise InvalidArgument(f"{where}this is not YAML: {error.problem}") from None
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"this is not YAML: {error}") from None


def _check_nodes(node: Any, seen: set[int]) -> None:
    """Refuse YAML whose parsed content differs from what a reader of the file expects.

    YAML keeps only the last of duplicate fields, and an alias may stand for a large part of a file.
    """
    if node is None:
        return
    line = node.start_mark.line + 1
    if id(node) in seen:
        raise InvalidArgument(
            f"line {line}: aliases of YAML are not supported; repeat the value instead"
        )
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for one in node.value:
            _check_nodes(one, seen)
    elif isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for name, value in node.value:
            where = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode):
                raise InvalidArgument(f"line {where}: the name of a field must be a text")
            if name.value in names:
                raise InvalidArgument(f"line {where}: duplicate key {name.value}; keep one of them")
            names.add(name.value)
            _check_nodes(value, seen)


def scenarios_from(content: object) -> tuple[Scenario, ...]:
    """Return the scenarios of a file: one, or one for each value of `sweep`.

    `sweep: {field: "borrowed[0].count", values: [4, 8]}` makes two scenarios, with the
    value in their names.

    Raises:
        InvalidArgument: as `scenario_from`; or the swept field is not in the file.
    """
    if not isinstance(content, Mapping) or SWEEP not in content:
        return (scenario_from(content),)
    plain = {name: value for name, value in content.items() if name != SWEEP}
    field, values = _swept(content[SWEEP])
    return tuple(scenario_from(_with(plain, field, value)) for value in values)


def _swept(sweep: object) -> tuple[str, list[Any]]:
    if not isinstance(sweep, Mapping) or set(sweep) != {"field", "values"}:
        raise InvalidArgument(
            f"{SWEEP}: give the two fields `field` and `values`, and nothing else"
        )
    field, values = sweep["field"], sweep["values"]
    if not (isinstance(field, str) and _PATH.fullmatch(field)):
        raise InvalidArgument(
            f"{SWEEP}.field: {field!r} is not a path; give a path such as jobs[0].batch"
        )
    if not (isinstance(values, list) and 0 < len(values) <= _VALUES_MAX):
        raise InvalidArgument(f"{SWEEP}.values: give a list of 1 to {_VALUES_MAX} values")
    return field, values


def _with(content: dict[str, Any], field: str, value: object) -> dict[str, Any]:
    """Return a copy with one field changed; the field must exist, so that typos are detected."""
    changed = copy.deepcopy(content)
    *steps, last = [int(step) if step.isdigit() else step for step in _STEP.findall(field)]
    at: Any = changed
    for step in steps:
        at = at[step] if _has(at, step) else None
    if not _has(at, last):
        raise InvalidArgument(
            f"{SWEEP}.field: {field} is not in the file; add it with any value",
        )
    at[last] = value
    changed["name"] = f"{content.get('name')}, {field} {_flow(value)}"
    return changed


def _flow(value: object) -> str:
    """Return a value on one line, as in a file."""
    if not isinstance(value, list | dict):
        return str(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.strip()


def _has(at: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(at, list) and step < len(at)
    return isinstance(at, dict) and step in at
