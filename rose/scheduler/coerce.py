"""Checks and converts values of callers and workers: a numpy integer is a count, 1.5 is not.

Input of callers and workers is journaled and passed to a core that takes numbers only. So each
value is checked once, on entry, and only its sender gets the error. The type of a field determines
how it is checked. A field has one of the types of this file, such as `Count`, or any class.
"""

import math
import operator
from array import array
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeAlias, TypeVar, Union, get_args, get_type_hints

from rose.errors import InvalidArgument

# Largest count that csrc/scheduler accepts; a larger number is a mistake or an attack.
COUNT_MAX: Final = 1 << 40
# Exceptions that foreign objects raise when converted to a number; torch raises RuntimeError.
_NO_NUMBER: Final = (TypeError, ValueError, OverflowError, RuntimeError)
_TEXT_MAX: Final = 1000

T = TypeVar("T")
# Takes the name and the value of a field; returns the converted value, or raises InvalidArgument.
Check: TypeAlias = Callable[[str, Any], Any]


def whole(low: int, high: int) -> Check:
    """Return a check that converts a whole number to `int`."""

    def check(name: str, value: Any) -> int:
        (number,) = _wholes(name, (value,))
        if not low <= number <= high:
            raise InvalidArgument(f"{name} must be from {low} to {high}, not {number}")
        return number

    return check


def real(low: float, high: float) -> Check:
    """Return a check that converts a number to `float` and refuses strings."""

    def check(name: str, value: Any) -> float:
        (number,) = reals(name, (value,))
        if not low <= number <= high:
            raise InvalidArgument(f"{name} must be from {low} to {high}, not {number}")
        return number

    return check


def _wholes(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, values))
    except _NO_NUMBER as error:
        raise InvalidArgument(f"{name} must be whole, not {_shown(values)}") from error


def counts(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Return whole numbers from 0 to `COUNT_MAX`, such as token ids."""
    found = _wholes(name, values)
    if found and not (min(found) >= 0 and max(found) <= COUNT_MAX):
        wrong = min(found) if min(found) < 0 else max(found)
        raise InvalidArgument(f"{name} must each be from 0 to {COUNT_MAX}, got {wrong}")
    return found


def reals(name: str, values: Iterable[Any]) -> tuple[float, ...]:
    """Convert numbers as `real` does, without bounds."""
    try:
        return tuple(array("d", tuple(values)))
    except _NO_NUMBER as error:
        raise InvalidArgument(f"{name} must be numbers, not {_shown(values)}") from error


def printable(_name: str, text: object) -> str:
    """Return, for any object, a string that is safe for journals and web pages."""
    plain = text if isinstance(text, str) else f"a {type(text).__name__} that is not a text"
    return plain[:_TEXT_MAX].encode(errors="replace").decode()


def one_of(name: str, value: Any, kind: type[T]) -> T:
    """Return `value`, an instance of `kind`.

    Raises:
        InvalidArgument: `value` has another type.
    """
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name} must be a {kind.__name__}, not {_shown(value)}")
    return value


Count: TypeAlias = Annotated[int, whole(0, COUNT_MAX)]
Some: TypeAlias = Annotated[int, whole(1, COUNT_MAX)]
Counts: TypeAlias = Annotated[tuple[int, ...], counts]
Real: TypeAlias = Annotated[float, real(-math.inf, math.inf)]
Reals: TypeAlias = Annotated[tuple[float, ...], reals]
Cost: TypeAlias = Annotated[float, real(0.0, COUNT_MAX)]
Truth: TypeAlias = Annotated[bool, lambda name, value: reals(name, (value,))[0] != 0]
Text: TypeAlias = Annotated[str, printable]


def checked(value: T) -> T:
    """Return a copy of a dataclass with its fields checked and converted.

    Raises:
        InvalidArgument: a field fails the check of its type.
    """
    kind = type(value)
    return kind(*(check(name, getattr(value, name)) for name, check in _checks(kind)))


class Checked:
    """A frozen dataclass that checks and converts its fields by their types."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check and convert each field; raise InvalidArgument if a field fails."""
        for name, check in _checks(type(self)):
            object.__setattr__(self, name, check(name, getattr(self, name)))


def _checks_of(kind: Any) -> tuple[tuple[str, Check], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((one.name, _check_of(hints[one.name])) for one in fields(kind))


_checks: Final[Callable[[Any], tuple[tuple[str, Check], ...]]] = cache(_checks_of)


def _check_of(hint: Any) -> Check:
    if hasattr(hint, "__metadata__"):
        check: Check = hint.__metadata__[0]
        return check
    if type(hint) in {UnionType, type(Union[int, None])}:  # noqa: UP007 (of an Annotated)
        inner, *others = (_check_of(one) for one in get_args(hint) if one is not NoneType)
        if others:
            return lambda _, value: value
        return lambda name, value: None if value is None else inner(name, value)
    if not isinstance(hint, type) or get_args(hint):
        return lambda _, value: value
    return lambda name, value: one_of(name, value, hint)


def _shown(value: object) -> str:
    """Return a short description of a value, at most one line."""
    if isinstance(value, tuple) and len(value) == 1:
        (value,) = value
    if value is None or isinstance(value, int | float | str):
        return repr(value)[:80]
    return f"a {type(value).__name__}"
