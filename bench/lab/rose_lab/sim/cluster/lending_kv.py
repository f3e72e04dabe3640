"""The lent part of a device's KV pool, from serving's context tokens over time."""

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.memory import choose_slab_bytes
from rose.memory.model_shape import ModelShape
from rose_lab.sim.cluster.lending_devices import BF16_KV, pool_bytes

_BLOCK_TOKENS: Final = 16

Slabs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KvPool:
    """The KV pool that both engines share.

    Args:
        slabs: number of slabs, > 0.
        serving_tokens: tokens per slab in serving's geometry, > 0.
        rollout_tokens: tokens per slab in the borrower's geometry, > 0.
    """

    slabs: int
    serving_tokens: int
    rollout_tokens: int

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidArgument: a number is not above 0.
        """
        if min(self.slabs, self.serving_tokens, self.rollout_tokens) < 1:
            raise InvalidArgument(f"{self}: each size must be at least 1")

    @classmethod
    def of(cls, gpu: str, serving: ModelShape, rollout: ModelShape, *, tp: int = 1) -> "KvPool":
        """Return the pool of a GPU that holds the weights of both models.

        Raises:
            InvalidArgument: the GPU is unknown, the models do not fit, or no slab size suits both.
        """
        geometries = [
            group.geometry
            for shape in (serving, rollout)
            for group in shape.groups(block_tokens=_BLOCK_TOKENS, kv=BF16_KV, tp=tp)[:1]
        ]
        slab_bytes = choose_slab_bytes(*geometries)
        tokens = [_BLOCK_TOKENS * one.blocks_per_slab(slab_bytes) for one in geometries]
        return cls(pool_bytes(gpu, serving, rollout, tp=tp) // slab_bytes, *tokens)

    def used_slabs(self, context_tokens: npt.NDArray[np.float64]) -> Slabs:
        """Return the number of slabs that serving's contexts occupy, at most all slabs."""
        slabs = np.ceil(context_tokens / self.serving_tokens)
        return np.minimum(slabs, self.slabs).astype(np.int64)


class KvRule(Protocol):
    """Rule for the number of lent slabs. Pure: equal use gives equal loans."""

    def lent_slabs(self, used: Slabs, pool: KvPool, *, bin_ms: float) -> Slabs:
        """Return the lent slabs in each bin.

        Args:
            used: (k, d) largest number of slabs that serving uses in each of k bins on d devices.
            pool: pool of each device.
            bin_ms: length of a bin, > 0.

        Returns:
            (k, d) slabs, in 0..pool.slabs.
        """
        ...


@dataclass(frozen=True, slots=True)
class RoseKv:
    """Lends the slabs that serving and a reserve leave free; shrinks at once, regrows later.

    The loan is the minimum of the free slabs over the last `regrow_after_ms`. So it grows only to
    the number that was free all that time, and slabs do not come and go with each burst.

    Args:
        reserve_share: share of the pool that is never lent.
        regrow_after_ms: delay of growth, 0 for none; the default is that of `rose.slo.Policy`.
    """

    reserve_share: float = 0.05
    regrow_after_ms: float = 100.0

    def lent_slabs(self, used: Slabs, pool: KvPool, *, bin_ms: float) -> Slabs:
        """Return the minimum of the free slabs."""
        left = np.maximum(pool.slabs - _reserve(pool, self.reserve_share) - used, 0)
        lent: Slabs = left.copy()
        for back in range(1, min(len(left), _bins(self.regrow_after_ms, bin_ms) + 1)):
            np.minimum(lent[back:], left[:-back], out=lent[back:])
        return lent


@dataclass(frozen=True, slots=True)
class PublishedKv:
    """The paper's rule: headroom, cuts by a factor, and no growth until the next RL step.

    When an RL step begins, rollouts get a budget: all slabs that serving does not use, except the
    headroom. Whenever serving uses more of the headroom than the watermark allows, the budget is
    divided by `cut`. The budget never includes slabs that serving uses.

    Args:
        rl_step_ms: time after which the budget may grow, > 0.
        headroom_share: share of the pool; about 20 % of the memory in the paper.
        cut: divisor of the budget, > 1.
        watermark: used share of the headroom at which serving is under pressure. The source does
            not give it; half is assumed.

    Source: arXiv 2605.06534, section 4.1, second-hand.
    """

    rl_step_ms: float
    headroom_share: float = 0.2
    cut: float = 2.0
    watermark: float = 0.5

    def lent_slabs(self, used: Slabs, pool: KvPool, *, bin_ms: float) -> Slabs:
        """Return the budget, simulated bin by bin."""
        headroom = _reserve(pool, self.headroom_share)
        # Part of the headroom that must stay free.
        floor = headroom - int(headroom * self.watermark)
        step = max(1, round(self.rl_step_ms / bin_ms))
        lent = np.empty_like(used)
        budget = np.zeros(used.shape[1:], dtype=np.int64)
        for row, now in enumerate(used):
            if row % step == 0:
                budget = np.maximum(pool.slabs - headroom - now, 0)
            is_pressed = pool.slabs - budget - now < floor
            budget = np.where(is_pressed, (budget / self.cut).astype(np.int64), budget)
            budget = np.minimum(budget, pool.slabs - now)
            lent[row] = budget
        return lent


@dataclass(frozen=True, slots=True)
class ReservedKv:
    """A constant share of the pool, whatever serving uses.

    Args:
        share: share of the pool, in [0, 1].
    """

    share: float

    def lent_slabs(self, used: Slabs, pool: KvPool, *, bin_ms: float) -> Slabs:
        """Return the same number for each bin."""
        del bin_ms
        return np.full_like(used, int(pool.slabs * self.share))


def _reserve(pool: KvPool, share: float) -> int:
    return math.ceil(pool.slabs * share)


def _bins(ms: float, bin_ms: float) -> int:
    return math.ceil(ms / bin_ms)
