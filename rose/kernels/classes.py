"""The elements of a delta sorted by their classes, which is how the kernels of STRAT take them."""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from rose.kernels import operands

CLASSES: Final = 8


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


@dataclass(frozen=True, slots=True)
class ClassOrder:
    """Where the elements are when each block has its classes one after the other.

    Args:
        index: (count,) int64, the element at each place; within a class they ascend.
        sizes: (blocks, CLASSES) int32, elements of each class.
    """

    index: Any
    sizes: Any


def class_order(base: Any, rule: ClassRule, block_elements: int) -> ClassOrder:
    """Sort the elements of `base`, as `operands.bits_of` gives them; nothing waits."""
    bits = base.reshape(-1).to(torch.int64) & ((1 << operands.width_of(base)) - 1)
    exponent = (bits >> rule.shift) & ((1 << rule.exponent_bits) - 1)
    classes = (exponent - rule.origin).clamp(0, CLASSES - 1)
    blocks = -(-bits.numel() // block_elements)
    places = torch.arange(bits.numel(), device=bits.device) // block_elements
    key = places * CLASSES + classes
    sizes = torch.zeros(blocks * CLASSES, dtype=torch.int64, device=bits.device)
    sizes.scatter_add_(0, key, torch.ones_like(key))
    index = torch.sort(key, stable=True).indices
    return ClassOrder(index, sizes.to(torch.int32).view(blocks, CLASSES))


def packed_widths(rule: ClassRule) -> int:
    """Return the magnitude bits of all classes, a byte each from the lowest on."""
    return sum(bits << (8 * c) for c, bits in enumerate(rule.magnitude_bits))
