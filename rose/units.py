"""Unit constants, and division that rounds up."""

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

MS_PER_S: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000


def ceil_div(value: int, by: int) -> int:
    """Divide two non-negative integers, rounding up."""
    return -(-value // by)
