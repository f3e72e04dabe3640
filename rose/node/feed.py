"""Brings staged versions of the weights into a worker, one after the other."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from rose.clock import BootClock
from rose.engines.transformers import EngineWorker, LiveWeights
from rose.scheduler.worker import Worker
from rose.transfer.manifest import StagedVersion
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.receiving.sweep import Sweep
from rose.transfer.source import Source
from rose.transfer.version import Version


class CommittingWorker(Worker, Protocol):
    """A worker whose weights can change."""

    def commit(
        self, commit: Any, version: int, on_done: Callable[[Any], None] | None = None
    ) -> None:
        """Change the weights at the next step boundary; `on_done` is told when that is over."""
        ...


class StagedReceiver(Protocol):
    """A `rose.transfer` receiver, as far as it is fed from."""

    def take_staged(self) -> Any:
        """Return the version that lies ready, or None; `report` must follow."""
        ...

    def report(self, outcome: Any) -> None:
        """Take what came of it."""
        ...


class WeightFeed:
    """Takes each version that a receiver has staged, has it committed, and reports the outcome.

    It waits for nobody: the receiver's thread begins a commit, the engine's thread ends it.
    """

    def __init__(
        self,
        worker: CommittingWorker,
        make_commit: Callable[[Any], tuple[Any, int]],
        on_reported: Callable[[Any], None] = lambda _commit: None,
    ) -> None:
        """Prepare to feed a worker.

        Args:
            worker: whose weights change.
            make_commit: returns the transaction for a staged version, which has an `outcome` when
                it is over, and the number of that version.
            on_reported: takes each transaction when it is over and the receiver knows; in the
                worker's thread.
        """
        self._worker = worker
        self._make_commit = make_commit
        self._on_reported = on_reported
        self._receiver: StagedReceiver | None = None

    def attach(self, receiver: StagedReceiver) -> None:
        """Begin to take from `receiver`; it may have called `on_staged` before."""
        self._receiver = receiver
        self.on_staged()

    def on_staged(self) -> None:
        """Begin the commit of what lies ready, if something does."""
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
    """Begin to bring versions into `weights`, at the step boundaries of `worker`.

    After each commit the weights are swept between steps; tiles that drifted are repaired.

    Args:
        source: the publisher.
        weights: of the worker's model.
        worker: commits.
        version: number of the weights as they are; the digest tells the publisher which they are.
    """
    first = weights.digests()
    last: deque[Commit] = deque(maxlen=1)

    def make_commit(staged: StagedVersion) -> tuple[Commit, int]:
        # The tiles' digests as the commit before left them: only what changes is read again.
        digests = last[0].digests if last else first
        last.append(Commit(staged, weights, receiver.digest, digests=digests))
        return last[0], staged.manifest.version.n

    def sweep(commit: Commit) -> None:
        if commit.digests is not None:
            fresh = Sweep(weights, commit.digests, clock=BootClock(), mend=weights.mend)
            worker.sweep(fresh, swept)

    def swept(sweep: Sweep) -> None:
        if sweep.drifted:
            receiver.drifted(sweep.digests)

    feed = WeightFeed(worker, make_commit, sweep)
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
