"""`rose publish CHECKPOINT`: publishes checkpoints on disk as versions for receivers."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

from rose.checkpoints.checkpoint import Checkpoint, open_checkpoint
from rose.cli.ranges import FiniteRange
from rose.cli.runs import progress, read_named
from rose.cli.weights.options import (
    PATH,
    WeightOptions,
    observed,
    until_signal,
    weight_options,
)
from rose.cli.weights.part import CheckpointPart, check_plan, rows_of, serve_part
from rose.cli.weights.state import PublishState, entries, read_state, write_state
from rose.clock import BootClock
from rose.errors import CorruptData, InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.digests import hexadecimal
from rose.transfer.manifest import Version
from rose.transfer.observing.timed import TimedLog
from rose.transfer.observing.timeline import Timeline
from rose.transfer.plan.plan import Plan
from rose.transfer.published import WeightPublisher
from rose.transfer.publishing.contributor import ENCODINGS, Encoding
from rose.transfer.publishing.shelf import BYTES_MAX, VERSIONS_MAX
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
        listen: address of the weight server.
        options: program options.
        timeline: records durations.
        encoding: see `rose.publish`.
        threads: number of packing threads.
        log: log of versions.
        plan: plan that cuts checkpoints into tiles; None for a plain layout.
        parts: addresses of the other ranks' parts; () if this process publishes all tiles.
        undo: closes what this object opens.
    """

    def __init__(
        self,
        checkpoint: Path,
        state_path: Path,
        run: str,
        *,
        listen: str,
        options: WeightOptions,
        timeline: Timeline,
        encoding: Encoding | None,
        threads: int,
        log: TimedLog,
        plan: Plan | None,
        parts: Sequence[str],
        undo: ExitStack,
    ) -> None:
        self._path, self._timeline, self._events = state_path, timeline, options.events
        self._unsound: dict[Path, str] = {}
        before = read_state(state_path)
        begin = checkpoint if before is None else _first_of(Path(before.newest), checkpoint)
        opened = open_checkpoint(begin)
        name = str(begin.absolute())
        state = PublishState(run, 0, 0, name, (name,)) if before is None else before
        self._state = replace(state, incarnation=state.incarnation + 1, n=state.n + 1)
        write_state(state_path, self._state)
        with progress("reading", opened.nbytes) as advance:
            self.weights = undo.enter_context(
                WeightPublisher(
                    rows_of(opened),
                    opening=Version(self._state.run, self._state.incarnation, self._state.n),
                    listen=listen,
                    security=options.security,
                    signing=options.signing,
                    encoding=encoding,
                    threads=threads,
                    plan=plan,
                    log=log,
                    timeline=timeline,
                    owned=None if plan is None or not parts else plan.contributes(0),
                    parts=_parts(parts, opened, plan, options, undo),
                    on_copied=advance,
                )
            )
        _forget(opened)
        self._events.report(
            "serving",
            address=self.weights.address,
            version=str(self.weights.newest),
            n=self.weights.version,
            digest=self.weights.digest,
        )

    def publish(self, path: Path) -> None:
        """Publish a checkpoint as the next version, and print an event.

        Raises:
            CorruptData: the checkpoint is damaged; nothing was published.
            InvalidArgument: the checkpoint cannot be read, or has other tensors than the first.
            OutOfMemory: the log has no room for the version.
            Unavailable: the state file cannot be written.
        """
        opened = open_checkpoint(path)
        if not self.weights.is_sound:
            self._begin_again()
        # Recorded before publishing, so that no number is ever used twice.
        self._state = replace(self._state, n=self.weights.version + 1)
        write_state(self._path, self._state)
        with self._timeline.span("publish", n=self._state.n, checkpoint=path.name):
            manifest = self.weights.update_rows(rows_of(opened), path.name)
        _forget(opened)
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

    def _begin_again(self) -> None:
        """Begin an incarnation with the newest checkpoint, after a rank was restarted."""
        opened, before = open_checkpoint(Path(self._state.newest)), self._state
        self._state = replace(before, incarnation=before.incarnation + 1, n=before.n + 1)
        write_state(self._path, self._state)
        self.weights.begin_again(rows_of(opened), opened.path.name)
        self._events.report("begun", version=str(self.weights.newest), n=self.weights.version)

    def look(self, folder: Path) -> None:
        """Publish the new checkpoints of a folder; print each error once."""
        try:
            found = list(entries(folder))
        except Unavailable as error:
            self._events.trouble(str(error))
            return
        self._events.trouble(None)
        done = set(self._state.published)
        for path in found:
            if str(path.absolute()) not in done:
                self._try(path)

    def _try(self, path: Path) -> None:
        try:
            self.publish(path)
        except _WORLD as error:
            if self._unsound.get(path) != str(error):
                self._unsound[path] = str(error)
                self._events.report("trouble", reason=f"{path.name} is not published: {error}")

    def is_received(self, receivers: int) -> bool:
        """Return whether so many receivers have the newest version."""
        n, answers = self.weights.version, self.weights.receivers.values()
        return sum(one.n >= n and one.is_match for one in answers) >= receivers


def _forget(opened: Checkpoint) -> None:
    """Release the memory of a checkpoint that was read."""
    for one in opened.tensors.values():
        one.forget(0, one.count)


def _parts(
    addresses: Sequence[str],
    opened: Checkpoint,
    plan: Plan | None,
    options: WeightOptions,
    undo: ExitStack,
) -> list["RemotePart"]:
    """Open a checkpoint at every other rank's part; wait for ranks that are not up yet."""
    # Imported here: it needs the extra `wire`, and `quiet_grpc` must run before gRPC's import.
    from rose.transfer.wire.remote_part import RemotePart  # noqa: PLC0415

    tiles, security = opened.tiling(plan).tiles, options.security
    parts = []
    for address in addresses:
        token, tls = security.token.hex(), security.tls
        parts.append(RemotePart(address, token, tiles, opened.path.name, tls=tls))
        undo.callback(parts[-1].close)
    return parts


def _first_of(newest: Path, otherwise: Path) -> Path:
    return newest if newest.exists() else otherwise


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
@click.option(
    "--link",
    "encoding",
    type=click.Choice(ENCODINGS),
    help="Encoding of changes; by default strat to receivers in other sites, else gap.",
)
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
    encoding: Encoding | None,
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
    with until_signal(), ExitStack() as undo:
        made = CheckpointPublisher(
            checkpoint,
            state or checkpoint.absolute().parent / f".{checkpoint.name}.published.json",
            run or checkpoint.name.removesuffix(".safetensors"),
            listen=listen,
            options=options,
            timeline=timeline,
            encoding=encoding,
            threads=threads,
            log=TimedLog(versions_max=keep, bytes_max=int(keep_gib * GIB)),
            plan=plan,
            parts=parts,
            undo=undo,
        )
        undo.enter_context(observed(options, "publisher", made.weights.figures, timeline))
        clock = BootClock()
        while True:
            if watch is not None:
                made.look(watch)
            if once and made.is_received(receivers):
                break
            clock.sleep(_POLL_S)
    options.events.report("ended")
