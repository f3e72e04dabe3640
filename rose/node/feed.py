"""Commit staged versions of the weights to a worker, one after the other."""

from functools import partial

from rose.clock import BootClock
from rose.engines.transformers import Committed, EngineWorker, LiveWeights
from rose.transfer.manifest import Subscription, Version
from rose.transfer.received import WeightReceiver
from rose.transfer.receiving.commit import Commit
from rose.transfer.receiving.scrub import Scrub
from rose.transfer.source import Source


def receive(
    source: Source, weights: LiveWeights, worker: EngineWorker, *, name: str, version: int
) -> WeightReceiver:
    """Start committing versions to `weights`, at the step boundaries of `worker`.

    No thread waits: the receiver's thread begins a commit, the engine's thread ends it. After each
    commit the weights are scrubbed between steps, and corrupt tiles are repaired.

    Args:
        source: publisher or relay.
        weights: live weights of the worker's model.
        worker: worker that commits the versions.
        name: name of the receiver, which no other receiver of the source may have.
        version: number of the present weights; the source identifies these by their digest.

    Returns:
        The receiver; close it to stop.
    """
    made: WeightReceiver | None = None

    def on_staged() -> None:
        # The receiver may call this before its constructor returns; then the call below commits.
        commit = None if made is None else made.take()
        if made is not None and commit is not None:
            n = commit.staged.manifest.version.n
            worker.commit(commit, n, partial(committed, made, commit))

    def committed(made: WeightReceiver, commit: Commit, _result: Committed) -> None:
        made.settle(commit)
        if commit.digests is not None:
            scrub = Scrub(weights, commit.digests, clock=BootClock(), repair=weights.repair)
            worker.scrub(scrub, partial(scrubbed, made))

    def scrubbed(made: WeightReceiver, scrub: Scrub) -> None:
        if scrub.corrupted:
            made.repair(scrub.digests)

    made = WeightReceiver(
        weights,
        Subscription(weights.cut),
        source,
        name=name,
        held=Version("", 0, version),
        on_staged=on_staged,
    )
    on_staged()
    return made
