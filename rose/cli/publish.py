"""`rose publish CHECKPOINT`: checkpoints on disk become versions that receivers keep up with."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from rose.checkpoints.checkpoint import Checkpoint, open_checkpoint
from rose.checkpoints.make import hexadecimal
from rose.checkpoints.tiling import Tiling, plain_tiling, planned_tiling
from rose.cli.delta_progress import progress
from rose.cli.publish_state import PublishState, entries, read_state, write_state
from rose.cli.weight_events import Events
from rose.cli.weight_options import PATH, Bell, WeightOptions, observed, until_told, weight_options
from rose.errors import CorruptData, InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.observing.timed import TimedContributor, TimedLog
from rose.transfer.observing.timeline import Timeline
from rose.transfer.plan.plan import Plan
from rose.transfer.publishing.contributor import LINKS, Link
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.publishing.retention import BYTES_MAX, VERSIONS_MAX
from rose.transfer.publishing.spans import SpanMaker
from rose.transfer.version import Version
from rose.units import GIB

_POLL_S: Final = 0.2
# What is wrong with one checkpoint is no reason to stop serving the others.
_WORLD: Final = (CorruptData, InvalidArgument, OutOfMemory, Unavailable)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How checkpoints are cut: as a plan says, or by themselves."""

    plan: Plan | None

    def of(self, checkpoint: Checkpoint) -> Tiling:
        stored = [one.stored for one in checkpoint.tensors.values()]
        return plain_tiling(stored) if self.plan is None else planned_tiling(self.plan, stored)


class CheckpointPublisher:
    """Publishes checkpoints, and notes which, so that one that is started again goes on.

    One thread uses it.

    Args:
        checkpoint: to begin with, where nothing was published yet.
        state_path: where it is noted.
        run: names the run, where nothing was published yet.
        cut: how checkpoints are cut.
        log: of the versions.
        timeline: gets what takes time.
        options: of the program.
        link: as for `Contributor`.
        threads: that pack.
        spans: is told of each version.
    """

    def __init__(
        self,
        checkpoint: Path,
        state_path: Path,
        run: str,
        *,
        cut: _Cut,
        log: TimedLog,
        timeline: Timeline,
        options: WeightOptions,
        link: Link,
        threads: int,
        spans: SpanMaker,
    ) -> None:
        self._path, self._cut, self._timeline = state_path, cut, timeline
        self._events = options.events
        self._unsound: dict[Path, str] = {}
        before = read_state(state_path)
        begin = checkpoint if before is None else _first_of(Path(before.newest), checkpoint)
        opened = open_checkpoint(begin)
        tiling = cut.of(opened)
        self.checkpoint, self.layout = opened, tiling.tiles.layout
        with progress("reading", opened.nbytes) as advance:
            shadow: dict[str, Any] = {}
            for name, one in opened.tensors.items():
                shadow[name] = one.units(0, one.count).copy()
                one.forget(0, one.count)
                advance(one.stored.nbytes)
        contributor = TimedContributor(
            tiling.views(shadow), tiling.tiles, link=link, threads=threads
        )
        contributor.timeline = timeline
        self._state = (
            PublishState(run, 1, 1, str(begin.absolute()), (str(begin.absolute()),))
            if before is None
            else replace(before, incarnation=before.incarnation + 1, n=before.n + 1)
        )
        write_state(state_path, self._state)
        opening = Version(self._state.run, self._state.incarnation, self._state.n)
        self._publisher = Publisher(
            [contributor],
            tiling.tiles,
            opening,
            log,
            signing=options.signing,
            on_published=spans.note,
        )
        self.opening = log.manifests_after(-1)[0]

    @property
    def version(self) -> Version:
        """Return the newest version."""
        return self._publisher.version

    def publish(self, path: Path) -> None:
        """Make a checkpoint the next version, and say so.

        Raises:
            CorruptData: it is not sound; nothing was published.
            InvalidArgument: it has other tensors, or cannot be read.
            OutOfMemory: the log has no room for it.
            Unavailable: what is noted of it cannot be written.
        """
        opened = open_checkpoint(path)
        tiling = self._cut.of(opened)
        if tiling.tiles.layout != self.layout:
            raise InvalidArgument(f"{path} has other tensors than the checkpoints before it")
        # Noted first: a number that may have been used is never used again.
        self._state = replace(self._state, n=self.version.n + 1)
        write_state(self._path, self._state)
        units = {name: one.units(0, one.count) for name, one in opened.tensors.items()}
        with self._timeline.span("publish", n=self._state.n, checkpoint=path.name):
            manifest = self._publisher.publish(tiling.views(units))
        done = (*self._state.published, str(path.absolute()))
        self._state = replace(self._state, newest=str(path.absolute()), published=done)
        write_state(self._path, self._state)
        self._events.say(
            "published",
            version=str(manifest.version),
            n=manifest.version.n,
            digest=hexadecimal(manifest.digest),
            checkpoint=path.name,
            changed=manifest.changed,
            bytes=manifest.nbytes,
        )

    def publish_new(self, folder: Path) -> None:
        """Publish what a folder has that was not published yet; what is not sound is left."""
        done = set(self._state.published)
        for path in entries(folder):
            if str(path.absolute()) not in done:
                self._try(path)

    def _try(self, path: Path) -> None:
        """Publish one if it is sound; of one that is not, say why once."""
        try:
            self.publish(path)
        except _WORLD as error:
            if self._unsound.get(path) != str(error):
                self._unsound[path] = str(error)
                self._events.say("trouble", reason=f"{path.name} is not published: {error}")


def _first_of(newest: Path, otherwise: Path) -> Path:
    return newest if newest.exists() else otherwise


def _is_received(log: TimedLog, n: int, receivers: int) -> bool:
    answers = log.receivers().values()
    return sum(one.n >= n and one.is_match for one in answers) >= receivers


def read_plan(path: Path) -> Plan:
    """Read the plan that `rose transfer plan --plan` wrote.

    Raises:
        InvalidArgument: it cannot be read, or is none.
    """
    # Here, because it needs the extra `wire`.
    from rose.transfer.plan.plan_file import plan_from_json  # noqa: PLC0415

    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from error
    return plan_from_json(content, what=str(path))


@click.command()
@click.argument("checkpoint", type=PATH)
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="ADDRESS")
@click.option(
    "--watch", type=PATH, metavar="FOLDER", help="Each new file or folder there is a version."
)
@click.option("--once", is_flag=True, help="End when receivers have the newest version.")
@click.option(
    "--receivers", type=click.IntRange(min=1), default=1, show_default=True, help="With --once."
)
@click.option("--state", type=PATH, metavar="FILE", help="Notes what was published.")
@click.option("--run", help="Names the run; the name of the checkpoint if not given.")
@click.option("--plan", "plan_path", type=PATH, metavar="FILE", help="Of `rose transfer plan`.")
@click.option("--link", type=click.Choice(LINKS), default="gap", show_default=True)
@click.option("--threads", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--keep", type=click.IntRange(min=1), default=VERSIONS_MAX, show_default=True)
@click.option("--keep-gib", type=click.FloatRange(min=0.01), default=BYTES_MAX / GIB)
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
    link: Link,
    threads: int,
    keep: int,
    keep_gib: float,
    options: WeightOptions,
) -> None:
    """Serve CHECKPOINT, a safetensors file or a folder of them, and what follows it in a folder.

    Receivers get what changed from version to version, and join at any time. A checkpoint is
    written elsewhere and moved into the watched folder, or under a name with a dot in front. When
    the program is started again it goes on where it was.
    """
    options.security.place(listen)  # before a large checkpoint is read for nothing
    timeline = Timeline("publisher")
    log = TimedLog(versions_max=keep, bytes_max=int(keep_gib * GIB))
    log.timeline = timeline
    with until_told(), SpanMaker(log, options.signing) as spans:
        made = CheckpointPublisher(
            checkpoint,
            state or checkpoint.absolute().parent / f".{checkpoint.name}.published.json",
            run or checkpoint.name.removesuffix(".safetensors"),
            cut=_Cut(None if plan_path is None else read_plan(plan_path)),
            log=log,
            timeline=timeline,
            options=options,
            link=link,
            threads=threads,
            spans=spans,
        )
        with (
            _served(made, log, listen, options),
            observed(options, "publisher", partial(_figures, log, made), timeline),
        ):
            bell = Bell()
            while True:
                if watch is not None:
                    _look(made, watch, options.events)
                if once and _is_received(log, made.version.n, receivers):
                    break
                bell.wait(_POLL_S)
    log.close()
    options.events.say("ended")


@contextmanager
def _served(
    made: CheckpointPublisher, log: TimedLog, listen: str, options: WeightOptions
) -> Iterator[None]:
    """Serve what is published, and say where."""
    # Here, because they need the extra `wire`, and gRPC is told before its import to be quiet.
    from rose.transfer.wire.messages import TensorEntry  # noqa: PLC0415
    from rose.transfer.wire.peers import Peers  # noqa: PLC0415
    from rose.transfer.wire.server import serve  # noqa: PLC0415

    tensors = [
        TensorEntry(one.stored.name, one.stored.dtype, one.stored.shape)
        for one in made.checkpoint.tensors.values()
    ]
    peers = Peers(made.version.run, layout=made.layout, tensors=tensors)
    tls, token = options.security.tls, options.security.token.hex()
    with serve(log, listen, token=token, tls=tls, peers=peers) as server:
        options.events.say(
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
        "seeds": sums.seeds,
        "version": made.version.n,
        "receivers": len(log.receivers()),
    }
