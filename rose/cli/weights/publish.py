"""`rose publish CHECKPOINT`: publishes checkpoints on disk as versions for receivers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from rose.checkpoints.checkpoint import Checkpoint, open_checkpoint
from rose.cli.ranges import FiniteRange
from rose.cli.runs import progress, read_named
from rose.cli.weights.options import (
    PATH,
    Events,
    WeightOptions,
    observed,
    until_signal,
    weight_options,
)
from rose.cli.weights.part import CheckpointPart, check_plan, serve_part, units_of
from rose.cli.weights.state import PublishState, entries, read_state, write_state
from rose.clock import BootClock
from rose.errors import CorruptData, InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.digests import hexadecimal
from rose.transfer.manifest import Version
from rose.transfer.observing.timed import TimedContributor, TimedLog
from rose.transfer.observing.timeline import Timeline
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.tiling import Tiling
from rose.transfer.publishing.contributor import ENCODINGS, Encoding
from rose.transfer.publishing.merger import MergerThread
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.publishing.shelf import BYTES_MAX, VERSIONS_MAX
from rose.transfer.tiles import TileViews
from rose.transfer.wire.messages import TensorEntry
from rose.transfer.wire.peers import Peers
from rose.units import GIB

if TYPE_CHECKING:
    from rose.transfer.wire.remote_part import RemotePart

_POLL_S: Final = 0.2
# If publishing a checkpoint fails with one of these errors, the other versions are still served.
_WORLD: Final = (CorruptData, InvalidArgument, OutOfMemory, Unavailable)


class CheckpointPublisher:
    """Publishes checkpoints, and records them in a file, to continue after a restart.

    Single-threaded.

    Args:
        checkpoint: first checkpoint; not used if the newest checkpoint that is recorded in
            `state_path` still exists.
        state_path: file that records the published checkpoints.
        run: name of the run; used only if `state_path` does not exist yet.
        plan: plan that cuts checkpoints into tiles; None for a plain layout.
        log: log of versions.
        timeline: records durations.
        options: program options.
        encoding: wire encoding, as in `Contributor`.
        threads: number of packing threads.
        merger: makes merged deltas; it is notified of each version.
        parts: addresses of the other ranks' parts; () if this process publishes all tiles.
    """

    def __init__(
        self,
        checkpoint: Path,
        state_path: Path,
        run: str,
        *,
        plan: Plan | None,
        log: TimedLog,
        timeline: Timeline,
        options: WeightOptions,
        encoding: Encoding,
        threads: int,
        merger: MergerThread,
        parts: Sequence[str] = (),
    ) -> None:
        self._path, self._plan, self._timeline = state_path, plan, timeline
        self._options, self._events = options, options.events
        self._log, self._merger = log, merger
        self._packing = partial(TimedContributor, encoding=encoding, threads=threads)
        self._addresses = parts
        self._parts: list[RemotePart] = []
        self._unsound: dict[Path, str] = {}
        before = read_state(state_path)
        begin = checkpoint if before is None else _first_of(Path(before.newest), checkpoint)
        opened = open_checkpoint(begin)
        tiling = opened.tiling(plan)
        self.checkpoint, self.layout = opened, tiling.tiles.layout
        name = str(begin.absolute())
        self._state = PublishState(run, 0, 0, name, (name,)) if before is None else before
        self._publisher = self._begun(opened, tiling)
        self.opening = log.wait_manifests(-1, 0)[0]

    def _begun(self, opened: Checkpoint, tiling: Tiling) -> Publisher:
        """Start an incarnation; each rank loads its own tiles of the checkpoint."""
        self._state = replace(
            self._state, incarnation=self._state.incarnation + 1, n=self._state.n + 1
        )
        write_state(self._path, self._state)
        mine = self._mine(opened, tiling)
        mine.timeline = self._timeline
        self._open_parts(tiling, opened.path.name)
        return Publisher(
            [mine, *self._parts],
            tiling.tiles,
            Version(self._state.run, self._state.incarnation, self._state.n),
            self._log,
            signing=self._options.signing,
            on_published=self._merger.note,
        )

    def _mine(self, opened: Checkpoint, tiling: Tiling) -> TimedContributor:
        """Return this process's contributor, for all tiles or only those of rank 0."""
        if self._addresses and self._plan is not None:
            part = CheckpointPart(self._plan, 0, opened.path, None)
            return self._packing(part.shadow(opened.path.name), tiling.tiles, part.owned)
        with progress("reading", opened.nbytes) as advance:
            shadow: dict[str, Any] = {}
            for name, one in opened.tensors.items():
                shadow[name] = one.units(0, one.count).copy()
                one.forget(0, one.count)
                advance(one.stored.nbytes)
        return self._packing(tiling.views(shadow), tiling.tiles)

    def _open_parts(self, tiling: Tiling, label: str) -> None:
        """Open a checkpoint at every other rank's part; wait for ranks that are not up yet."""
        # Imported here: it needs the extra `wire`, and `quiet_grpc` must run before gRPC's import.
        from rose.transfer.wire.remote_part import RemotePart  # noqa: PLC0415

        for part in self._parts:
            part.open(label)
        tls, token = self._options.security.tls, self._options.security.token.hex()
        for address in self._addresses[len(self._parts) :]:
            self._parts.append(RemotePart(address, token, tiling.tiles, label, tls=tls))

    def close(self) -> None:
        """Close the connections to the other ranks."""
        for part in self._parts:
            part.close()

    @property
    def version(self) -> Version:
        """The newest version."""
        return self._publisher.version

    def publish(self, path: Path) -> None:
        """Publish a checkpoint as the next version, and print an event.

        Raises:
            CorruptData: the checkpoint is damaged; nothing was published.
            InvalidArgument: the checkpoint cannot be read, or has other tensors than the first.
            OutOfMemory: the log has no room for the version.
            Unavailable: the state file cannot be written.
        """
        opened = open_checkpoint(path)
        tiling = opened.tiling(self._plan)
        if tiling.tiles.layout != self.layout:
            raise InvalidArgument(f"{path} has other tensors than the checkpoints before it")
        if not self._publisher.is_sound:
            self._begin_again()
        # Recorded before publishing, so that no number is ever used twice.
        self._state = replace(self._state, n=self.version.n + 1)
        write_state(self._path, self._state)
        new: list[TileViews] = [tiling.views(units_of(opened))]
        new += self._elsewhere(path.name)
        with self._timeline.span("publish", n=self._state.n, checkpoint=path.name):
            manifest = self._publisher.publish(*new)
        done = (*self._state.published, str(path.absolute()))
        self._state = replace(self._state, newest=str(path.absolute()), published=done)
        write_state(self._path, self._state)
        self._events.report(
            "published",
            version=str(manifest.version),
            n=manifest.version.n,
            digest=hexadecimal(manifest.digest),
            checkpoint=path.name,
            changed=manifest.changed,
            bytes=manifest.nbytes,
        )

    def _elsewhere(self, label: str) -> Iterator[TileViews]:
        # Imported here, because it needs the extra `wire`.
        from rose.transfer.wire.remote_part import WeightsElsewhere  # noqa: PLC0415

        return (WeightsElsewhere(label) for _ in self._parts)

    def _begin_again(self) -> None:
        """Start another incarnation with the newest checkpoint, after a rank was restarted."""
        opened = open_checkpoint(Path(self._state.newest))
        self._publisher = self._begun(opened, opened.tiling(self._plan))
        self._events.report("begun", version=str(self.version), n=self.version.n)

    def publish_new(self, folder: Path) -> None:
        """Publish a folder's new checkpoints; skip damaged ones."""
        done = set(self._state.published)
        for path in entries(folder):
            if str(path.absolute()) not in done:
                self._try(path)

    def _try(self, path: Path) -> None:
        """Publish a checkpoint; print each of its errors once."""
        try:
            self.publish(path)
        except _WORLD as error:
            if self._unsound.get(path) != str(error):
                self._unsound[path] = str(error)
                self._events.report("trouble", reason=f"{path.name} is not published: {error}")


def _first_of(newest: Path, otherwise: Path) -> Path:
    return newest if newest.exists() else otherwise


def _is_received(log: TimedLog, n: int, receivers: int) -> bool:
    answers = log.receivers().values()
    return sum(one.n >= n and one.is_match for one in answers) >= receivers


def read_plan(path: Path) -> Plan:
    """Read a plan written by `rose transfer plan --plan`.

    Raises:
        InvalidArgument: the file cannot be read, or is not a plan.
    """
    # Imported here, because it needs the extra `wire`.
    from rose.transfer.plan.files import FILE_BYTES_MAX, plan_from_json  # noqa: PLC0415

    return plan_from_json(read_named(path, FILE_BYTES_MAX), what=str(path))


@click.command()
@click.argument("checkpoint", type=PATH)
@click.option("--listen", default="127.0.0.1:0", metavar="ADDRESS")
@click.option(
    "--watch",
    type=PATH,
    metavar="FOLDER",
    help="Folder in which each new file or folder becomes a version.",
)
@click.option("--once", is_flag=True, help="End when receivers have the newest version.")
@click.option(
    "--receivers",
    type=click.IntRange(min=1),
    default=1,
    help="Number of receivers to wait for, with --once.",
)
@click.option("--state", type=PATH, metavar="FILE", help="File that records published versions.")
@click.option("--run", help="Name of the run; the checkpoint's name by default.")
@click.option(
    "--plan", "plan_path", type=PATH, metavar="FILE", help="Plan from `rose transfer plan --plan`."
)
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    help="Act as this rank of the trainer; ranks other than 0 serve their part.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    metavar="ADDRESS",
    help="For rank 0: address of another rank's part. Give one for each rank.",
)
@click.option("--link", "encoding", type=click.Choice(ENCODINGS), default="gap")
@click.option("--threads", type=click.IntRange(1, 64), default=2)
@click.option("--keep", type=click.IntRange(min=1), default=VERSIONS_MAX)
@click.option("--keep-gib", type=FiniteRange(min=0.01), default=BYTES_MAX / GIB)
@weight_options
def publish(
    *,
    checkpoint: Path,
    listen: str,
    watch: Path | None,
    once: bool,
    receivers: int,
    state: Path | None,
    run: str | None,
    plan_path: Path | None,
    rank: int | None,
    parts: tuple[str, ...],
    encoding: Encoding,
    threads: int,
    keep: int,
    keep_gib: float,
    options: WeightOptions,
) -> None:
    """Publish CHECKPOINT, and every checkpoint that later appears in a watched folder.

    A checkpoint is a safetensors file, or a folder of such files. Receivers get the changes between
    versions, and may join at any time. Write a new checkpoint elsewhere and move it into the
    watched folder, or write it there under a name with a leading dot and rename it. A restarted
    program continues at its last version.

    With --plan and --rank K, the program acts as rank K of a trainer, and publishes the tiles that
    this rank sends. Rank 0 keeps the log of versions, and needs the addresses of the other ranks
    (--part). A checkpoint must have the same name on all ranks.
    """
    for address in (listen, *parts):
        options.security.place(address)  # checked before a large checkpoint is read
    plan = None if plan_path is None else read_plan(plan_path)
    check_plan(plan, rank, parts)
    if rank and plan is not None:
        serve_part(CheckpointPart(plan, rank, checkpoint, watch), listen, threads, options)
        return
    timeline = Timeline("publisher")
    log = TimedLog(versions_max=keep, bytes_max=int(keep_gib * GIB))
    log.timeline = timeline
    with until_signal(), MergerThread(log, options.signing) as merger:
        made = CheckpointPublisher(
            checkpoint,
            state or checkpoint.absolute().parent / f".{checkpoint.name}.published.json",
            run or checkpoint.name.removesuffix(".safetensors"),
            plan=plan,
            log=log,
            timeline=timeline,
            options=options,
            encoding=encoding,
            threads=threads,
            merger=merger,
            parts=parts,
        )
        with (
            closing(made),
            observed(options, "publisher", partial(_figures, log, made), timeline),
            _served(made, log, listen, options),
        ):
            clock = BootClock()
            while True:
                if watch is not None:
                    _look(made, watch, options.events)
                if once and _is_received(log, made.version.n, receivers):
                    break
                clock.sleep(_POLL_S)
    log.close()
    options.events.report("ended")


@contextmanager
def _served(
    made: CheckpointPublisher,
    log: TimedLog,
    listen: str,
    options: WeightOptions,
) -> Iterator[None]:
    """Serve published versions, and print the address."""
    tensors = [
        TensorEntry(one.stored.name, one.stored.dtype, one.stored.shape)
        for one in made.checkpoint.tensors.values()
    ]
    peers = Peers(made.version.run, layout=made.layout, tensors=tensors)
    with options.serve(log, listen, peers) as server:
        options.events.report(
            "serving",
            address=server.address,
            version=str(made.version),
            n=made.version.n,
            digest=hexadecimal(made.opening.digest),
        )
        yield


def _look(made: CheckpointPublisher, folder: Path, events: Events) -> None:
    try:
        made.publish_new(folder)
    except Unavailable as error:
        events.trouble(str(error))
    else:
        events.trouble(None)


def _figures(log: TimedLog, made: CheckpointPublisher) -> Mapping[str, float]:
    sums = log.statistics()
    return {
        "versions": sums.versions,
        "sent_bytes": sums.sent_bytes,
        "snapshots": sums.snapshots,
        "version": made.version.n,
        "receivers": len(log.receivers()),
    }
