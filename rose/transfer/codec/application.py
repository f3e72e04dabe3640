"""A delta that goes into weights a slice at a time, and out again from wherever it is."""

from collections.abc import Callable
from threading import Event
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rose.errors import InvalidArgument, RoseError, Unavailable
from rose.transfer.codec.backend import backend_of
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.tensor import bits_of

# What a change moves of the weights: memory is read and written in pieces of this size.
_SECTOR_BYTES: Final = 32

Stop: TypeAlias = Event | Callable[[], bool]


class Application:
    """Whole blocks of a delta are applied, in order; those that are can be taken back exactly.

    Between two slices nothing is half changed, so a stop leaves weights that are the base in what
    was not reached and the target in what was. One thread steps and undoes; the stop may come from
    any. Nobody else may change the weights until it is done or undone.

    On a GPU each slice is on the stream, for which this thread waits: never more than one slice
    is ahead of a stop. A stream of low priority keeps out of the way of others.
    """

    def __init__(
        self,
        weights: Any,
        delta: Delta,
        *,
        verify: bool = False,
        stop: Stop | None = None,
        stream: Any = None,
    ) -> None:
        """Check all of the delta; nothing is changed yet.

        Args:
            weights: of the version that the delta was made from; changed in place.
            delta: to apply.
            verify: refuse weights that are not that version.
            stop: an event, or what says whether to stop; looked at before every slice.
            stream: of the slices, where the weights are on a GPU; as in `delta_apply`.

        Raises:
            InvalidArgument: the number of elements differs, or the weights cannot be written to.
            CorruptData: the delta is not well formed, or not for these weights.
        """
        tensor = bits_of("weights", weights, is_written=True, stream=stream)
        self._bits = tensor.bits
        self._delta = delta
        self._backend = backend_of(tensor, stream)
        self._is_stopped = stop.is_set if isinstance(stop, Event) else stop or (lambda: False)
        self._applied = 0
        self._is_torn = False
        self._move(range(0), undo=False, verify=verify)
        self._is_torn = False
        self._ends = np.cumsum(_moved_bytes(delta))

    @property
    def applied_blocks(self) -> int:
        """How many blocks, from the first on, hold what the delta makes of them."""
        return self._applied

    @property
    def is_done(self) -> bool:
        """Whether the whole delta is applied."""
        return self._applied == len(self._ends)

    def step(self, budget_bytes: int) -> bool:
        """Apply blocks until about `budget_bytes` of delta and weights were moved; at least one.

        Does nothing where the stop says so.

        Returns:
            Whether the whole delta is applied.

        Raises:
            InvalidArgument: the budget is below 0.
            Unavailable: an earlier slice was interrupted.
        """
        if budget_bytes < 0:
            raise InvalidArgument(f"budget_bytes {budget_bytes} must not be negative")
        if self.is_done or self._is_stopped():
            return self.is_done
        first = self._applied
        before = int(self._ends[first - 1]) if first else 0
        last = int(np.searchsorted(self._ends, before + budget_bytes, side="right"))
        last = max(last, first + 1)
        self._move(range(first, last), undo=False)
        self._applied, self._is_torn = last, False
        return self.is_done

    def run(self, budget_bytes: int) -> bool:
        """Step until it is done, or the stop says so; returns whether it is done."""
        while not self.step(budget_bytes):
            if self._is_stopped():
                return False
        return True

    def undo(self) -> None:
        """Take back exactly what is applied, be it all, a part or nothing; then it can go on."""
        self._move(range(self._applied), undo=True)
        self._applied, self._is_torn = 0, False

    def _move(self, blocks: range, *, undo: bool, verify: bool = False) -> None:
        """Apply blocks or take them back; until the caller has noted it, it is torn."""
        if self._is_torn:
            raise Unavailable(
                "an interrupt came while a slice was applied, and nobody knows whether it is: "
                "compare the digest of the weights with those of the delta"
            )
        self._is_torn = True
        try:
            self._backend.delta_apply(
                self._bits, self._delta, undo=undo, blocks=blocks, verify=verify
            )
        except RoseError:
            self._is_torn = False  # it changed nothing
            raise


def _moved_bytes(delta: Delta) -> npt.NDArray[np.int64]:
    """Return what each block moves: its payload, and a sector a change, at most all it covers."""
    words = (delta.entries >> np.uint64(44)).astype(np.int64)
    changed = ((delta.entries >> np.uint64(4)) & np.uint64(0xFFFFF)).astype(np.int64)
    whole = delta.block_elements * delta.width // 8
    moved: npt.NDArray[np.int64] = 4 * words + np.minimum(_SECTOR_BYTES * changed, whole)
    return moved
