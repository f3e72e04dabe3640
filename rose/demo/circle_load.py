"""The rollouts of the arm `rose`: a borrowed worker's part in the circle, and its record."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from rose.clock import Clock
from rose.demo.record import CircleRecord, TrajectoryCounts
from rose.demo.rl.circle import BORROWED, Circle
from rose.demo.rl.settings import CircleSettings
from rose.demo.workload import RolloutLoad
from rose.engines.transformers import Engine, EngineWorker, LiveWeights
from rose.errors import DeadlineExceeded
from rose.scheduler.worker import WorkerKind

_REVOKED_S: Final = 20.0
_LOOK_S: Final = 0.005
# What idle mode usually finds on a device that is half busy; the scheduler's first guess.
_SHARE: Final = 0.4


class CircleLoad(RolloutLoad):
    """Rollouts with environments, a trainer and another worker behind them.

    Between `resume` and `pause` the borrowed worker has a lease and takes turns; outside it the
    circle goes on with the dedicated worker alone.

    Args:
        engine: the borrower's, built with sampling and not started.
        weights: of its model.
        settings: of the circle.
        wait_s: how long tools take, as in `Circle`.
        seats: most turns at once on the borrowed worker.
        clock: where time comes from.
    """

    def __init__(
        self,
        engine: Engine,
        weights: LiveWeights,
        settings: CircleSettings,
        *,
        wait_s: Callable[[int, int], float],
        seats: int,
        clock: Clock,
    ) -> None:
        super().__init__(engine)
        self.circle = Circle(settings, wait_s=wait_s, clock=clock)
        self._weights = weights
        self._seats = seats
        self._clock = clock
        self._began_s = 0.0
        self._worker = EngineWorker(engine, BORROWED, WorkerKind.BORROWED, self.circle.loop.hear)

    @property
    def tokens(self) -> int:
        """Tokens that the borrowed worker has generated."""
        return self.circle.history.tokens(WorkerKind.BORROWED)

    @property
    def failures(self) -> Sequence[str]:
        """What ended the circle, if anything did."""
        failure = self.circle.failure()
        return [*([] if failure is None else [failure]), *super().failures]

    def start(self) -> None:
        """Start the programs and the engine; the borrowed worker waits for `resume`."""
        self.circle.start()
        self._engine.start()
        self.circle.add_borrowed(self._worker, self._weights, seats=self._seats, share=_SHARE)
        self._began_s = self.circle.history.now_s()

    def resume(self) -> None:
        """Let the borrowed worker take turns."""
        self._worker.grant()

    def pause(self) -> None:
        """Take every turn back from the borrowed worker, with its tokens.

        Raises:
            DeadlineExceeded: it does not give them back.
        """
        self._worker.revoke()
        waited_s = 0.0
        while self.circle.history.is_granted and self._engine.is_running:
            if waited_s > _REVOKED_S:
                raise DeadlineExceeded("the borrowed worker does not give its turns back")
            self._clock.sleep(_LOOK_S)
            waited_s += _LOOK_S

    def stop(self) -> None:
        """Stop the programs and the loop; the engine is its owner's to stop.

        What does not end in time is an incident, and the report comes all the same.
        """
        try:
            self.circle.stop()
        except DeadlineExceeded as error:
            self.circle.history.incident(str(error))

    def record(self) -> CircleRecord:
        """Return what happened; exact after `stop`."""
        circle, history, handoff = self.circle, self.circle.history, self.circle.handoff
        turns = history.turns()
        last = {(turn.trajectory, turn.turn): turn.worker for turn in turns}
        finishing = Counter(last.values())
        taken = {(one.worker, one.version) for one in history.commits if one.is_match}
        committed = Counter(worker for worker, _ in taken)
        return CircleRecord(
            versions=history.versions,
            turns=tuple(sorted(turns, key=lambda turn: turn.start_s)),
            trajectories=TrajectoryCounts(
                **{**asdict(circle.loop.counts()), "resumed": history.moved, "lost": circle.lost()},
                stale=handoff.status.dropped_stale,
                turns_borrowed=finishing[WorkerKind.BORROWED.value],
                turns_dedicated=finishing[WorkerKind.DEDICATED.value],
                passed_over=handoff.passed_over,
            ),
            staleness=tuple(handoff.staleness.elements()),
            spans=history.spans(),
            incidents=history.incidents,
            measured_s=history.now_s() - self._began_s,
            published=handoff.published,
            committed_borrowed=committed[WorkerKind.BORROWED.value],
            committed_dedicated=committed[WorkerKind.DEDICATED.value],
            sent=(handoff.sent_bytes, handoff.dense_bytes) if handoff.dense_bytes else None,
            relayed=circle.relayed.sums(),
        )
