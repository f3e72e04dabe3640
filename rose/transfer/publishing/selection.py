"""Which changes are sent: all, or, where a user asks for it, the large ones and those that waited.

What was not sent stays in the difference between weights and shadow, so it comes with a later
version: the shadow is the error feedback, and the policy that rollouts really follow.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rose.errors import InvalidArgument
from rose.transfer.codec.backend import AGE_LIMIT
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import topk_pack
from rose.transfer.codec.strat import host_row
from rose.transfer.codec.tensor import bits_of

_BF16_SHIFT: Final = 16  # a bf16 is the upper half of a float32


@dataclass(frozen=True, slots=True)
class Selection:
    """The largest changes of each bf16 tile of a group; one of the first two is given.

    Args:
        share: of a tile's elements that are sent at most, over 0 to 1.
        least: the smallest change that is sent, in the weights' own unit, > 0.
        age_limit: after so many versions in which an element was left out it is sent, whatever its
            change: 1 to 255.
    """

    share: float | None = None
    least: float | None = None
    age_limit: int = AGE_LIMIT

    def __post_init__(self) -> None:
        """Refuse what selects nothing, or cannot be.

        Raises:
            InvalidArgument: the sentence names the value.
        """
        if (self.share is None) == (self.least is None):
            raise InvalidArgument("give a selection one of share and least")
        if self.share is not None and not 0 < self.share <= 1:
            raise InvalidArgument(f"share {self.share}: choose more than 0, and at most 1")
        if self.least is not None and not (self.least > 0 and math.isfinite(self.least)):
            raise InvalidArgument(f"least {self.least}: choose a number above 0")
        if not 0 < self.age_limit <= AGE_LIMIT:
            raise InvalidArgument(f"age_limit {self.age_limit}: choose 1 to {AGE_LIMIT}")

    def pack(self, new: Any, shadow: Any, ages: Any) -> Delta:
        """Pack what is selected of a tile, and move the shadow there; ages move on."""
        count = math.prod(new.shape)
        return topk_pack(
            new,
            shadow,
            budget=None if self.share is None else math.ceil(self.share * count),
            least=self.least,
            ages=ages,
            age_limit=self.age_limit,
        )


@dataclass(frozen=True, slots=True)
class Drift:
    """How far what receivers hold is from the trainer's weights.

    Args:
        elements: that were looked at.
        unsent: elements that differ.
        largest: of their differences; inf where one is not finite.
        square: sum of the squares of the differences.
        weight_square: sum of the squares of the trainer's weights.
    """

    elements: int = 0
    unsent: int = 0
    largest: float = 0.0
    square: float = 0.0
    weight_square: float = 0.0

    @property
    def relative(self) -> float:
        """Return the length of the difference over the length of the weights."""
        return math.sqrt(self.square / self.weight_square) if self.weight_square else 0.0

    def __add__(self, other: "Drift") -> "Drift":
        return Drift(
            self.elements + other.elements,
            self.unsent + other.unsent,
            max(self.largest, other.largest),
            self.square + other.square,
            self.weight_square + other.weight_square,
        )


def drift_of(new: Any, shadow: Any) -> Drift:
    """Compare a bf16 tile with its shadow."""
    bits = [host_row(bits_of(name, one)) for name, one in (("new", new), ("shadow", shadow))]
    fresh, held = (
        (one.astype(np.uint32) << _BF16_SHIFT).view(np.float32).astype(np.float64) for one in bits
    )
    with np.errstate(invalid="ignore"):
        off = np.where(bits[0] == bits[1], 0.0, np.abs(fresh - held))
    off[~np.isfinite(off)] = np.inf
    return Drift(
        elements=len(off),
        unsent=int(np.count_nonzero(bits[0] != bits[1])),
        largest=float(off.max(initial=0.0)),
        square=float(off @ off),
        weight_square=float(fresh[np.isfinite(fresh)] @ fresh[np.isfinite(fresh)]),
    )


def total_drift(parts: Iterable[Drift]) -> Drift:
    """Return the drift of all of them together."""
    return sum(parts, Drift())
