"""How many tokens of KV a borrower may promise to callers: its capacity grant."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rose.clock import Clock
from rose.engines.shut_out import ShutOut
from rose.events import Reason
from rose.executor import RolloutLane
from rose.units import NS_PER_MS

TTL_MS: Final = 4000.0
"""Life of a grant that is not repeated: four times the interval of its repetitions."""
# Retry interval of growth after a refusal: short enough to grow soon after the end of serving's
# burst, long enough that serving's process seldom has to decide.
_ASK_AGAIN_NS: Final = 100 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class EngineGrant:
    """A capacity grant. A higher epoch is a new grant; `kv_tokens` 0 ends the grant."""

    epoch: int
    kv_tokens: int


class Granting:
    """Decides the capacity grant of a borrower.

    A grant is all that the lane can hold, lent or not, because serving lends at request. A closed
    gate alone ends no grant, since each of serving's requests closes it for some milliseconds.
    These events do:

    - Serving takes blocks that requests hold: the grant shrinks to the remaining loan, until
      serving lends again.
    - The steps of waiting requests are refused for too long (`ShutOut`): the grant ends, until a
      step may start again.
    - The device stops lending, or a load of weights fails halfway: the grant ends, until the
      borrower has attached again or has known weights.

    Args:
        lane: lane of the borrower.
        clock: clock of the intervals.
        on_change: called after each change, in the thread of the change.
    """

    def __init__(self, lane: RolloutLane, clock: Clock, on_change: Callable[[], None]) -> None:
        """Start with a grant."""
        self._lock = threading.Lock()  # Guards the grant, and whether it is short.
        self._clock = clock
        self._on_change = on_change
        self._shut_out = ShutOut()
        self._is_quarantined = False
        self._granted = EngineGrant(0, 0)
        self._use(lane)

    @property
    def granted(self) -> EngineGrant:
        """The present grant."""
        return self._granted

    @property
    def tokens_max(self) -> int:
        """Tokens that fit in all slabs that the lane can get."""
        return self._lane.slabs_max() * self._slab_tokens

    @property
    def is_shut_out(self) -> bool:
        """True if steps were refused for so long that requests should run elsewhere."""
        return self._shut_out.is_over_bound

    @property
    def is_whole(self) -> bool:
        """True if nothing is missing, so that `look` would change nothing."""
        return self._granted.kv_tokens == self.tokens_max and not self._lane.is_closed

    def event(self) -> dict[str, Any]:
        """Return the data of the event `grant`."""
        now = self._granted
        return {"grant_epoch": now.epoch, "kv_tokens": now.kv_tokens, "ttl_ms": TTL_MS}

    # ---- the thread of the steps ----------------------------------------------------------------

    def use(self, lane: RolloutLane) -> None:
        """Grant what another lane can hold, after the borrower has attached again."""
        with self._lock:
            self._set(0)
        self._use(lane)
        self._on_change()

    def _use(self, lane: RolloutLane) -> None:
        kv = lane.kv
        self._lane = lane
        self._slab_tokens = kv.blocks_per_slab * kv.geometry.block_tokens
        self._ask_after_ns = 0
        self._passes = lane.passes
        self._shut_out.passed()
        with self._lock:
            self._squeezes, self._is_short = 0, False
            self._open()

    def refused(self, why: Callable[[], Reason]) -> None:
        """Record that requests wait for a step, or that a step waits at its gate.

        Args:
            why: function that returns the reason; called only if the wait may be too long.
        """
        if self._lane.passes != self._passes:
            self._passes = self._lane.passes
            self._shut_out.passed()
        self._shut_out.refused(self._clock.now_ns(), why)
        if self._shut_out.is_over_bound and self._granted.kv_tokens > 0:
            with self._lock:
                self._set(0)
            self._on_change()

    def starved(self) -> None:
        """Record that requests wait for memory only: the loan is all that they can have."""
        if not self._is_short:
            self.squeezed()

    def passed(self) -> None:
        """Record that a step may run."""
        self._shut_out.passed()
        self.look()

    def quarantine(self, *, is_on: bool) -> None:
        """End the grant while the model holds no known version."""
        self._is_quarantined = is_on
        self.look()

    def look(self) -> None:
        """Grant again what is possible again; end the grant of a closed lane.

        Another thread may call this only if the lane is closed.
        """
        squeezes = self._squeezes
        is_over = self._lane.is_closed or self._is_quarantined
        has_room = not is_over and (not self._is_short or self._has_regrown())
        with self._lock:
            before = self._granted
            if is_over:
                self._set(0)
            elif has_room and not self.is_shut_out and squeezes == self._squeezes:
                self._is_short = False
                self._open()
            has_changed = self._granted != before
        if has_changed:
            self._on_change()

    # ---- any thread -----------------------------------------------------------------------------

    def squeezed(self) -> None:
        """Shrink the grant to the loan, because serving took blocks that requests held."""
        with self._lock:
            self._squeezes += 1
            self._is_short = True
            self._set(min(self._granted.kv_tokens, self._lent()))
        self._on_change()

    def _open(self) -> None:
        self._set(self.tokens_max)

    def _set(self, kv_tokens: int) -> None:
        was = self._granted
        is_new = was.kv_tokens == 0 and kv_tokens > 0
        self._granted = EngineGrant(was.epoch + is_new, kv_tokens)

    def _lent(self) -> int:
        return 0 if self._lane.is_closed else len(self._lane.slabs()) * self._slab_tokens

    def _has_regrown(self) -> bool:
        """Request one more slab, at intervals; return True if the lane got it, or has all slabs."""
        now_ns, lane = self._clock.now_ns(), self._lane
        if self._lent() >= self.tokens_max:
            return True
        if lane.retry_after_ms() > 0 or now_ns < self._ask_after_ns:
            return False
        self._ask_after_ns = now_ns + _ASK_AGAIN_NS
        return lane.grow(lane.kv.allocator.free_blocks + lane.kv.blocks_per_slab) is None
