"""Holds turns back from workers: all turns in a pause, otherwise turns that need other weights."""

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
)

# (trajectory, worker) → whether the trajectory may run on the worker's present weights.
Fits = Callable[[int, int], bool]
_NO_TOKENS: Final = ((), (), ())


class GatedWorker:
    """A worker behind a gate, which queues turns in a pause and refuses turns that do not fit.

    The scheduler's core knows neither pauses nor the versions that a request accepts. A refused
    turn ends as INTERRUPTED, so the core places it on another worker. Only the event loop's thread
    may call the methods.

    Args:
        worker: worker that runs the turns.
        fits: whether a trajectory may run on a worker's present weights.
        report: function that receives the events of queued and refused turns, and the loss of a
            worker that raises.
        is_closed: whether the gate is closed at first, so that turns are queued.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        fits: Fits,
        report: Callable[[WorkerEvent], None],
        is_closed: bool,
    ) -> None:
        self._worker, self.number, self.kind = worker, worker.number, worker.kind
        self._fits = fits
        self._report = report
        self._is_closed = is_closed
        self._held: dict[int, TurnRequest] = {}
        self.running: set[int] = set()  # trajectories whose turns run

    def start_turn(self, request: TurnRequest) -> None:
        """Start, queue or refuse a turn; raises the worker's exceptions."""
        if self._is_closed:
            self._held[request.trajectory] = request
        elif self._fits(request.trajectory, self.number):
            self.running.add(request.trajectory)
            self._worker.start_turn(request)
        else:
            self._return(request)

    def stop_turn(self, trajectory: int) -> None:
        """Recall a running turn, or interrupt a queued one; raises the worker's exceptions."""
        held = self._held.pop(trajectory, None)
        if held is None:
            self._worker.stop_turn(trajectory)
        else:
            self._return(held)

    def ended(self, trajectory: int) -> None:
        """Record that the worker has reported the end of a turn."""
        self.running.discard(trajectory)

    def lost(self) -> None:
        """Forget all turns, because the worker is lost."""
        self.running.clear()
        self._held.clear()

    def close(self, *, is_recalling: bool) -> None:
        """Queue turns from now on; if `is_recalling`, also recall the running turns."""
        self._is_closed = True
        if is_recalling:
            for trajectory in tuple(self.running):
                self._guarded(partial(self._worker.stop_turn, trajectory))

    def open(self) -> None:
        """Start all queued turns, and start later turns at once."""
        self._is_closed = False
        held, self._held = self._held, {}
        for request in held.values():
            self._guarded(partial(self.start_turn, request))

    def _guarded(self, call: Callable[[], None]) -> None:
        """Call the worker. If it raises, report it as lost, as the scheduler does."""
        guard = ErrorGuard()
        with guard:
            call()
        if guard.error is not None:
            self._report(broken_worker(self.number, guard.error))

    def _return(self, request: TurnRequest) -> None:
        where = request.trajectory, request.turn, request.grant_epoch, request.first_token
        self._report(TurnOutput(self.number, *where, *_NO_TOKENS, TurnEnd.INTERRUPTED))
