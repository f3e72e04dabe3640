"""Values of others as what they stand for: a numpy integer is a count, 1.5 and "1" are none.

What callers and workers say is written down and given to a core that takes nothing but numbers, so
each is looked at where it comes in, and whoever said it hears of it alone.
"""

import operator
from array import array
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from rose.errors import InvalidArgument

# What csrc/scheduler takes for a count; beyond it a number is a mistake or an attack.
COUNT_MAX: Final = 1 << 40
# What a foreign object may raise when it is taken for a number; torch has RuntimeError.
_NO_NUMBER: Final = (TypeError, ValueError, OverflowError, RuntimeError)

T = TypeVar("T")


def whole(name: str, value: Any) -> int:
    """Return a whole number as an `int`.

    Raises:
        InvalidArgument: it is none.
    """
    try:
        return operator.index(value)
    except _NO_NUMBER as error:
        raise InvalidArgument(f"{name} must be a whole number, not {_shown(value)}") from error


def wholes(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Return several as `whole` does one."""
    try:
        return tuple(map(operator.index, values))
    except _NO_NUMBER as error:
        raise InvalidArgument(f"{name} must be whole numbers, not {_shown(values)}") from error


def real(name: str, value: Any) -> float:
    """Return a number as a `float`.

    Raises:
        InvalidArgument: it is none; a text that spells one is none.
    """
    return reals(name, (value,))[0]


def reals(name: str, values: Iterable[Any]) -> tuple[float, ...]:
    """Return several as `real` does one."""
    try:
        return tuple(array("d", tuple(values)))
    except _NO_NUMBER as error:
        raise InvalidArgument(f"{name} must be numbers, not {_shown(values)}") from error


def count(name: str, value: Any) -> int:
    """Return a whole number from 0 to `COUNT_MAX`; as `whole`."""
    number = whole(name, value)
    if not 0 <= number <= COUNT_MAX:
        raise InvalidArgument(f"{name} must be a count from 0 to {COUNT_MAX}, not {number}")
    return number


def signed_64(name: str, value: Any) -> int:
    """Return a whole number that fits 64 bits with a sign, such as a time in nanoseconds.

    Raises:
        InvalidArgument: it is none, or too large.
    """
    number = whole(name, value)
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidArgument(f"{name} must fit 64 bits, not be {number}")
    return number


def one_of(name: str, value: Any, kind: type[T]) -> T:
    """Return a value that is of a kind.

    Raises:
        InvalidArgument: it is of another.
    """
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name} must be of {kind.__name__}, not {_shown(value)}")
    return value


def coerce(into: object, kind: Callable[[str, Any], object], *names: str) -> None:
    """Make fields of a frozen dataclass that is being made what they stand for."""
    for name in names:
        object.__setattr__(into, name, kind(name, getattr(into, name)))


def _shown(value: object) -> str:
    """Return what a value is, and never more of it than one line."""
    if value is None or isinstance(value, int | float | str):
        return repr(value)[:80]
    return f"a {type(value).__name__}"
