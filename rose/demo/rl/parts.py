"""Which worker ran which part of which turn, and when: for reports."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rose.clock import Clock
from rose.scheduler.state import Gone, Outcome
from rose.scheduler.turns import TurnResult
from rose.scheduler.watching import FrontWatch
from rose.scheduler.worker import TurnRequest, WorkerKind


@dataclass(frozen=True, slots=True)
class Part:
    """A turn on one worker, or the part of it that ran there.

    Args:
        trajectory: whose.
        turn: which, from 0.
        worker: number of the worker.
        kind: of the worker.
        start_ns: when the worker was asked.
        end_ns: when it said that the turn ended there; 0 while it has not.
        tokens: generated there.
        is_resumed: whether the turn began elsewhere, or earlier.
    """

    trajectory: int
    turn: int
    worker: int
    kind: WorkerKind
    start_ns: int
    end_ns: int
    tokens: int
    is_resumed: bool


class Parts(FrontWatch):
    """Books of all parts. The scheduler's thread writes; `done` may be read by any."""

    def __init__(self, clock: Clock) -> None:
        """Start without any."""
        self._clock = clock
        self._lock = threading.Lock()  # Guards `_done`.
        self._done: list[Part] = []
        self._open: dict[int, Part] = {}
        self._resumed: set[int] = set()

    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """Note that `worker` was asked; a part of the trajectory that is still open ends."""
        self._put_away(request.trajectory)
        is_resumed = request.first_token > 0
        if is_resumed:
            self._resumed.add(request.trajectory)
        self._open[request.trajectory] = Part(
            trajectory=request.trajectory,
            turn=request.turn,
            worker=worker,
            kind=kind,
            start_ns=self._clock.now_ns(),
            end_ns=0,
            tokens=0,
            is_resumed=is_resumed,
        )

    def add(self, trajectory: int, tokens: int) -> None:
        """Note tokens of the part; they may come after its end."""
        part = self._open[trajectory]
        self._open[trajectory] = replace(part, tokens=part.tokens + tokens)

    def end(self, trajectory: int, worker: int) -> None:
        """Note that the part ended, if it is one of `worker`."""
        part = self._open.get(trajectory)
        if part is not None and part.worker == worker and not part.end_ns:
            self._open[trajectory] = replace(part, end_ns=self._clock.now_ns())

    def end_all(self, worker: int) -> None:
        """Note that a worker is gone."""
        for trajectory in self._open:
            self.end(trajectory, worker)

    def stepped(self, outcomes: Sequence[Outcome]) -> None:
        """Put the parts of turns away that are over: nothing more will be said of them."""
        for outcome in outcomes:
            if isinstance(outcome, TurnResult | Gone):
                self._put_away(outcome.trajectory)

    def _put_away(self, trajectory: int) -> None:
        part = self._open.pop(trajectory, None)
        if part is None:
            return
        with self._lock:
            self._done.append(replace(part, end_ns=part.end_ns or self._clock.now_ns()))

    @property
    def resumed(self) -> int:
        """How many trajectories had a turn that was taken up again."""
        return len(self._resumed)

    def done(self) -> list[Part]:
        """Return the parts that were put away, in that order."""
        with self._lock:
            return list(self._done)
