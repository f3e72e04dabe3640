"""The weights of a borrower as a lease: on the device while it works, else on the host alone."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Final

from rose.errors import InvalidArgument, check
from rose.events import Refusal
from rose.executor.rollout import RolloutLane
from rose.executor.weight_bins import Bytes, WeightBins
from rose.executor.whole_slabs import WholeSlabs
from rose.memory import KVArray
from rose.units import MIB

# One slice is work between two gates: a millisecond or two on a slow host, and large enough that
# calls cost nothing beside it.
SLICE_BYTES: Final = 8 * MIB


class WeightsState(Enum):
    """Where the weights are."""

    DORMANT = "on the host; at most the bound is on the device"
    ACTIVATING = "slabs are held, and being filled"
    ACTIVE = "on the device, steps may run"
    EVICTING = "to leave, but a step or a copy still uses them"


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
    """Weights in slabs that a borrower leased; the host's copy is the truth.

    Its life: DORMANT → `begin` → ACTIVATING → `advance`, `advance`, … → ACTIVE → EVICTING →
    DORMANT. `give_up` leads to EVICTING from either side, and from there the weights are DORMANT
    as soon as nobody pins them: within the call, or in the last `unpin`. Whoever reads or fills the
    slabs pins them meanwhile. A bin of tensors goes home as a whole.

    On the device nothing changes weights but `write`, and that only to what the host has. An upload
    through a stream is complete later: whoever unpins has waited for it.

    `give_up`, `evict`, `state` and `slabs` are for any thread, the rest for the borrower's.

    Args:
        lane: of the borrower.
        rows: one tensor's bytes each, contiguous, on the host; they stay the caller's, who may
            change them and then has to `write`.
        on_state: told of ACTIVE and DORMANT under the lease's lock; it must not call back.
        dormant_bytes_max: what the device may hold while DORMANT; whole bins are kept up to that.
        slice_bytes: copied by one `advance`.

    Raises:
        InvalidArgument: no bytes, a negative bound, or slices of nothing.
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
                f"weights of {size_bytes} bytes in slices of {slice_bytes} bytes, dormant with at "
                f"most {dormant_bytes_max}: there must be something to lease"
            )
        self._lane = lane
        self._on_state = on_state
        self._dormant_bytes_max = dormant_bytes_max
        self._slice_bytes = slice_bytes
        self._lock = threading.Lock()  # Guards all below; held for one `write` at most.
        self._state = WeightsState.DORMANT
        self._whole = WholeSlabs(lane)
        self._bins = WeightBins(lane.kv, rows, upload=lane.upload, piece_bytes=slice_bytes)
        self._pin: int | None = None

    # ---- looking --------------------------------------------------------------------------------

    @property
    def state(self) -> WeightsState:
        """Where the weights are."""
        return self._state

    @property
    def size_bytes(self) -> int:
        """Of all tensors."""
        return self._bins.size_bytes

    @property
    def slabs_max(self) -> int:
        """How many slabs they take."""
        return self._bins.slabs_max

    @property
    def slabs(self) -> frozenset[int]:
        """Those that hold them now."""
        with self._lock:
            return self._whole.slabs

    @contextmanager
    def held(self) -> Iterator[WeightsState]:
        """Keep the weights where they are while a little of them is read; any thread."""
        with self._lock:
            yield self._state

    def window_of(self, tensor: int) -> KVArray:
        """Return the bytes of one tensor on the device.

        For `on_state` when it is told of ACTIVE, and for who pins or holds them.
        """
        return self._bins.window_of(tensor)

    # ---- the borrower ---------------------------------------------------------------------------

    def begin(self) -> Refusal | None:
        """DORMANT → ACTIVATING: hold slabs for what is not there. Does nothing later in its life.

        Returns:
            None, or why there are no slabs: then none are held but those that were before.
        """
        with self._lock:
            if self._state is not WeightsState.DORMANT:
                return None
            absent = self._bins.absent()
            runs = self._whole.take(list(absent.values()))
            if isinstance(runs, Refusal):
                self._lane.give_back_idle()  # What was granted in vain.
                return runs
            for at, run in zip(absent, runs, strict=True):
                self._bins.put(at, run)
            self._move(WeightsState.ACTIVATING)
            return None

    def pin(self) -> bool:
        """Hold the slabs for a step or a copy; False when there are no weights to hold."""
        with self._lock:
            if self._state not in (WeightsState.ACTIVATING, WeightsState.ACTIVE):
                return False
            check(self._pin is None, "the weights are pinned already")
            self._pin = self._lane.kv.allocator.pin_slabs(list(self._whole.slabs))
            return True

    def unpin(self) -> None:
        """Let go, when what was enqueued is complete; weights that are to leave leave now."""
        with self._lock:
            if self._pin is None:
                return
            self._lane.kv.allocator.unpin(self._pin)
            self._pin = None
            if self._state is WeightsState.EVICTING:
                self._settle(self._lane.leaving())

    def advance(self) -> bool:
        """Copy one slice to the device, which is pinned; False when there is nothing more to do.

        The last slice makes the weights ACTIVE. Should a copy fail, they are to leave.
        """
        if self._state is not WeightsState.ACTIVATING:
            return False
        check(self._pin is not None, "weights are copied to slabs that nobody pins")
        is_copied = False
        try:
            # Without the lock, so that who gives them up need not wait.
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
        """Begin and copy all of it, for who needs no gate between two slices.

        Returns:
            None, or why there are no slabs. Look at `state`: it may have been given up meanwhile.

        Raises:
            DeadlineExceeded: the stream does not come to the end of it; the pin stays.
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
        """Bring what the host has changed to the device.

        Copied while the weights are pinned. Else what is there of it leaves: it may change hands
        at any time, and the next activation copies it.

        Args:
            start: first byte, counted over all rows one after the other.
            stop: one behind the last.
        """
        with self._lock:
            if self._pin is not None:
                self._bins.write(start, stop)
            else:
                self._give_up(self._bins.slabs_of(start, stop))

    def close(self) -> None:
        """Leave with everything; nobody may pin them."""
        with self._lock:
            check(self._pin is None, "weights are taken away from under a step")
            self._leave(self._whole.slabs)

    # ---- any thread -----------------------------------------------------------------------------

    def give_up(self, leaving: frozenset[int]) -> bool:
        """Leave when one of the slabs is among `leaving`; True when no step may run on the weights.

        Nothing waits here: what is pinned leaves in `unpin`.
        """
        with self._lock:
            self._give_up(leaving & self._whole.slabs)
            return self._state in (WeightsState.EVICTING, WeightsState.DORMANT)

    def evict(self) -> None:
        """Leave, though nobody asked for it; at most the bound is kept."""
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
        """Free what leaves and what is above the bound: nobody uses the weights any more."""
        for run in self._bins.drop(leaving, keep_bytes=self._dormant_bytes_max):
            self._whole.give(run)
        if self._state is WeightsState.EVICTING:
            self._move(WeightsState.DORMANT)
            self._on_state(self._state)
        self._lane.give_back_idle()

    def _move(self, to: WeightsState) -> None:
        check((self._state, to) in _MOVES, f"weights: {self._state} -> {to}")
        self._state = to
