"""How much context a worker can hold: a cache of its own, or what serving lends."""

from typing import Final, Protocol

from rose.clock import Clock
from rose.engines.transformers.cache import VersionedCache
from rose.engines.transformers.rollout_processor import RolloutProcessor
from rose.executor import RolloutLane
from rose.units import NS_PER_MS

# After a refusal growth is asked for again: often enough to be there when serving's burst is over,
# seldom enough that the certificates of refusals stay few.
_ASK_AGAIN_MS: Final = 100.0


class Capacity(Protocol):
    """How many tokens of context an engine can hold. For the loop thread, between two steps."""

    @property
    def tokens_max(self) -> int:
        """The most it could ever hold."""
        ...

    def squeezed(self) -> int | None:
        """Return what is left, in tokens, if memory was taken away since the last look."""
        ...

    def has_regrown(self) -> bool:
        """Whether memory that was taken away can be had again."""
        ...

    @property
    def is_shut_out(self) -> bool:
        """Whether no step could run for too long, so that room is of no use."""
        ...


class CacheCapacity:
    """A cache of the engine's own: nobody takes of it."""

    def __init__(self, cache: VersionedCache) -> None:
        """Look at `cache`."""
        self._cache = cache

    @property
    def tokens_max(self) -> int:
        """All of it."""
        return self._cache.holds_tokens

    def squeezed(self) -> int | None:
        """Return None."""
        return None

    def has_regrown(self) -> bool:
        """Return True."""
        return True

    @property
    def is_shut_out(self) -> bool:
        """False: it waits at no gate."""
        return False


class LaneCapacity:
    """What a borrower's lane could hold, or still holds while serving is short of memory."""

    def __init__(self, processor: RolloutProcessor, clock: Clock) -> None:
        """Look at the lane of `processor`."""
        self._processor = processor
        self._lane: RolloutLane = processor.lane
        self._clock = clock
        self._pressures = processor.pressures
        self._rooms = processor.rooms
        self._ask_after_ns = 0
        # A token has KV in every group. Behind a window it is given up again, which is not counted.
        self._slab_tokens = int(
            1
            / sum(
                1 / (space.blocks_per_slab * space.geometry.block_tokens)
                for space in self._lane.groups.spaces
            )
        )

    @property
    def tokens_max(self) -> int:
        """Its limit, or what serving's reserve leaves of the pool, less what weights take."""
        weights = self._processor.weights
        taken = 0 if weights is None else weights.slabs_max
        return max(0, self._lane.slabs_max() - taken) * self._slab_tokens

    def squeezed(self) -> int | None:
        """Return what is lent still, if serving has taken slabs since the last look."""
        pressures = self._processor.pressures
        if pressures == self._pressures:
            return None
        self._pressures = pressures
        return self._lent

    @property
    def _lent(self) -> int:
        weights = self._processor.weights
        taken = frozenset() if weights is None else weights.slabs
        return len(frozenset(self._lane.slabs()) - taken) * self._slab_tokens

    def has_regrown(self) -> bool:
        """Whether one more slab was lent just now, or there are no more; asks now and then.

        Weights that had to leave get their slabs first.
        """
        if self._lent >= self.tokens_max:
            return True
        now_ns = self._clock.now_ns()
        has_room = self._processor.rooms != self._rooms
        if self._lane.retry_after_ms() > 0 or (now_ns < self._ask_after_ns and not has_room):
            return False
        self._rooms = self._processor.rooms
        self._ask_after_ns = now_ns + int(_ASK_AGAIN_MS * NS_PER_MS)
        return self._processor.has_slabs_for_weights() and self._lane.ensure(
            self._lane.kv.allocator.free_blocks + self._lane.kv.blocks_per_slab
        )

    @property
    def is_shut_out(self) -> bool:
        """Whether serving's gate has been closed for too long."""
        return self._processor.is_shut_out
