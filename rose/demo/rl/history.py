"""What happened in a circle, for reports: versions, commits, leases, incidents and turns."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rose.clock import Clock
from rose.scheduler.front_events import Entry, Registered
from rose.scheduler.state import Gone, Outcome
from rose.scheduler.turns import TurnResult
from rose.scheduler.watching import FrontWatch
from rose.scheduler.worker import (
    LeaseChanged,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerEvent,
    WorkerKind,
    WorkerLost,
)
from rose.transfer.manifest import Manifest
from rose.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """A version as a receiver heard of it.

    Args:
        n: its number.
        at_s: when.
        is_seed: whether it is whole and not a change of the one before.
        changed: elements that differ.
        count: elements of the weights.
        nbytes: of its chunks, as they go to one receiver.
    """

    n: int
    at_s: float
    is_seed: bool
    changed: int
    count: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """A worker took a version, or went back to the one before."""

    kind: WorkerKind
    at_s: float
    version: int
    pause_ms: float
    is_match: bool


class History(FrontWatch):
    """Notes what the scheduler hears of workers, and what receivers report; any thread."""

    def __init__(self, clock: Clock) -> None:
        """Start empty."""
        self._clock = clock
        self._lock = threading.Lock()  # Guards all below.
        self._kinds: dict[int, WorkerKind] = {}
        self._tokens: Counter[WorkerKind] = Counter()
        self._versions: dict[tuple[int, bool], SeenVersion] = {}
        self._commits: list[SeenCommit] = []
        self._incidents: list[tuple[float, str]] = []
        self._spans: list[tuple[float, float]] = []
        self._granted_s: float | None = None

    def now_s(self) -> float:
        """Return the time on the clock of the history."""
        return self._clock.now_ns() / NS_PER_S

    def heard(self, entry: Entry) -> None:
        """Note a worker that registers, and the events of those that did."""
        with self._lock:
            match entry:
                case Registered():
                    self._kinds[entry.worker] = entry.kind
                case TurnOutput() | VersionCommitted() | LeaseChanged() | WorkerLost():
                    if (kind := self._kinds.get(entry.worker)) is not None:
                        self._hear(entry, kind, self.now_s())

    def _hear(self, event: WorkerEvent, kind: WorkerKind, now_s: float) -> None:
        match event:
            case TurnOutput():
                self._tokens[kind] += len(event.tokens)
            case VersionCommitted():
                self._commit(event, kind, now_s)
            case LeaseChanged() if kind is WorkerKind.BORROWED:
                self._lease(is_live=event.kv_tokens > 0, now_s=now_s)
            case WorkerLost():
                if kind is WorkerKind.BORROWED:
                    self._lease(is_live=False, now_s=now_s)
                self._incidents.append((now_s, f"{kind.value} worker lost: {event.reason}"))

    def _commit(self, event: VersionCommitted, kind: WorkerKind, now_s: float) -> None:
        commit = SeenCommit(kind, now_s, event.version, event.pause_ms, event.is_match)
        self._commits.append(commit)
        if not event.is_match:
            said = f"{kind.value} worker could not take a version; it is at {event.version}"
            self._incidents.append((now_s, said))

    def _lease(self, *, is_live: bool, now_s: float) -> None:
        if is_live and self._granted_s is None:
            self._granted_s = now_s
        elif not is_live and self._granted_s is not None:
            self._spans.append((self._granted_s, now_s))
            self._granted_s = None

    def version(self, manifest: Manifest) -> None:
        """Note a version that a receiver may take; one that only says what is there is none."""
        if manifest.base == manifest.version:
            return
        chunks = manifest.chunks
        seen = SeenVersion(
            n=manifest.version.n,
            at_s=self.now_s(),
            is_seed=manifest.base is None,
            changed=sum(chunk.changed for chunk in chunks),
            count=manifest.count,
            nbytes=sum(chunk.nbytes for chunk in chunks),
        )
        with self._lock:
            self._versions.setdefault((seen.n, seen.is_seed), seen)

    def incident(self, said: str) -> None:
        """Note something that should not have happened, and was survived."""
        with self._lock:
            self._incidents.append((self.now_s(), said))

    @property
    def is_granted(self) -> bool:
        """Whether the borrowed worker has a lease."""
        with self._lock:
            return self._granted_s is not None

    @property
    def incidents(self) -> tuple[tuple[float, str], ...]:
        """(time, sentence), in the order of time."""
        with self._lock:
            return tuple(self._incidents)

    @property
    def commits(self) -> tuple[SeenCommit, ...]:
        """In the order of time."""
        with self._lock:
            return tuple(self._commits)

    @property
    def versions(self) -> tuple[SeenVersion, ...]:
        """Those with a change or a whole, by number."""
        with self._lock:
            return tuple(self._versions[key] for key in sorted(self._versions))

    def spans(self) -> tuple[tuple[float, float], ...]:
        """Return (from, to) of each time in which the borrowed worker had a lease."""
        with self._lock:
            last = () if self._granted_s is None else ((self._granted_s, self.now_s()),)
            return (*self._spans, *last)

    def tokens(self, kind: WorkerKind) -> int:
        """Return how many tokens workers of a kind reported."""
        with self._lock:
            return self._tokens[kind]


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
