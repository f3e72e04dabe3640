"""Values of a scenario file as frozen dataclasses, and one sentence where a value makes none.

The sentence names the path of the field, such as `jobs[0].batch`, what it is and what to give.
Fields are what the dataclasses say: nothing else is taken, nothing is converted but an integer to
a float, and a text to the enum that has it as its value.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from rose.errors import InvalidArgument

T = TypeVar("T")

# Which of the dataclasses of a union a mapping is; each has it as a class attribute.
TAG: Final = "kind"
_SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may be.

    Args:
        least: it may be this itself, unless `is_above`.
        most: it may be this itself.
        unit: for the sentence.
        is_above: it must be more than `least`.
    """

    least: float
    most: float
    unit: str = ""
    is_above: bool = False

    def holds(self, value: float) -> bool:
        """Return whether the number is in the range; NaN is in none."""
        return (value > self.least if self.is_above else value >= self.least) and value <= self.most

    def __str__(self) -> str:
        """Return the range as it ends a sentence."""
        unit = f" {self.unit}" if self.unit else ""
        how = "more than" if self.is_above else "at least"
        return f"{how} {self.least:g}{unit} and at most {self.most:g}{unit}"


def decoded(kind: type[T], value: object, *, path: str = "") -> T:
    """Return what a value of a file is as a dataclass.

    Args:
        kind: the dataclass.
        value: mappings, lists, texts and numbers, as a reader of YAML or JSON gives them.
        path: of the value, for sentences; empty for the whole file.

    Raises:
        InvalidArgument: a field is unknown, missing, or of a value that has no meaning.
    """
    return _dataclass(kind, value, path)  # type: ignore[no-any-return]


def refused(path: str, what: str) -> InvalidArgument:
    """Return the error for a field."""
    return InvalidArgument(f"{path or 'the scenario'}: {what}")


def shown(value: object) -> str:
    """Return a value as sentences quote it."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def under(path: str, name: str) -> str:
    """Return the path of a field of what is at `path`."""
    return f"{path}.{name}" if path else name


def _value(hint: Any, value: object, path: str) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        base, *notes = get_args(hint)
        return _in_range(_value(base, value, path), notes, path)
    if origin in {Union, types.UnionType}:
        return _union(get_args(hint), value, path)
    if origin is tuple:
        return _list(get_args(hint)[0], value, path)
    if origin is Mapping:
        return _mapping(get_args(hint)[1], value, path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint, value, path)
    if is_dataclass(hint):
        return _dataclass(hint, value, path)
    return _scalar(hint, value, path)


def _scalar(kind: Any, value: object, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1 << 53 else math.nan
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        raise refused(path, f"{shown(value)} is not {wanted[kind]}; give {wanted[kind]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise refused(path, "it is no finite number; give one")
    if isinstance(value, str) and not value.strip():
        raise refused(path, "the text is empty; give one")
    return value


def _in_range(value: Any, notes: list[Any], path: str) -> Any:
    for note in notes:
        if isinstance(note, Range) and not note.holds(value):
            raise refused(path, f"{value:g} is out of range; give {note}")
    return value


def _enum(kind: type[Enum], value: object, path: str) -> Enum:
    for one in kind:
        if one.value == value:
            return one
    names = [str(one.value) for one in kind]
    raise refused(path, f"{shown(value)} is unknown{_meant(value, names)}; give {_either(names)}")


def _list(hint: Any, value: object, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise refused(path, f"{shown(value)} is not a list; give one, also of a single value")
    return tuple(_value(hint, one, f"{path}[{at}]") for at, one in enumerate(value))


def _mapping(hint: Any, value: object, path: str) -> Mapping[str, Any]:
    items = _items(value, path)
    return types.MappingProxyType(
        {name: _value(hint, one, under(path, name)) for name, one in items.items()}
    )


def _union(hints: tuple[Any, ...], value: object, path: str) -> Any:
    if value is None and types.NoneType in hints:
        return None
    kinds = {getattr(one, TAG): one for one in hints if is_dataclass(one) and hasattr(one, TAG)}
    if not kinds:
        (hint,) = (one for one in hints if one is not types.NoneType)
        return _value(hint, value, path)
    items = dict(_items(value, path))
    tag, names = items.pop(TAG, None), list(kinds)
    if not isinstance(tag, str) or tag not in kinds:
        what = "is missing" if tag is None else f"{shown(tag)} is unknown{_meant(tag, names)}"
        raise refused(under(path, TAG), f"{what}; give {_either(names)}")
    return _dataclass(kinds[tag], items, path)


def _items(value: object, path: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise refused(path, f"{shown(value)} has no fields; give them as `name: value` lines")
    for name in value:
        if not isinstance(name, str):
            raise refused(path, f"the field {shown(name)} is not a text; put it in quotes")
    return value


def _dataclass(kind: Any, value: object, path: str) -> Any:
    items = _items(value, path)
    hints = get_type_hints(kind, include_extras=True)
    known = {one.name: one for one in fields(kind)}
    for name in items:
        if name not in known:
            where = under(path, name)
            raise refused(where, f"no such field{_meant(name, list(known))}; {_fields(known)}")
    for name, one in known.items():
        if name not in items and one.default is MISSING and one.default_factory is MISSING:
            raise refused(under(path, name), "is missing; add it")
    values = {name: _value(hints[name], one, under(path, name)) for name, one in items.items()}
    try:
        return kind(**values)
    except InvalidArgument as error:
        # What a class says of its own fields starts with the field's name.
        raise InvalidArgument(under(path, str(error))) from None


def _fields(known: Mapping[str, object]) -> str:
    return f"there are {', '.join(known)}" if known else "there are none"


def _either(names: list[str]) -> str:
    return f"one of {', '.join(names)}"


def _meant(value: object, names: list[str]) -> str:
    close = get_close_matches(str(value), names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
