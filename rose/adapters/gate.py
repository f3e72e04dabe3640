"""Holds turns back from workers: all of them while paused, else those of unfit versions."""

from collections.abc import Callable
from functools import partial
from typing import Final

from rose.scheduler.watching import ErrorGuard, broken_worker
from rose.scheduler.worker import (
    TurnEnd,
    TurnOutput,
    TurnRequest,
    Worker,
    WorkerEvent,
    WorkerKind,
)

# May this trajectory run on this worker's weights?
Fits = Callable[[int, int], bool]
_NO_TOKENS: Final = ((), (), ())


class GatedWorker:
    """A worker of the service; returns turns whose versions it lacks, and holds turns in a pause.

    The scheduler's core places turns without regard to either. A returned turn is INTERRUPTED, so
    the core places it elsewhere. The loop's thread only.

    Args:
        worker: worker that runs the turns.
        fits: whether a trajectory may run on a worker's present weights.
        report: receives events of turns that were held or returned, and losses.
        is_closed: whether turns are held from the start.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        fits: Fits,
        report: Callable[[WorkerEvent], None],
        is_closed: bool,
    ) -> None:
        self._worker = worker
        self._fits = fits
        self._report = report
        self._is_closed = is_closed
        self._held: dict[int, TurnRequest] = {}
        self.running: set[int] = set()  # trajectories

    @property
    def number(self) -> int:
        """Number of the worker."""
        return self._worker.number

    @property
    def kind(self) -> WorkerKind:
        """Dedicated or borrowed."""
        return self._worker.kind

    def start_turn(self, request: TurnRequest) -> None:
        """Start, hold or return a turn; raises as the worker does."""
        if self._is_closed:
            self._held[request.trajectory] = request
        elif self._fits(request.trajectory, self.number):
            self.running.add(request.trajectory)
            self._worker.start_turn(request)
        else:
            self._return(request)

    def stop_turn(self, trajectory: int) -> None:
        """Recall a turn, or return a held one; raises as the worker does."""
        held = self._held.pop(trajectory, None)
        if held is None:
            self._worker.stop_turn(trajectory)
        else:
            self._return(held)

    def ended(self, trajectory: int) -> None:
        """Note that the worker reported the end of a turn."""
        self.running.discard(trajectory)

    def lost(self) -> None:
        """Forget all turns of a worker that is gone."""
        self.running.clear()
        self._held.clear()

    def close(self, *, is_recalling: bool) -> None:
        """Hold turns from now on; if `is_recalling`, also recall the running ones."""
        self._is_closed = True
        if is_recalling:
            for trajectory in tuple(self.running):
                self._guarded(partial(self._worker.stop_turn, trajectory))

    def open(self) -> None:
        """Start the held turns, and later ones at once."""
        self._is_closed = False
        held, self._held = self._held, {}
        for request in held.values():
            self._guarded(partial(self.start_turn, request))

    def _guarded(self, call: Callable[[], None]) -> None:
        """Call the worker; one that raises is lost, as in the scheduler."""
        guard = ErrorGuard()
        with guard:
            call()
        if guard.error is not None:
            self._report(broken_worker(self.number, guard.error))

    def _return(self, request: TurnRequest) -> None:
        where = request.trajectory, request.turn, request.grant_epoch, request.first_token
        self._report(TurnOutput(self.number, *where, *_NO_TOKENS, TurnEnd.INTERRUPTED))
