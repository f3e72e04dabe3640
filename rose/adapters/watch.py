"""The service's view of its scheduler: the workers, and the tokens as they come."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from rose.adapters.fleet_limits import FleetLimits
from rose.adapters.sequences import SequenceInFlight
from rose.scheduler.driver_events import Entry, Registered
from rose.scheduler.state import Outcome, RolloutsState
from rose.scheduler.watching import DriverWatch
from rose.scheduler.worker import (
    GrantChanged,
    TurnOutput,
    VersionCommitted,
    WorkerKind,
    WorkerLost,
)


@dataclass(slots=True)
class WorkerView:
    """A registered worker.

    Args:
        kind: dedicated or borrowed.
        version: version of its weights.
        job: number of the job whose trajectories it runs.
        granted_tokens: most tokens that a grant has let it hold; 0 before the first grant.
        limits: its limits; None: unknown.
    """

    kind: WorkerKind
    version: int
    job: int
    granted_tokens: int = 0
    limits: FleetLimits | None = None

    @property
    def context_tokens(self) -> int:
        """Most tokens of context that it can ever hold; 0 if that is not known."""
        if self.limits is not None and self.limits.context_tokens:
            return self.limits.context_tokens
        # The grants of a borrowed worker grow and shrink.
        return self.granted_tokens if self.kind is WorkerKind.DEDICATED else 0


class ServiceWatch(DriverWatch):
    """Records workers, and passes new tokens to their sequences after each step.

    The scheduler calls it in the event loop's thread.

    Args:
        changed: function to call when a worker joins, commits a version or is lost.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.workers: dict[int, WorkerView] = {}
        self.sequences: dict[int, SequenceInFlight] = {}  # by trajectory
        self._changed = changed
        self._state = RolloutsState()
        self._grown: set[SequenceInFlight] = set()
        self._limits: FleetLimits | None = None  # until a worker changes

    def versions(self) -> dict[int, int]:
        """Return the number of workers by version of their weights, the oldest version first."""
        held = sorted(one.version for one in self.workers.values())
        return {version: held.count(version) for version in dict.fromkeys(held)}

    def newest(self) -> int:
        """Return the newest version that a worker has; 0 without workers."""
        return max((one.version for one in self.workers.values()), default=0)

    def jobs(self) -> set[int]:
        """Return the numbers of the jobs that the workers run."""
        return {one.job for one in self.workers.values()}

    def limit(self, worker: int, limits: FleetLimits | None) -> None:
        """Record the limits of a registered worker; None: it has none of the optional features."""
        if worker in self.workers:
            self.workers[worker].limits = limits
            self._limits = None

    def limits(self) -> FleetLimits:
        """Return the limits that all registered workers have together."""
        if self._limits is None:
            self._limits = self._common()
        return self._limits

    def _common(self) -> FleetLimits:
        told = [one.limits for one in self.workers.values() if one.limits is not None]
        sizes = [one.vocabulary for one in told if one.vocabulary is not None]
        contexts = [one.context_tokens for one in self.workers.values()]
        features: frozenset[str] = frozenset()
        if told and len(told) == len(self.workers):
            features = frozenset.intersection(*(one.features for one in told))
        return FleetLimits(
            vocabulary=min(sizes, default=None),
            context_tokens=max(contexts) if contexts and all(contexts) else 0,
            eos_token_ids=tuple(dict.fromkeys(i for one in told for i in one.eos_token_ids)),
            features=features,
            model=next((one.model for one in told if one.model is not None), None),
        )

    @override
    def opened(self, state: RolloutsState) -> None:
        """Keep the state, whose trajectories hold the tokens."""
        self._state = state

    @override
    def add(self, trajectory: int, tokens: int) -> None:
        """Record that a trajectory has new tokens, if somebody waits for them."""
        sequence = self.sequences.get(trajectory)
        if sequence is not None and sequence.is_watched:
            self._grown.add(sequence)

    @override
    def stepped(self, outcomes: Sequence[Outcome]) -> None:
        """Pass new tokens of running turns on; a turn that has ended returns all of its tokens."""
        if self._grown:
            trajectories = self._state.trajectories
            grown, self._grown = self._grown, set()
            for sequence in grown:
                state = trajectories.get(sequence.number)
                if state is not None:
                    sequence.grow(state)

    def take(self, sequence: SequenceInFlight) -> None:
        """Pass the new tokens of a running turn to its sequence."""
        state = self._state.trajectories.get(sequence.number)
        if state is not None and self.sequences.get(sequence.number) is sequence:
            sequence.grow(state)

    @override
    def received(self, entry: Entry) -> None:
        """Record workers, versions and grants."""
        match entry:
            case TurnOutput():
                return
            case Registered():
                can = entry.capabilities
                self.workers[entry.worker] = WorkerView(entry.kind, can.version, can.job)
            case VersionCommitted() if entry.worker in self.workers:
                self.workers[entry.worker].version = entry.version
            case GrantChanged() if entry.worker in self.workers:
                there = self.workers[entry.worker]
                if entry.kv_tokens > there.granted_tokens:
                    there.granted_tokens = entry.kv_tokens
                    self._limits = None
                return
            case WorkerLost():
                self.workers.pop(entry.worker, None)
            case _:
                return
        self._limits = None
        self._changed()
