"""How much of a device's KV pool is lent, from what serving's contexts take of it over time."""

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument
from rose.memory import choose_slab_bytes
from rose.memory.model_shape import ModelShape
from rose.sim.cluster.lending_devices import BF16_KV, pool_bytes

_BLOCK_TOKENS: Final = 16

Slabs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KvPool:
    """What the contexts of both engines share.

    Args:
        slabs: of the pool, > 0.
        serving_tokens: that a slab holds in serving's geometry, > 0.
        rollout_tokens: that a slab holds in the borrower's geometry, > 0.
    """

    slabs: int
    serving_tokens: int
    rollout_tokens: int

    def __post_init__(self) -> None:
        """Refuse a pool that holds nothing.

        Raises:
            InvalidArgument: a number is not above 0.
        """
        if min(self.slabs, self.serving_tokens, self.rollout_tokens) < 1:
            raise InvalidArgument(f"{self} holds nothing; give at least 1 of each")

    @classmethod
    def of(cls, gpu: str, serving: ModelShape, rollout: ModelShape, *, tp: int = 1) -> "KvPool":
        """Return the pool of a GPU that holds the weights of both models.

        Raises:
            InvalidArgument: the GPU has no figures, the models do not fit, or no slab suits both.
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
        """Return the slabs that serving's contexts take, whole ones, at most all."""
        slabs = np.ceil(context_tokens / self.serving_tokens)
        return np.minimum(slabs, self.slabs).astype(np.int64)


class KvRule(Protocol):
    """Says how many slabs are lent. Pure: equal uses give equal loans."""

    def lent_slabs(self, used: Slabs, pool: KvPool, *, bin_ms: float) -> Slabs:
        """Return the slabs that are lent in each bin.

        Args:
            used: (k, d), the most that serving has in each bin of each of d devices.
            pool: of each device.
            bin_ms: length of a bin, > 0.

        Returns:
            (k, d), in 0..pool.slabs.
        """
        ...


@dataclass(frozen=True, slots=True)
class RoseKv:
    """Lends what serving leaves beside a reserve: shrinks at once, grows back when it has lasted.

    What is lent is the least that was left within the last `regrow_after_ms`, so a loan grows only
    to what was free for all of that time, and slabs do not come and go with each burst.

    Args:
        reserve_share: of the pool, that is never lent.
        regrow_after_ms: 0 grows at once; the default is that of `rose.slo.Policy`.
    """

    reserve_share: float = 0.05
    regrow_after_ms: float = 100.0

    def lent_slabs(self, used: Slabs, pool: KvPool, *, bin_ms: float) -> Slabs:
        """Return the least that was left."""
        left = np.maximum(pool.slabs - _reserve(pool, self.reserve_share) - used, 0)
        lent: Slabs = left.copy()
        for back in range(1, min(len(left), _bins(self.regrow_after_ms, bin_ms) + 1)):
            np.minimum(lent[back:], left[:-back], out=lent[back:])
        return lent


@dataclass(frozen=True, slots=True)
class PublishedKv:
    """The paper's rule: headroom, one cut by a factor, and no growth until the next RL step.

    When a step begins, rollouts get what serving does not use, but for the headroom. When serving
    has eaten its way into the headroom up to the watermark, the budget is cut by the factor, and
    again as often as that happens. It never stands in the way of what serving uses.

    Args:
        rl_step_ms: after which the budget may grow, > 0.
        headroom_share: of the pool; the paper has about 20 % of the memory.
        cut: what the budget is divided by, > 1.
        watermark: the share of the headroom that is used when serving is under pressure. The
            notes on the paper do not say; half of it is assumed.

    Source: arXiv 2605.06534, section 4.1, second-hand.
    """

    rl_step_ms: float
    headroom_share: float = 0.2
    cut: float = 2.0
    watermark: float = 0.5

    def lent_slabs(self, used: Slabs, pool: KvPool, *, bin_ms: float) -> Slabs:
        """Return the budget, followed bin by bin."""
        headroom = _reserve(pool, self.headroom_share)
        # What must stay free of the headroom.
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
    """A constant share of the pool, whatever serving does.

    Args:
        share: of the pool, in [0, 1]; 1 is everything, always.
    """

    share: float

    def lent_slabs(self, used: Slabs, pool: KvPool, *, bin_ms: float) -> Slabs:
        """Return the same for each bin."""
        del bin_ms
        return np.full_like(used, int(pool.slabs * self.share))


def _reserve(pool: KvPool, share: float) -> int:
    return math.ceil(pool.slabs * share)


def _bins(ms: float, bin_ms: float) -> int:
    return math.ceil(ms / bin_ms)
