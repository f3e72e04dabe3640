"""The rollouts of the arm `rose`: a borrowed worker's part in the circle, and its record."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from rose.clock import Clock
from rose.demo.record import (
    CircleRecord,
    CommitRecord,
    TrajectoryCounts,
    TurnRecord,
    VersionRecord,
)
from rose.demo.rl.circle import BORROWED, Circle
from rose.demo.rl.history import Part, SeenCommit, SeenVersion
from rose.demo.rl.settings import CircleSettings
from rose.engines.transformers import Engine, EngineWorker, LiveWeights
from rose.errors import DeadlineExceeded
from rose.scheduler.worker import WorkerKind
from rose.units import NS_PER_S

_REVOKED_S: Final = 20.0
_LOOK_S: Final = 0.005
_BYTES_PER_ELEMENT: Final = 2
# What idle mode usually finds on a device that is half busy; the scheduler's first guess.
_SHARE: Final = 0.4


class CircleLoad:
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
        self._engine = engine
        self.circle = Circle(settings, wait_s=wait_s, clock=clock)
        self._weights = weights
        self._seats = seats
        self._clock = clock
        self._began_s = 0.0
        self._worker = EngineWorker(engine, BORROWED, WorkerKind.BORROWED, self.circle.hear)

    @property
    def tokens(self) -> int:
        """Tokens that the borrowed worker has generated."""
        return self.circle.history.tokens(WorkerKind.BORROWED)

    @property
    def failures(self) -> list[str]:
        """What ended the circle, if anything did."""
        found = (self.circle.failure(), self._engine.error)
        return [str(one) for one in found if one is not None]

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
        history, watch = self.circle.history, self.circle.watch
        counts, parts = self.circle.loop.counts(), self.circle.loop.parts.done()
        turns: dict[tuple[int, int], list[Part]] = {}
        for part in parts:
            turns.setdefault((part.trajectory, part.turn), []).append(part)
        finishing = Counter(of_turn[-1].kind for of_turn in turns.values())
        return CircleRecord(
            versions=_versions(history.versions, history.commits),
            turns=tuple(sorted(map(_turn, parts), key=lambda turn: turn.start_s)),
            trajectories=TrajectoryCounts(
                started=counts.started,
                finished=counts.finished,
                in_flight=counts.in_flight,
                resumed=sum(
                    len({part.worker for part in of_turn}) > 1 for of_turn in turns.values()
                ),
                lost=self.circle.lost(),
                stale=watch.stale,
                dropped=counts.dropped,
                turns_borrowed=finishing[WorkerKind.BORROWED],
                turns_dedicated=finishing[WorkerKind.DEDICATED],
                passed_over=watch.passed_over,
            ),
            staleness=tuple(watch.staleness.elements()),
            spans=history.spans(),
            incidents=history.incidents,
            measured_s=history.now_s() - self._began_s,
            published=watch.published,
            committed_borrowed=_committed(history.commits, WorkerKind.BORROWED),
            committed_dedicated=_committed(history.commits, WorkerKind.DEDICATED),
            sent=(watch.sent_bytes, watch.dense_bytes) if watch.dense_bytes else None,
            relayed=(self.circle.relayed.crossing_bytes, self.circle.relayed.sent_bytes),
        )


def _turn(part: Part) -> TurnRecord:
    return TurnRecord(
        trajectory=part.trajectory,
        turn=part.turn,
        worker=part.kind.value,
        start_s=part.start_ns / NS_PER_S,
        end_s=part.end_ns / NS_PER_S,
        tokens=part.tokens,
        is_resumed=part.is_resumed,
    )


def _committed(commits: Iterable[SeenCommit], kind: WorkerKind) -> int:
    """Count the versions that workers of a kind took; the one they began with is none."""
    return len({one.version for one in commits if one.kind is kind and one.is_match})


def _versions(
    versions: tuple[SeenVersion, ...], commits: tuple[SeenCommit, ...]
) -> tuple[VersionRecord, ...]:
    """Return one record for each number, with what workers did with it.

    A version may come twice, as a change and whole: what was sent is of both. A commit that went
    back names the version before, so it belongs to the first one above.
    """
    by_number: dict[int, list[SeenVersion]] = {}
    for seen in versions:
        by_number.setdefault(seen.n, []).append(seen)
    taken: dict[int, list[CommitRecord]] = {n: [] for n in by_number}
    for commit in commits:
        n = commit.version if commit.is_match else _first_above(commit.version, by_number)
        if n in taken:
            taken[n].append(
                CommitRecord(
                    worker=commit.kind.value,
                    at_s=commit.at_s,
                    pause_ms=commit.pause_ms,
                    is_match=commit.is_match,
                )
            )
    return tuple(
        VersionRecord(
            n=n,
            published_s=min(one.at_s for one in seen),
            density=min(one.changed / one.count for one in seen),
            bytes_sent=sum(one.nbytes for one in seen),
            dense_bytes=seen[0].count * _BYTES_PER_ELEMENT,
            commits=tuple(taken[n]),
        )
        for n, seen in by_number.items()
    )


def _first_above(version: int, numbers: Iterable[int]) -> int:
    """Return the smallest number above `version`; the largest there is if none is."""
    return min((n for n in numbers if n > version), default=max(numbers, default=version))
