"""The service's record of its workers and sequences, updated by the scheduler's events."""

from collections.abc import Callable

from typing_extensions import override

from rose.adapters.gate import GatedWorker
from rose.adapters.sequences import SequenceInFlight
from rose.scheduler.driver_events import Entry, Registered
from rose.scheduler.state import RolloutsState
from rose.scheduler.watching import DriverWatch
from rose.scheduler.worker import VersionCommitted, WorkerLost


class Board(DriverWatch):
    """Passes accepted tokens to their sequences, and records each worker's weight version.

    The scheduler calls it in the event loop's thread.

    Args:
        ended: function to call when a worker ends a turn or is lost.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self.workers: dict[int, int] = {}  # worker → version of its weights
        self.gates: dict[int, GatedWorker] = {}
        self.sequences: dict[int, SequenceInFlight] = {}
        self._ended = ended
        self._state = RolloutsState()

    def fits(self, trajectory: int, worker: int) -> bool:
        """Return whether a sequence accepts the present weights of a worker."""
        sequence, version = self.sequences.get(trajectory), self.workers.get(worker)
        return sequence is None or version is None or sequence.ask.versions.fits(version)

    def versions(self) -> dict[int, int]:
        """Return the number of workers by version of their weights, the oldest version first."""
        held = sorted(self.workers.values())
        return {version: held.count(version) for version in dict.fromkeys(held)}

    @override
    def opened(self, state: RolloutsState) -> None:
        """Keep the state, whose trajectories hold the tokens."""
        self._state = state

    @override
    def add(self, trajectory: int, tokens: int) -> None:
        """Pass new tokens of a trajectory to its sequence."""
        sequence = self.sequences.get(trajectory)
        state = self._state.trajectories.get(trajectory)
        if sequence is not None and state is not None:
            sequence.grow(state)

    @override
    def end(self, trajectory: int, worker: int) -> None:
        """Record that a worker has ended a turn."""
        if (gate := self.gates.get(worker)) is not None:
            gate.ended(trajectory)
        self._ended()

    @override
    def end_all(self, worker: int) -> None:
        """Forget a lost worker's turns."""
        if (gate := self.gates.pop(worker, None)) is not None:
            gate.lost()
        self._ended()

    @override
    def received(self, entry: Entry) -> None:
        """Record workers and versions; fail sequences whose versions no worker has any more."""
        match entry:
            case Registered():
                self.workers[entry.worker] = entry.capabilities.version
            case VersionCommitted() if entry.worker in self.workers:
                self.workers[entry.worker] = entry.version
            case WorkerLost():
                self.workers.pop(entry.worker, None)
            case _:
                return
        self._fail_conflicts()

    def _fail_conflicts(self) -> None:
        there = set(self.workers.values())
        for sequence in tuple(self.sequences.values()):
            wanted = sequence.ask.versions
            if not wanted.is_any and not any(map(wanted.fits, there)):
                sequence.fail(wanted.conflict(there))
