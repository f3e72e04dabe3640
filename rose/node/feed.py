"""Commit staged versions of the weights to a worker, one after the other."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from rose.clock import BootClock
from rose.engines.transformers import EngineWorker, LiveWeights
from rose.scheduler.worker import Worker
from rose.transfer.manifest import StagedVersion, Subscription, Version
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.receiving.scrub import Scrub
from rose.transfer.source import Source


class CommittingWorker(Worker, Protocol):
    """A worker whose weights can change."""

    def commit(
        self, commit: Any, version: int, on_done: Callable[[Any], None] | None = None
    ) -> None:
        """Change the weights at the next step boundary, then call `on_done`."""
        ...


class StagedReceiver(Protocol):
    """The part of a `rose.transfer` receiver that a feed needs."""

    def take_staged(self) -> Any:
        """Return the staged version, or None. The caller must call `report` for each version."""
        ...

    def report(self, outcome: Any) -> None:
        """Take the outcome of the version's commit."""
        ...


class WeightFeed:
    """Commits each staged version of a receiver, and reports the outcome.

    It never waits: the receiver's thread begins a commit, the engine's thread ends it.
    """

    def __init__(
        self,
        worker: CommittingWorker,
        make_commit: Callable[[Any], tuple[Any, int]],
        on_reported: Callable[[Any], None] = lambda _commit: None,
    ) -> None:
        """Prepare to feed a worker.

        Args:
            worker: worker that gets the weights.
            make_commit: function that returns the transaction that commits a staged version, and
                the version's number. The transaction has an `outcome` when it ends.
            on_reported: called with each transaction after its outcome was reported, in the
                worker's thread.
        """
        self._worker = worker
        self._make_commit = make_commit
        self._on_reported = on_reported
        self._receiver: StagedReceiver | None = None

    def attach(self, receiver: StagedReceiver) -> None:
        """Start taking versions from `receiver`, which may have called `on_staged` already."""
        self._receiver = receiver
        self.on_staged()

    def on_staged(self) -> None:
        """Begin the commit of the ready version, if any."""
        receiver = self._receiver
        if receiver is None:
            return
        staged = receiver.take_staged()
        if staged is None:
            return
        commit, version = self._make_commit(staged)

        def report(_committed: object) -> None:
            receiver.report(commit.outcome)
            self._on_reported(commit)

        self._worker.commit(commit, version, on_done=report)


def receive(
    source: Source, weights: LiveWeights, worker: EngineWorker, *, version: int
) -> Receiver:
    """Start committing versions to `weights`, at the step boundaries of `worker`.

    After each commit the weights are scrubbed between steps, and corrupt tiles are repaired.

    Args:
        source: publisher or relay.
        weights: live weights of the worker's model.
        worker: worker that commits the versions.
        version: number of the present weights; the source identifies these by their digest.

    Returns:
        The receiver; close it to stop.
    """
    first = weights.digests()
    last: deque[Commit] = deque(maxlen=1)

    def make_commit(staged: StagedVersion) -> tuple[Commit, int]:
        # Digests of the tiles after the previous commit, so that only changed tiles are read again.
        digests = last[0].digests if last else first
        last.append(Commit(staged, weights, receiver.digest, digests=digests))
        return last[0], staged.manifest.version.n

    def scrub(commit: Commit) -> None:
        if commit.digests is not None:
            fresh = Scrub(weights, commit.digests, clock=BootClock(), repair=weights.repair)
            worker.scrub(fresh, scrubbed)

    def scrubbed(scrub: Scrub) -> None:
        if scrub.corrupted:
            receiver.repair(scrub.digests)

    feed = WeightFeed(worker, make_commit, scrub)
    receiver = Receiver(
        source,
        f"worker-{worker.number}",
        Version("", 0, version),
        first.total,
        Subscription(weights.cut),
        feed.on_staged,
        base=weights.bits,
        digests=first.copy(),
    )
    feed.attach(receiver)
    return receiver
