"""What the kernels of STRAT want to know of a link's classes."""

from typing import Protocol


class ClassRule(Protocol):
    """How a link finds the class of an element; `rose.transfer` has them."""

    @property
    def shift(self) -> int:
        """Bits below the exponent."""
        ...

    @property
    def exponent_bits(self) -> int:
        """Bits of the exponent that count."""
        ...

    @property
    def origin(self) -> int:
        """The exponent of the lowest class."""
        ...

    @property
    def all_mask(self) -> int:
        """Bit c: in class c every change has its size listed."""
        ...

    @property
    def magnitude_bits(self) -> tuple[int, ...]:
        """Of each class."""
        ...
