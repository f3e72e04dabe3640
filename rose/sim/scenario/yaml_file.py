"""Scenario files. PyYAML is of the extra `sim`, so only this module imports it."""

from pathlib import Path
from typing import Any, Final

import yaml

from rose.errors import InvalidArgument
from rose.sim.scenario.scenario import Scenario
from rose.sim.scenario.sweep import scenarios_from
from rose.whole_file import read_input

_FILE_BYTES_MAX: Final = 1 << 20


def read_scenarios(path: Path) -> tuple[Scenario, ...]:
    """Read a scenario file, of one scenario or of a sweep.

    Raises:
        InvalidArgument: it cannot be read, is no YAML, or a field makes no sense; the sentence
            names the file and the field.
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
    """Return what YAML says.

    Raises:
        InvalidArgument: it is none; the sentence names the line.
    """
    try:
        _check_nodes(yaml.compose(content, Loader=yaml.SafeLoader), set())
        return yaml.safe_load(content)
    except InvalidArgument:  # a ValueError too, and a sentence already
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise InvalidArgument(f"{where}this is no YAML: {error.problem}") from None
    except (yaml.YAMLError, UnicodeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"this is no YAML: {error}") from None


def _check_nodes(node: Any, seen: set[int]) -> None:
    """Refuse what YAML would read as something else than it looks.

    Of a field that is there twice it would keep the last, and an alias may stand for a whole file.
    """
    if node is None:
        return
    line = node.start_mark.line + 1
    if id(node) in seen:
        raise InvalidArgument(f"line {line}: an alias refers to this; write it out there")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for one in node.value:
            _check_nodes(one, seen)
    elif isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for name, value in node.value:
            where = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode):
                raise InvalidArgument(f"line {where}: the name of a field is no text; give one")
            if name.value in names:
                raise InvalidArgument(
                    f"line {where}: {name.value} is there twice; keep one of them"
                )
            names.add(name.value)
            _check_nodes(value, seen)
