"""History of an RL loop for reports: versions, commits, grants, incidents and turns."""

import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from rose.clock import Clock
from rose.scheduler.driver_events import Entry, Registered
from rose.scheduler.state import Gone, Outcome
from rose.scheduler.turns import TurnResult
from rose.scheduler.watching import DriverWatch
from rose.scheduler.worker import (
    GrantChanged,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerEvent,
    WorkerKind,
    WorkerLost,
)
from rose.transfer.manifest import Manifest
from rose.units import NS_PER_S
from rose_lab.demo.record import CommitRecord, TurnRecord, VersionRecord

_BYTES_PER_ELEMENT: Final = 2


class History(DriverWatch):
    """Records events of the scheduler, its workers and the receivers. Thread-safe.

    A turn consists of parts, one for each worker that ran it. A part stays open, for late tokens,
    until the turn finishes or moves.

    Attributes:
        resumed: numbers of the trajectories with a resumed turn.
        moved: (trajectory, turn) of each turn that ran on more than one worker.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # Guards all below.
        self._kinds: dict[int, WorkerKind] = {}
        self._tokens: Counter[WorkerKind] = Counter()
        self._versions: dict[tuple[int, bool], VersionRecord] = {}
        self._commits: list[CommitRecord] = []
        self._incidents: list[tuple[float, str]] = []
        self._spans: list[tuple[float, float]] = []
        self._granted_s: float | None = None
        self._turns: list[TurnRecord] = []
        self._open: dict[int, TurnRecord] = {}
        self._ended: set[int] = set()  # trajectories in `_open` whose part has ended
        self.resumed: set[int] = set()
        self.moved: set[tuple[int, int]] = set()

    def now_s(self) -> float:
        """Return the current time of the history's clock."""
        return self._clock.now_ns() / NS_PER_S

    # ---- workers --------------------------------------------------------------------------------

    def received(self, entry: Entry) -> None:
        """Record a worker's registration, and the events of registered workers."""
        with self._lock:
            match entry:
                case Registered():
                    self._kinds[entry.worker] = entry.kind
                case TurnOutput() | VersionCommitted() | GrantChanged() | WorkerLost():
                    if (kind := self._kinds.get(entry.worker)) is not None:
                        self._receive(entry, kind, self.now_s())

    def _receive(self, event: WorkerEvent, kind: WorkerKind, now_s: float) -> None:
        match event:
            case TurnOutput():
                self._tokens[kind] += len(event.tokens)
            case VersionCommitted():
                commit = CommitRecord(
                    kind.value, now_s, event.pause_ms, event.is_match, event.version
                )
                self._commits.append(commit)
                if not event.is_match:
                    what = f"{kind.value} worker undid a commit; it is at version {event.version}"
                    self._incidents.append((now_s, what))
            case GrantChanged() if kind is WorkerKind.BORROWED:
                self._lease(is_live=event.kv_tokens > 0, now_s=now_s)
            case WorkerLost():
                if kind is WorkerKind.BORROWED:
                    self._lease(is_live=False, now_s=now_s)
                self._incidents.append((now_s, f"{kind.value} worker lost: {event.reason}"))

    def _lease(self, *, is_live: bool, now_s: float) -> None:
        if is_live and self._granted_s is None:
            self._granted_s = now_s
        elif not is_live and self._granted_s is not None:
            self._spans.append((self._granted_s, now_s))
            self._granted_s = None

    def incident(self, what: str) -> None:
        """Record a fault from which the loop recovered."""
        with self._lock:
            self._incidents.append((self.now_s(), what))

    @property
    def is_granted(self) -> bool:
        """True if the borrowed worker has a capacity grant."""
        return self._granted_s is not None

    @property
    def incidents(self) -> tuple[tuple[float, str], ...]:
        """Incidents as (time, sentence), in time order."""
        with self._lock:
            return tuple(self._incidents)

    def spans(self) -> tuple[tuple[float, float], ...]:
        """Return (from, to) of each interval in which the borrowed worker had a grant."""
        with self._lock:
            last = () if self._granted_s is None else ((self._granted_s, self.now_s()),)
            return (*self._spans, *last)

    def tokens(self, kind: WorkerKind) -> int:
        """Return the number of tokens that workers of a kind reported."""
        with self._lock:
            return self._tokens[kind]

    # ---- versions -------------------------------------------------------------------------------

    def version(self, manifest: Manifest) -> None:
        """Record a version offered to a receiver; ignore a manifest without a change."""
        if manifest.base == manifest.version:
            return
        chunks = manifest.chunks
        seen = VersionRecord(
            n=manifest.version.n,
            published_s=self.now_s(),
            density=sum(chunk.changed for chunk in chunks) / manifest.count,
            bytes_sent=sum(chunk.nbytes for chunk in chunks),
            dense_bytes=manifest.count * _BYTES_PER_ELEMENT,
            commits=(),
        )
        with self._lock:
            self._versions.setdefault((seen.n, manifest.base is None), seen)

    @property
    def commits(self) -> tuple[CommitRecord, ...]:
        """Commits in time order."""
        with self._lock:
            return tuple(self._commits)

    @property
    def versions(self) -> tuple[VersionRecord, ...]:
        """One record per version number, with its commits.

        A version may be sent both as a delta and as a snapshot; its record has the sum of the bytes
        of both. An undone commit reports the previous version, so the commit is recorded under the
        next higher version.
        """
        with self._lock:
            seen, commits = dict(self._versions), tuple(self._commits)
        by_number: dict[int, list[VersionRecord]] = {}
        for key in sorted(seen):
            by_number.setdefault(key[0], []).append(seen[key])
        taken: dict[int, list[CommitRecord]] = {n: [] for n in by_number}
        for commit in commits:
            n = commit.version if commit.is_match else _first_above(commit.version, by_number)
            taken.get(n, []).append(commit)
        return tuple(
            VersionRecord(
                n=n,
                published_s=min(one.published_s for one in ones),
                density=min(one.density for one in ones),
                bytes_sent=sum(one.bytes_sent for one in ones),
                dense_bytes=ones[0].dense_bytes,
                commits=tuple(taken[n]),
            )
            for n, ones in by_number.items()
        )

    # ---- turns ----------------------------------------------------------------------------------

    def begin(self, request: TurnRequest, worker: int, kind: WorkerKind) -> None:
        """Record that `worker` was asked to run a turn; this ends the trajectory's open part."""
        with self._lock:
            before = self._open.get(request.trajectory)
            if before is not None and before.turn == request.turn and before.number != worker:
                self.moved.add((request.trajectory, request.turn))
            self._put_away(request.trajectory)
            is_resumed = request.first_token > 0
            if is_resumed:
                self.resumed.add(request.trajectory)
            self._open[request.trajectory] = TurnRecord(
                trajectory=request.trajectory,
                turn=request.turn,
                worker=kind.value,
                start_s=self.now_s(),
                end_s=0.0,
                tokens=0,
                is_resumed=is_resumed,
                number=worker,
            )

    def add(self, trajectory: int, tokens: int) -> None:
        """Add tokens to the open part; they may arrive after its end."""
        with self._lock:
            part = self._open[trajectory]
            self._open[trajectory] = replace(part, tokens=part.tokens + tokens)

    def end(self, trajectory: int, worker: int) -> None:
        """Record the end of the open part, if it runs on `worker`."""
        with self._lock:
            part = self._open.get(trajectory)
            if part is not None and part.number == worker and trajectory not in self._ended:
                self._ended.add(trajectory)
                self._open[trajectory] = replace(part, end_s=self.now_s())

    def end_all(self, worker: int) -> None:
        """End all parts of a lost worker."""
        for trajectory in self._open:
            self.end(trajectory, worker)

    def stepped(self, outcomes: Sequence[Outcome]) -> None:
        """Store the parts of finished turns, which get no more events."""
        with self._lock:
            for outcome in outcomes:
                if isinstance(outcome, TurnResult | Gone):
                    self._put_away(outcome.trajectory)

    def _put_away(self, trajectory: int) -> None:
        self.end(trajectory, self._open[trajectory].number if trajectory in self._open else -1)
        self._ended.discard(trajectory)
        if (part := self._open.pop(trajectory, None)) is not None:
            self._turns.append(part)

    def turns(self) -> list[TurnRecord]:
        """Return the stored parts, oldest first."""
        with self._lock:
            return list(self._turns)


class RelayedBytes:
    """Sums the bytes that all incarnations of the relay report.

    A killed relay leaves up to half a second of traffic unreported, so the sums lack this traffic.
    Only one thread calls `begin` and `receive`. Any thread may call `sums`, but during `begin` the
    result may count an incarnation twice.
    """

    def __init__(self) -> None:
        self._before = self._now = (0, 0)

    def begin(self) -> None:
        """Start to count a new incarnation from zero."""
        self._before, self._now = self.sums(), (0, 0)

    def receive(self, line: str) -> None:
        """Read a line of the relay's output; ignore lines without byte counts."""
        try:
            figures = json.loads(line)
        except ValueError:
            return
        match figures:
            case {"crossing_bytes": int(crossing), "sent_bytes": int(sent)}:
                self._now = crossing, sent

    def sums(self) -> tuple[int, int]:
        """Return the bytes from trainer to relay, and from relay to workers."""
        before, now = self._before, self._now
        return before[0] + now[0], before[1] + now[1]


def _first_above(version: int, numbers: Iterable[int]) -> int:
    """Return the smallest number above `version`; the largest number if none is above."""
    return min((n for n in numbers if n > version), default=max(numbers, default=version))
