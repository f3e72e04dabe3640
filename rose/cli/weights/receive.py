"""`rose receive --to FOLDER`: keeps a checkpoint on disk at the newest version."""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
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
from rose.transfer.manifest import Subscription
from rose.transfer.observing.timed import TimedSource
from rose.transfer.observing.timeline import Timeline
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.tiling import Tiling, plain_layout, planned_tiling
from rose.transfer.received import WeightReceiver
from rose.transfer.receiving.commit import CommitState
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
        subscription: tiles to receive.
        options: program options.
        timeline: records durations.
    """

    def __init__(
        self,
        upstream: Source,
        name: str,
        target: "_Files",
        subscription: Subscription,
        *,
        options: WeightOptions,
        timeline: Timeline,
    ) -> None:
        self._target, self._timeline, self._events = target, timeline, options.events
        self._source = TimedSource(upstream, timeline)
        self.has_staged = threading.Event()
        self._counts = {"committed": 0, "rolled_back": 0, "quarantined": 0, "staged": 0}
        self.weights = WeightReceiver(
            target,
            subscription,
            self._source,
            name=name,
            signing=options.signing,
            on_staged=self._source.staged(self._staged),
        )

    def _staged(self) -> None:
        self._counts["staged"] += 1
        self.has_staged.set()

    def step(self, paused: Callable[[float], None]) -> None:
        """Commit the staged version, if there is one, and print the outcome.

        Raises:
            Unavailable: another process truncated a file.
        """
        self._target.check()
        self._events.trouble(self.weights.failure, about="receiving")
        commit = self.weights.take()
        if commit is None:
            return
        begin_ns = self._timeline.clock.now_ns()
        n, tiles = commit.staged.manifest.version.n, len(commit.staged.tiles)
        self._timeline.add("barrier", self._source.staged_ns, begin_ns)
        with self._timeline.span("pause", n=n), self._timeline.span("commit", n=n, tiles=tiles):
            outcome = commit.run()  # leaves the files at a whole version, also on a signal
        paused((self._timeline.clock.now_ns() - begin_ns) / NS_PER_S)
        self._target.flush()
        what = outcome.state.name.lower()
        self._counts[what] += 1
        if outcome.state is CommitState.COMMITTED:
            self._source.staleness.committed(outcome.version)
        self._events.report(
            what,
            version=str(outcome.version),
            n=n,
            digest=hexadecimal(outcome.digest),
            is_snapshot=commit.staged.manifest.is_snapshot,
            tiles=tiles,
            reason=outcome.reason,
        )
        self.weights.settle(commit)

    def is_known_at(self, n: int) -> bool:
        """Return whether version `n` or a later one is committed, and reported to the upstream."""
        return (self.weights.version or 0) >= n and self._source.reported_n >= n

    def figures(self) -> Mapping[str, float]:
        """Return the values of the metrics."""
        stats, lag = self.weights.statistics, self._source.staleness.lag()
        return {
            **self._counts,
            "versions": self._counts["committed"],
            "received_bytes": stats.received_bytes,
            "chunks_retried": stats.chunks_retried,
            "snapshots": stats.snapshots,
            "version": self.weights.held.n,
            "lag_versions": lag.versions,
            "lag_seconds": lag.seconds,
        }

    def close(self) -> None:
        """Stop receiving; the files keep their version."""
        self.weights.close()
        self._target.flush()


class _Files(LiveTiles):
    """Tiles of a checkpoint's files, whose reading is shown as progress.

    Args:
        checkpoint: checkpoint to change.
        tiling: tiles of the checkpoint.
        wanted: tiles to read.
    """

    def __init__(self, checkpoint: Checkpoint, tiling: Tiling, wanted: Sequence[int]) -> None:
        super().__init__(checkpoint, tiling)
        self._sizes_of = {tile: tiling.tiles[tile].nbytes for tile in wanted}

    def digests(self) -> TileDigests:
        """Return the digests of the wanted tiles."""
        found = {}
        with progress("reading", sum(self._sizes_of.values())) as advance:
            for tile, nbytes in self._sizes_of.items():
                found[tile] = self.digest(tile)
                advance(nbytes)
        return TileDigests(found)


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
        subscription = Subscription(tiling.tiles, wanted)
        target_n = there.newest_n() if once else None
        with (
            _Files(checkpoint, tiling, subscription.wanted) as target,
            closing(
                _CheckpointReceiver(
                    there.source(), who, target, subscription, options=options, timeline=timeline
                )
            ) as made,
            observed(options, "receiver", made.figures, timeline) as paused,
        ):
            _keep(made, target_n, paused)
    options.events.report("ended")


def _keep(made: _CheckpointReceiver, until_n: int | None, paused: Callable[[float], None]) -> None:
    """Commit versions until `until_n` is committed and reported, or for ever if it is None."""
    while True:
        made.step(paused)
        if until_n is not None and made.is_known_at(until_n):
            return
        made.has_staged.wait(_POLL_S)
        made.has_staged.clear()
