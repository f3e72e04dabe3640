"""Values of others as what they stand for: a numpy integer is a count, 1.5 and "1" are none.

What callers and workers say is written down and given to a core that takes nothing but numbers, so
each is looked at once, where it comes in, and whoever said it hears of it alone. The type of a
field says what it may hold: `Count`, `Real` and the others here, or a class.
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

# What csrc/scheduler takes for a count; beyond it a number is a mistake or an attack.
COUNT_MAX: Final = 1 << 40
# What a foreign object may raise when it is taken for a number; torch has RuntimeError.
_NO_NUMBER: Final = (TypeError, ValueError, OverflowError, RuntimeError)
_TEXT_MAX: Final = 1000

T = TypeVar("T")
# Returns the value of a name as what it stands for, or raises InvalidArgument.
Check: TypeAlias = Callable[[str, Any], Any]


def whole(low: int, high: int) -> Check:
    """Return the check of a whole number, which becomes an `int`."""

    def check(name: str, value: Any) -> int:
        (number,) = _wholes(name, (value,))
        if not low <= number <= high:
            raise InvalidArgument(f"{name} must be from {low} to {high}, not {number}")
        return number

    return check


def real(low: float, high: float) -> Check:
    """Return the check of a number, which becomes a `float`; a text that spells one is none."""

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
    """Return numbers from 0 to `COUNT_MAX`, such as ids of tokens."""
    found = _wholes(name, values)
    if found and not (min(found) >= 0 and max(found) <= COUNT_MAX):
        raise InvalidArgument(f"{name} must be from 0 to {COUNT_MAX}, each of them")
    return found


def reals(name: str, values: Iterable[Any]) -> tuple[float, ...]:
    """Return numbers as `real` does one, within no bounds."""
    try:
        return tuple(array("d", tuple(values)))
    except _NO_NUMBER as error:
        raise InvalidArgument(f"{name} must be numbers, not {_shown(values)}") from error


def printable(_name: str, text: object) -> str:
    """Return what was said, fit for a journal and a page, whatever it was."""
    said = text if isinstance(text, str) else f"a {type(text).__name__} that is no text"
    return said[:_TEXT_MAX].encode(errors="replace").decode()


def one_of(name: str, value: Any, kind: type[T]) -> T:
    """Return a value that is of a kind.

    Raises:
        InvalidArgument: it is of another.
    """
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name} must be of {kind.__name__}, not {_shown(value)}")
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
    """Return a dataclass whose fields hold what their types say.

    Raises:
        InvalidArgument: one holds something else.
    """
    kind = type(value)
    return kind(*(check(name, getattr(value, name)) for name, check in _checks(kind)))


class Checked:
    """A frozen dataclass that can only be made of what the types of its fields say."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Make each field what it stands for; InvalidArgument if it cannot be."""
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
        (inner,) = (_check_of(one) for one in get_args(hint) if one is not NoneType)
        return lambda name, value: None if value is None else inner(name, value)
    return lambda name, value: one_of(name, value, hint)


def _shown(value: object) -> str:
    """Return what a value is, and never more of it than one line."""
    if isinstance(value, tuple) and len(value) == 1:
        (value,) = value
    if value is None or isinstance(value, int | float | str):
        return repr(value)[:80]
    return f"a {type(value).__name__}"
