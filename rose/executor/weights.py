"""A borrower's weights as a lease: on the device while the borrower works, else on the host."""

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from rose.errors import InvalidArgument, check
from rose.events import Refusal
from rose.executor.rollout import RolloutLane
from rose.executor.weight_bins import Bytes, WeightBins
from rose.executor.whole_slabs import WholeSlabs
from rose.memory import KVArray
from rose.units import MIB

# Number of bytes copied between two gates. A slow host copies them in a millisecond or two, and the
# overhead of a call is still negligible.
SLICE_BYTES: Final = 8 * MIB


class WeightsState(Enum):
    """Location of the weights."""

    DORMANT = "on the host; up to dormant_bytes_max bytes are also on the device"
    ACTIVATING = "being copied to slabs on the device"
    ACTIVE = "on the device, steps may run"
    EVICTING = "about to leave the device, but a step or a copy still uses them"


_MOVES: Final = frozenset(
    {
        (WeightsState.DORMANT, WeightsState.ACTIVATING),
        (WeightsState.ACTIVATING, WeightsState.ACTIVE),
        (WeightsState.ACTIVATING, WeightsState.EVICTING),
        (WeightsState.ACTIVE, WeightsState.EVICTING),
        (WeightsState.EVICTING, WeightsState.DORMANT),
    }
)


class WeightsLease:
    """Weights in slabs that a borrower leased; the host's copy is authoritative.

    Lifecycle: DORMANT → `begin` → ACTIVATING → `advance`, `advance`, … → ACTIVE → EVICTING →
    DORMANT. `give_up` leads from ACTIVATING or ACTIVE to EVICTING, and to DORMANT as soon as the
    weights are not pinned: in the same call, or in `unpin`. Pin the slabs while you read
    or fill them. The tensors of a bin leave the device together.

    Only `write` changes weights on the device, and only to the host's values. Uploads through a
    stream complete later: wait for the stream before `unpin`.

    Any thread may use `give_up`, `evict`, `held`, `state` and `slabs`; only the borrower's thread
    may use the rest.

    Args:
        lane: the borrower's lane.
        rows: contiguous bytes of each tensor on the host, (n,) uint8. The caller owns them, and
            must call `write` after it changes them.
        on_state: function that is called when the state becomes ACTIVE or DORMANT. It runs under
            the lease's lock, so it must not call the lease.
        dormant_bytes_max: largest number of bytes on the device while DORMANT; whole bins are kept.
        slice_bytes: number of bytes that one `advance` copies.

    Raises:
        InvalidArgument: there are no bytes, `dormant_bytes_max` is negative, or `slice_bytes` is
            below 1.
    """

    def __init__(
        self,
        lane: RolloutLane,
        rows: Sequence[Bytes],
        *,
        on_state: Callable[[WeightsState], None] = lambda _state: None,
        dormant_bytes_max: int = 0,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        size_bytes = sum(row.nbytes for row in rows)
        if size_bytes == 0 or dormant_bytes_max < 0 or slice_bytes < 1:
            raise InvalidArgument(
                f"the size of the weights and slice_bytes must be at least 1, dormant_bytes_max at "
                f"least 0, got {size_bytes}, {slice_bytes} and {dormant_bytes_max}"
            )
        self._lane = lane
        self._on_state = on_state
        self._dormant_bytes_max = dormant_bytes_max
        self._slice_bytes = slice_bytes
        self._lock = threading.Lock()  # Guards the fields below; held no longer than one `write`.
        self._state = WeightsState.DORMANT
        self._whole = WholeSlabs(lane)
        self._bins = WeightBins(lane.kv, rows, upload=lane.upload, piece_bytes=slice_bytes)
        self._pin: int | None = None

    # ---- state ----------------------------------------------------------------------------------

    @property
    def state(self) -> WeightsState:
        """Location of the weights."""
        return self._state

    @property
    def size_bytes(self) -> int:
        """Total size of all tensors in bytes."""
        return self._bins.size_bytes

    @property
    def slabs_max(self) -> int:
        """Number of slabs that all weights need."""
        return self._bins.slabs_max

    @property
    def slabs(self) -> frozenset[int]:
        """Ids of the slabs that hold weights now."""
        with self._lock:
            return self._whole.slabs

    def window_of(self, tensor: int) -> KVArray:
        """Return the bytes of one tensor on the device, (n,) uint8.

        They are valid within `on_state` for ACTIVE, or while pinned.
        """
        return self._bins.window_of(tensor)

    # ---- the borrower ---------------------------------------------------------------------------

    def begin(self) -> Refusal | None:
        """DORMANT → ACTIVATING: take slabs for all absent bins. No effect in another state.

        Returns:
            None, or a refusal; after a refusal the weights hold no new slabs.
        """
        with self._lock:
            if self._state is not WeightsState.DORMANT:
                return None
            absent = self._bins.absent()
            runs = self._whole.take(list(absent.values()))
            if isinstance(runs, Refusal):
                self._lane.give_back_idle()  # Return granted slabs, since they do not suffice.
                return runs
            for at, run in zip(absent, runs, strict=True):
                self._bins.put(at, run)
            self._move(WeightsState.ACTIVATING)
            return None

    def pin(self) -> bool:
        """Pin the slabs for a step or a copy; False while DORMANT or EVICTING."""
        with self._lock, self._lane.planning():
            self._give_up(self._lane.leaving() & self._whole.slabs)
            if self._state not in (WeightsState.ACTIVATING, WeightsState.ACTIVE):
                return False
            check(self._pin is None, "the weights are pinned already")
            self._pin = self._lane.kv.allocator.pin_slabs(list(self._whole.slabs))
            return True

    def unpin(self) -> None:
        """Release the pin. All enqueued work must be complete. EVICTING weights leave now."""
        with self._lock:
            if self._pin is None:
                return
            self._lane.kv.allocator.unpin(self._pin)
            self._pin = None
            if self._state is WeightsState.EVICTING:
                self._settle(self._lane.leaving())

    def advance(self) -> bool:
        """Copy one slice to the pinned slabs; False if nothing is left to copy.

        The last slice makes the weights ACTIVE. After a failed copy they are evicted.
        """
        if self._state is not WeightsState.ACTIVATING:
            return False
        check(self._pin is not None, "slabs must be pinned while weights are copied to them")
        is_copied = False
        try:
            # Without the lock, so that `give_up` does not wait.
            self._bins.fill(self._slice_bytes)
            is_copied = True
        finally:
            if not is_copied:
                self.evict()
        with self._lock:
            if self._bins.is_filled and self._state is WeightsState.ACTIVATING:
                self._move(WeightsState.ACTIVE)
                self._on_state(self._state)
            return self._state is WeightsState.ACTIVATING

    def activate(self) -> Refusal | None:
        """Begin and copy everything, without gates between slices.

        Returns:
            None, or a refusal. Check `state`: the weights may have been given up in the meantime.

        Raises:
            DeadlineExceeded: the stream did not finish in time; the pin stays.
        """
        refusal = self.begin()
        if refusal is not None or not self.pin():
            return refusal
        try:
            while self.advance():
                pass
        finally:
            self._lane.upload.wait()
            self.unpin()
        return None

    def write(self, start: int, stop: int) -> None:
        """Update the device after the host's bytes changed.

        Pinned weights are copied. Otherwise the affected bins leave the device, as their slabs may
        change owner at any time; the next activation copies them.

        Args:
            start: first byte, counted over all rows in order.
            stop: end of the range, exclusive.
        """
        with self._lock:
            if self._pin is not None:
                self._bins.write(start, stop)
            else:
                self._give_up(self._bins.slabs_of(start, stop))

    def close(self) -> None:
        """Remove all weights from the device; they must not be pinned."""
        with self._lock:
            check(self._pin is None, "weights must not be pinned when their lease is closed")
            self._leave(self._whole.slabs)

    # ---- any thread -----------------------------------------------------------------------------

    def give_up(self, leaving: frozenset[int]) -> bool:
        """Evict the weights if `leaving` has one of their slabs. Never waits.

        Pinned weights leave in `unpin`.

        Returns:
            Whether no step may use the weights now.
        """
        with self._lock:
            self._give_up(leaving & self._whole.slabs)
            return self._state in (WeightsState.EVICTING, WeightsState.DORMANT)

    def evict(self) -> None:
        """Evict without a revocation; up to `dormant_bytes_max` bytes stay on the device."""
        with self._lock:
            self._leave(frozenset())

    # ---- under the lock -------------------------------------------------------------------------

    def _give_up(self, slabs: frozenset[int]) -> None:
        if slabs:
            self._leave(slabs)

    def _leave(self, leaving: frozenset[int]) -> None:
        if self._state in (WeightsState.ACTIVATING, WeightsState.ACTIVE):
            self._move(WeightsState.EVICTING)
        if self._pin is None:
            self._settle(leaving)

    def _settle(self, leaving: frozenset[int]) -> None:
        """Free bins in `leaving` slabs or beyond `dormant_bytes_max`. Nothing may be pinned."""
        for run in self._bins.drop(leaving, keep_bytes=self._dormant_bytes_max):
            self._whole.give(run)
        if self._state is WeightsState.EVICTING:
            self._move(WeightsState.DORMANT)
            self._on_state(self._state)
        self._lane.give_back_idle()

    def _move(self, to: WeightsState) -> None:
        check((self._state, to) in _MOVES, f"weights must not go from {self._state} to {to}")
        self._state = to
