"""The choice of changes to send: the largest changes, and changes that stayed unsent for long.

Unsent changes remain in the difference between weights and shadow, so a later version can send
them: this is error feedback. The shadow is the policy that rollouts follow.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rose.errors import InvalidArgument
from rose.kernels.deltas import AGE_LIMIT
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import topk_pack
from rose.transfer.codec.strat import host_row
from rose.transfer.codec.tensor import bits_of

_BF16_SHIFT: Final = 16  # a bf16 is the upper half of a float32


@dataclass(frozen=True, slots=True)
class Selection:
    """Limits a bf16 tile to its largest changes. Exactly one of `share` and `least` is set.

    Args:
        share: largest fraction of a tile's elements to send, > 0 and <= 1.
        least: smallest absolute change of an element to send, > 0.
        age_limit: number of versions, 1 to 255, after which an unsent element is sent however
            small its change is.
    """

    share: float | None = None
    least: float | None = None
    age_limit: int = AGE_LIMIT

    def __post_init__(self) -> None:
        """Check the ranges of the fields.

        Raises:
            InvalidArgument: a field is invalid; the message names its value.
        """
        if (self.share is None) == (self.least is None):
            raise InvalidArgument("a selection needs exactly one of share and least")
        if self.share is not None and not 0 < self.share <= 1:
            raise InvalidArgument(f"share {self.share}: choose more than 0, and at most 1")
        if self.least is not None and not (self.least > 0 and math.isfinite(self.least)):
            raise InvalidArgument(f"least {self.least}: choose a finite number above 0")
        if not 0 < self.age_limit <= AGE_LIMIT:
            raise InvalidArgument(f"age_limit {self.age_limit}: choose 1 to {AGE_LIMIT}")

    def pack(self, new: Any, shadow: Any, ages: Any, *, base_digest: tuple[int, int]) -> Delta:
        """Pack the selected changes of a tile, apply them to the shadow, and update the ages.

        Args:
            new: weights of the tile.
            shadow: weights that the receivers hold.
            ages: see `topk_pack`.
            base_digest: digest of the shadow.
        """
        count = math.prod(new.shape)
        return topk_pack(
            new,
            shadow,
            budget=None if self.share is None else math.ceil(self.share * count),
            least=self.least,
            ages=ages,
            age_limit=self.age_limit,
            base_digest=base_digest,
        )


@dataclass(frozen=True, slots=True)
class Drift:
    """The difference between the receivers' weights and the trainer's.

    Args:
        elements: number of elements compared.
        unsent: number of elements that differ.
        largest: largest difference; inf if a difference is not finite.
        square: sum of the squares of the differences.
        weight_square: sum of the squares of the trainer's weights.
        age: most versions for which an element has not been sent.
    """

    elements: int = 0
    unsent: int = 0
    largest: float = 0.0
    square: float = 0.0
    weight_square: float = 0.0
    age: int = 0

    @property
    def relative(self) -> float:
        """Return the norm of the difference relative to the norm of the weights."""
        return math.sqrt(self.square / self.weight_square) if self.weight_square else 0.0

    def __add__(self, other: "Drift") -> "Drift":
        return Drift(
            self.elements + other.elements,
            self.unsent + other.unsent,
            max(self.largest, other.largest),
            self.square + other.square,
            self.weight_square + other.weight_square,
            max(self.age, other.age),
        )


def drift_of(new: Any, shadow: Any, ages: Any) -> Drift:
    """Compare a bf16 tile with its shadow; `ages` are the ages of its elements in versions."""
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
        age=int(ages.max(initial=0)),
    )
