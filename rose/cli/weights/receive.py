"""`rose receive --to FOLDER`: keeps a checkpoint on disk at the newest version."""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import click

from rose.checkpoints.checkpoint import Checkpoint, open_checkpoint
from rose.checkpoints.live import LiveTiles, create_checkpoint
from rose.cli.runs import progress
from rose.cli.weights.options import (
    PATH,
    Events,
    WeightOptions,
    observed,
    until_signal,
    upstreams_option,
    weight_options,
)
from rose.cli.weights.publish import read_plan
from rose.cli.weights.sources import open_addresses
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.digests import TileDigests, hexadecimal
from rose.transfer.manifest import NAMELESS, StagedVersion, Subscription
from rose.transfer.observing.timed import TimedSource
from rose.transfer.observing.timeline import Timeline
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.tiling import Tiling, plain_layout, planned_tiling
from rose.transfer.receiving.commit import Commit, CommitOutcome, CommitState
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.source import Source
from rose.transfer.tensors import STORED_DTYPES, StoredTensor
from rose.transfer.wire.messages import HelloReply, TensorEntry
from rose.units import NS_PER_S
from rose.whole_file import lock

_POLL_S: Final = 0.2


class _CheckpointReceiver:
    """Keeps tiles of a checkpoint on disk at the newest version. Only the main thread uses it.

    It computes the digests of the files as they are, and fetches the tiles that differ from the
    newest version. So a receiver that was killed during a commit repairs its half-written tiles.

    Args:
        upstream: source of versions.
        name: unique name of the receiver.
        target: files of the checkpoint.
        tiling: tiling of the files.
        wanted: tiles to receive; None for all.
        options: program options.
        timeline: records durations.
    """

    def __init__(
        self,
        upstream: Source,
        name: str,
        target: LiveTiles,
        tiling: Tiling,
        wanted: Sequence[int] | None,
        *,
        options: WeightOptions,
        timeline: Timeline,
    ) -> None:
        self._name, self._target, self._tiling, self._wanted = name, target, tiling, wanted
        self._options, self._timeline, self._events = options, timeline, options.events
        self.source = TimedSource(upstream, timeline)
        self._subscription = Subscription(tiling.tiles, wanted)
        self.has_staged = threading.Event()
        self.counts = {"committed": 0, "rolled_back": 0, "quarantined": 0, "staged": 0}
        self.receiver = self._receiver()

    def _receiver(self) -> Receiver:
        """Compute the files' digests, and start to receive."""
        digests = _read(self._target, self._tiling, self._subscription.wanted)
        self._digests: TileDigests | None = digests
        return Receiver(
            self.source,
            self._name,
            NAMELESS,
            digests.total,
            self._subscription,
            self.source.staged(self._staged),
            base=self._target.bits,
            signing=self._options.signing,
            digests=digests.copy(),
        )

    def _staged(self) -> None:
        self.counts["staged"] += 1
        self.has_staged.set()

    def step(self, paused: Callable[[float], None]) -> None:
        """Commit the staged version, if there is one, and print the outcome.

        Raises:
            Unavailable: another process truncated a file.
        """
        self._target.check()
        self._events.trouble(self.receiver.failure, about="receiving")
        staged = self.receiver.take_staged()
        if staged is None:
            return
        begin_ns = self._timeline.clock.now_ns()
        self._timeline.add("barrier", self.source.staged_ns, begin_ns)
        with self._timeline.span("pause", n=staged.manifest.version.n):
            outcome = self._commit(staged)
        paused((self._timeline.clock.now_ns() - begin_ns) / NS_PER_S)
        self._target.flush()
        self._report(outcome, staged)
        if outcome.state is CommitState.QUARANTINED:
            self.receiver.close()
            self.receiver = self._receiver()
        else:
            self.receiver.report(outcome)

    def _commit(self, staged: StagedVersion) -> CommitOutcome:
        commit = Commit(
            staged,
            self._target,
            self.receiver.digest,
            digests=self._digests,
            subscribed=self._wanted,
        )
        with self._timeline.span("commit", n=staged.manifest.version.n, tiles=len(staged.tiles)):
            outcome = commit.run()  # leaves the files at a whole version, also on a signal
        self._digests = commit.digests
        return outcome

    def _report(self, outcome: CommitOutcome, staged: StagedVersion) -> None:
        what = outcome.state.name.lower()
        self.counts[what] += 1
        if outcome.state is CommitState.COMMITTED:
            self.source.staleness.committed(outcome.version)
        self._events.report(
            what,
            version=str(outcome.version),
            n=outcome.version.n,
            digest=hexadecimal(outcome.digest),
            is_snapshot=staged.manifest.is_snapshot,
            tiles=len(staged.tiles),
            reason=outcome.reason,
        )

    def is_known_at(self, n: int) -> bool:
        """Return whether version `n` or a later one is committed, and reported to the upstream."""
        held = self.receiver.held
        return held.run != "" and held.n >= n and self.source.reported_n >= n

    def figures(self) -> Mapping[str, float]:
        """Return the values of the metrics."""
        stats, held_n = self.receiver.stats, self.receiver.held.n
        lag = self.source.staleness.lag()
        return {
            **self.counts,
            "versions": self.counts["committed"],
            "received_bytes": stats.received_bytes,
            "chunks_retried": stats.chunks_retried,
            "snapshots": stats.snapshots,
            "version": held_n,
            "lag_versions": lag.versions,
            "lag_seconds": lag.seconds,
        }

    def close(self) -> None:
        """Stop receiving; the files keep their version."""
        self.receiver.close()
        self._target.flush()


def _read(target: LiveTiles, tiling: Tiling, wanted: Sequence[int]) -> TileDigests:
    found = {}
    with progress("reading", sum(_nbytes(tiling, tile) for tile in wanted)) as advance:
        for tile in wanted:
            found[tile] = target.digest(tile)
            advance(_nbytes(tiling, tile))
    return TileDigests(found)


def _nbytes(tiling: Tiling, tile: int) -> int:
    one = tiling.tiles[tile]
    return one.count * one.width // 8


def _locked(folder: Path) -> BinaryIO:
    """Lock a checkpoint against other receivers; create the folder if it is missing."""
    try:
        if folder.is_file():
            return lock(folder.with_name(folder.name + ".lock"))
        folder.mkdir(parents=True, exist_ok=True)
        return lock(folder / ".lock")
    except BlockingIOError:
        raise InvalidArgument(
            f"another process receives into {folder}: end it, or name another folder"
        ) from None
    except OSError as error:
        raise InvalidArgument(f"cannot write to {folder}: {error.strerror or error}") from None


def stored_tensors(entries: Sequence[TensorEntry]) -> list[StoredTensor]:
    """Return the tensors of a checkpoint that is not written yet.

    Raises:
        CorruptData: a dtype is unknown.
    """
    for one in entries:
        if one.dtype not in STORED_DTYPES:
            raise CorruptData(f"{one.name!r} has the dtype {one.dtype!r}, which rose does not know")
    return [StoredTensor(one.name, one.dtype, one.shape) for one in entries]


def _open(
    folder: Path, plan: Plan | None, hello: HelloReply, events: Events
) -> tuple[Checkpoint, Tiling]:
    """Open the folder's checkpoint; if there is none, create the upstream's tensors with zeros.

    Nothing is created if the layout differs from the upstream's, since no version would fit.
    """
    is_there = folder.is_file() or any(one.suffix == ".safetensors" for one in folder.iterdir())
    if not is_there:
        if not hello.tensors:
            raise InvalidArgument(
                f"{folder} has no checkpoint, and the upstream does not describe one"
            )
        stored = stored_tensors(hello.tensors)
        layout = plain_layout(stored) if plan is None else planned_tiling(plan, stored).tiles.layout
        _check_layout(layout, hello, "the checkpoint that the upstream describes has other tensors")
        create_checkpoint(folder, {one.name: (one.dtype, one.shape) for one in hello.tensors})
        events.report("created", path=str(folder))
    checkpoint = open_checkpoint(folder)
    tiling = checkpoint.tiling(plan)
    _check_layout(tiling.tiles.layout, hello, f"{folder} has other tensors")
    return checkpoint, tiling


def _check_layout(layout: str, hello: HelloReply, what: str) -> None:
    if layout != hello.layout:
        raise InvalidArgument(
            f"{what} than the upstream serves, or was cut into tiles by another plan"
        )


@click.command()
@upstreams_option
@click.option("--to", "folder", type=PATH, required=True, metavar="FOLDER")
@click.option("--name", help="Name of the receiver; host and folder by default.")
@click.option(
    "--plan", "plan_path", type=PATH, metavar="FILE", help="Plan from `rose transfer plan --plan`."
)
@click.option("--replica", default="", show_default=False, help="Name of the replica in the plan.")
@click.option(
    "--rank", type=click.IntRange(min=0), help="Receive only the tiles of this rank of the replica."
)
@click.option("--once", is_flag=True, help="End at the version that is the newest at the start.")
@weight_options
def receive(
    *,
    upstreams: tuple[str, ...],
    folder: Path,
    name: str | None,
    plan_path: Path | None,
    replica: str,
    rank: int | None,
    once: bool,
    options: WeightOptions,
) -> None:
    """Keep the checkpoint in FOLDER at the newest version of the upstream, in place.

    FOLDER may hold any version, or an incomplete one: only tiles that differ are fetched. In an
    empty FOLDER, the program creates one file. No other program may write to FOLDER.
    """
    plan = None if plan_path is None else read_plan(plan_path)
    if rank is not None and plan is None:
        raise InvalidArgument("--rank needs a --plan")
    timeline = Timeline("receiver")
    who = name or f"{socket.gethostname()}:{folder.absolute()}"[-200:]
    with (
        until_signal(),
        _locked(folder),
        open_addresses(upstreams, options.security, options.signing, options.events) as there,
    ):
        hello = there.wait_until_there()
        checkpoint, tiling = _open(folder, plan, hello, options.events)
        wanted = None if plan is None or rank is None else plan.tiles_for(replica, rank)
        target_n = there.newest_n() if once else None
        with LiveTiles(checkpoint, tiling) as target:
            made = _CheckpointReceiver(
                there.source(), who, target, tiling, wanted, options=options, timeline=timeline
            )
            try:
                with observed(options, "receiver", made.figures, timeline) as paused:
                    _keep(made, target_n, paused)
            finally:
                made.close()
    options.events.report("ended")


def _keep(made: _CheckpointReceiver, until_n: int | None, paused: Callable[[float], None]) -> None:
    """Commit versions until `until_n` is committed and reported, or for ever if it is None."""
    while True:
        made.step(paused)
        if until_n is not None and made.is_known_at(until_n):
            return
        made.has_staged.wait(_POLL_S)
        made.has_staged.clear()
