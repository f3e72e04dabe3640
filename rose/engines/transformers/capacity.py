"""A worker's capacity for context: its own cache, or borrowed memory."""

from typing import Final

from rose.clock import Clock
from rose.engines.transformers.cache import VersionedCache
from rose.engines.transformers.rollout_processor import RolloutProcessor
from rose.executor import RolloutLane
from rose.units import NS_PER_MS

# Retry interval of growth after a refusal: short enough to grow soon after the end of serving's
# burst, long enough that serving's process seldom has to decide.
_ASK_AGAIN_MS: Final = 100.0


class CacheCapacity:
    """Capacity of an engine whose own cache is never revoked, in tokens of context.

    For the loop thread, between two steps.
    """

    def __init__(self, cache: VersionedCache) -> None:
        self._cache = cache

    @property
    def tokens_max(self) -> int:
        """All tokens that the cache holds."""
        return self._cache.holds_tokens

    def squeezed(self) -> int | None:
        """Return the tokens left if memory was revoked since the last call; None otherwise."""
        return None

    def has_regrown(self) -> bool:
        """Return True if revoked memory is available again."""
        return True

    @property
    def is_shut_out(self) -> bool:
        """True if steps were refused for so long that capacity is useless."""
        return False


class LaneCapacity(CacheCapacity):
    """The capacity of a borrower's lane: its maximum, and what is left after a revocation."""

    def __init__(self, processor: RolloutProcessor, clock: Clock) -> None:
        super().__init__(processor.cache)
        self._processor = processor
        self._lane: RolloutLane = processor.lane
        self._clock = clock
        self._pressures = processor.pressures
        self._rooms = processor.rooms
        self._ask_after_ns = 0
        kv = self._lane.kv
        self._slab_tokens = kv.blocks_per_slab * kv.geometry.block_tokens

    @property
    def tokens_max(self) -> int:
        """Tokens that fit in all slabs that the lane can get."""
        return self._lane.slabs_max() * self._slab_tokens

    def squeezed(self) -> int | None:
        """Return the capacity left if serving took slabs since the last call; None otherwise."""
        pressures = self._processor.pressures
        if pressures == self._pressures:
            return None
        self._pressures = pressures
        return self._lent

    @property
    def _lent(self) -> int:
        return len(self._lane.slabs()) * self._slab_tokens

    def has_regrown(self) -> bool:
        """Request one more slab, at intervals; return True if the lane got it, or has all slabs."""
        if self._lent >= self.tokens_max:
            return True
        now_ns = self._clock.now_ns()
        has_room = self._processor.rooms != self._rooms
        if self._lane.retry_after_ms() > 0 or (now_ns < self._ask_after_ns and not has_room):
            return False
        self._rooms = self._processor.rooms
        self._ask_after_ns = now_ns + int(_ASK_AGAIN_MS * NS_PER_MS)
        kv = self._lane.kv
        return self._lane.ensure(kv.allocator.free_blocks + kv.blocks_per_slab)

    @property
    def is_shut_out(self) -> bool:
        """True if serving's gate has been closed for too long."""
        return self._processor.is_shut_out
