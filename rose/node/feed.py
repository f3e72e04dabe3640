"""Commit staged versions of the weights to a worker, one after the other."""

from functools import partial

from rose.clock import BootClock
from rose.engines.transformers import Committed, EngineWorker, LiveWeights
from rose.transfer.manifest import Subscription, Version
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.receiving.scrub import Scrub
from rose.transfer.source import Source


def receive(
    source: Source, weights: LiveWeights, worker: EngineWorker, *, version: int
) -> Receiver:
    """Start committing versions to `weights`, at the step boundaries of `worker`.

    No thread waits: the receiver's thread begins a commit, the engine's thread ends it. After each
    commit the weights are scrubbed between steps, and corrupt tiles are repaired.

    Args:
        source: publisher or relay.
        weights: live weights of the worker's model.
        worker: worker that commits the versions.
        version: number of the present weights; the source identifies these by their digest.

    Returns:
        The receiver; close it to stop.
    """
    first = weights.digests()
    last: Commit | None = None
    receiver: Receiver | None = None

    def on_staged() -> None:
        nonlocal last
        # The receiver may call this before its constructor returns; then the call below commits.
        staged = None if receiver is None else receiver.take_staged()
        if receiver is None or staged is None:
            return
        # Digests of the tiles after the previous commit, so that only changed tiles are read again.
        digests = first if last is None else last.digests
        last = Commit(staged, weights, receiver.digest, digests=digests)
        worker.commit(last, staged.manifest.version.n, partial(committed, receiver, last))

    def committed(receiver: Receiver, commit: Commit, _result: Committed) -> None:
        receiver.report(commit.outcome)
        if commit.digests is not None:
            scrub = Scrub(weights, commit.digests, clock=BootClock(), repair=weights.repair)
            worker.scrub(scrub, partial(scrubbed, receiver))

    def scrubbed(receiver: Receiver, scrub: Scrub) -> None:
        if scrub.corrupted:
            receiver.repair(scrub.digests)

    receiver = Receiver(
        source,
        f"worker-{worker.number}",
        Version("", 0, version),
        first.total,
        Subscription(weights.cut),
        on_staged,
        base=weights.bits,
        digests=first.copy(),
    )
    on_staged()
    return receiver
