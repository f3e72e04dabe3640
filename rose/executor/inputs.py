"""Checks of what an engine passes to a lane: a wrong type is the caller's error, as a wrong number.

They run before any code of rose whose failure would end lending.
"""

import math
from numbers import Integral
from typing import Final

from rose.errors import InvalidArgument

# Largest number of tokens, sequences, blocks or bytes of one call.
_COUNT_MAX: Final = 1_000_000_000


def is_count(value: object) -> bool:
    """Return True for an integer from 0 to 10^9. NumPy integers are accepted too."""
    if type(value) is int:  # First, because it takes a tenth of the time of `isinstance`.
        return 0 <= value <= _COUNT_MAX
    return isinstance(value, Integral) and 0 <= int(value) <= _COUNT_MAX


def is_integer(value: object) -> bool:
    """Return True for an integer of 64 bits."""
    return isinstance(value, Integral) and -(1 << 63) <= int(value) < 1 << 63


def is_size(value: object) -> bool:
    """Return True for a number or a handle of up to 63 bits, at least 0."""
    return isinstance(value, Integral) and 0 <= int(value) < 1 << 63


def is_time_ms(value: object) -> bool:
    """Return True for a number of milliseconds of at least 0; infinity is one."""
    return isinstance(value, int | float) and (0 <= value < 1 << 63 or value == math.inf)


def are_counts(values: object) -> bool:
    """Return True for a list or another sequence of counts."""
    return isinstance(values, list | tuple | range) and all(map(is_count, values))


def require(is_sound: object, rule: str, value: object) -> None:
    """Raise `InvalidArgument`, with the rule and the value, unless `is_sound`."""
    if is_sound:
        return
    # Other values may be long, or fail to show themselves.
    is_short = value is None or type(value) is float or is_integer(value)
    shown = str(value) if is_short else f"a value of type {type(value).__name__}"
    raise InvalidArgument(f"{rule}, got {shown}")
