"""The publisher of named weights: serves them, and each change of them as a version."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from rose.closing import Closing, Once, weakly
from rose.config import quiet_grpc
from rose.errors import InvalidArgument
from rose.transfer.digests import hexadecimal
from rose.transfer.manifest import Manifest, Version
from rose.transfer.named import NamedRow, Names, Tensors, matched, named_rows, views_of
from rose.transfer.observing.timed import TimedContributor, TimedLog
from rose.transfer.observing.timeline import Timeline
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.tiling import plain_tiling, planned_tiling
from rose.transfer.publishing.contributor import Encoding
from rose.transfer.publishing.log import Acknowledgement
from rose.transfer.publishing.merger import MergerThread
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.publishing.selection import Drift, Selection
from rose.transfer.publishing.shadow_memory import ShadowMemory
from rose.transfer.signing import Signing
from rose.transfer.tiles import ShardViews
from rose.transfer.wire.security import Security

if TYPE_CHECKING:
    from rose.transfer.wire.remote_part import RemotePart
    from rose.transfer.wire.server import WeightServer


# Round trip from which a receiver is in another site, where bytes cost more than computing.
_FAR_MS: Final = 2.0


class ServedWeights(Closing):
    """Base of publishers that have a weight server. They set the fields in their constructor."""

    _once: Once
    _server: "WeightServer"
    _undo: ExitStack

    @property
    def address(self) -> str:
        """Host and port for receivers."""
        return self._server.address

    @property
    def token(self) -> str:
        """Token that receivers must present."""
        return self._server.token

    def close(self) -> None:
        """Stop serving; receivers keep their weights."""
        self._once(self._undo.close)


class WeightPublisher(ServedWeights):
    """Publishes weights as versions; made by `rose.publish`. For use by one thread.

    Args:
        rows: the tensors, copied.
        opening: version of `rows`; its number and its incarnation must exceed all earlier ones.
        listen: address of the weight server.
        security: token, and certificates if given.
        signing: signing key of manifests.
        names: see `rose.publish`.
        encoding: see `rose.publish`.
        threads: threads that pack.
        largest: see `rose.publish`.
        plan: see `rose.publish`.
        metrics: see `rose.publish`.
        log: log for the versions; None for one with the usual limits.
        timeline: records durations; None for none.
        owned: tiles to publish from this process; None for all.
        parts: the parts of other processes, which own all other tiles.
        on_copied: called with the bytes of each tile that was copied.
    """

    def __init__(
        self,
        rows: Sequence[NamedRow],
        *,
        opening: Version,
        listen: str,
        security: Security,
        signing: Signing,
        names: Names | None = None,
        encoding: Encoding | None = None,
        threads: int = 1,
        largest: float | None = None,
        plan: Plan | None = None,
        metrics: str | None = None,
        log: TimedLog | None = None,
        timeline: Timeline | None = None,
        owned: Sequence[int] | None = None,
        parts: "Sequence[RemotePart]" = (),
        on_copied: Callable[[int], None] = lambda _nbytes: None,
    ) -> None:
        self._once = Once()
        quiet_grpc()
        # Imported here: they need the extra `wire`, and gRPC reads its log level at import.
        from rose.transfer.wire.messages import TensorEntry  # noqa: PLC0415
        from rose.transfer.wire.peers import Peers  # noqa: PLC0415
        from rose.transfer.wire.server import serve  # noqa: PLC0415

        self._timeline = Timeline("publisher") if timeline is None else timeline
        self._names, self._signing, self._threads = names, signing, threads
        self._encoding = encoding
        # Without the tensors, whose memory the trainer may free.
        self._published = [one._replace(row=None, tensor=None) for one in rows]
        stored = [one.stored for one in rows]
        self.tiling = plain_tiling(stored) if plan is None else planned_tiling(plan, stored)
        self._selections = {} if largest is None else self._selections_of(largest)
        self._owned = range(len(self.tiling.tiles)) if owned is None else owned
        self._parts = parts
        self._log = TimedLog() if log is None else log
        self._log.timeline = self._timeline
        with ExitStack() as undo:
            undo.callback(self._log.close)
            self._merger = undo.enter_context(MergerThread(self._log, signing))
            self._begin(rows, opening, on_copied)
            entries = [
                TensorEntry(one.stored.name, one.stored.dtype, one.stored.shape, one.aliases)
                for one in rows
            ]
            layout = self.tiling.tiles.layout
            self._server = undo.enter_context(
                serve(
                    self._log,
                    listen,
                    token=security.token.hex(),
                    tls=security.tls,
                    peers=Peers(opening.run, layout=layout, tensors=entries),
                )
            )
            self.metrics_address = self._metrics(metrics, security, undo)
            self._undo = undo.pop_all()
        self._once.when_dropped(self, self._undo.close)

    def _begin(
        self,
        rows: Sequence[NamedRow],
        opening: Version,
        on_copied: Callable[[int], None] = lambda _nbytes: None,
    ) -> None:
        """Begin an incarnation with these weights."""
        views = views_of(self.tiling, {one.stored.name: [one] for one in rows})
        memory = ShadowMemory(views.bits(tile) for tile in self._owned)
        shadow: dict[int, tuple[Any, ...]] = {}
        for tile in self._owned:
            shadow[tile] = (copy := memory.copy(views.bits(tile)),)
            on_copied(copy.nbytes)
        self._contributor = TimedContributor(
            ShardViews(shadow),
            self.tiling.tiles,
            self._owned,
            encoding=self._encoding or "gap",
            threads=self._threads,
            selections=self._selections,
        )
        self._contributor.timeline = self._timeline
        self._publisher = Publisher(
            [self._contributor, *self._parts],
            self.tiling.tiles,
            opening,
            self._log,
            signing=self._signing,
            on_published=self._merger.note,
            memory=memory,
        )

    def _selections_of(self, share: float) -> dict[int, Selection]:
        """Return the selection of each tile of bf16.

        Raises:
            InvalidArgument: there is none, or the share is out of range.
        """
        selection = Selection(share=share)
        bf16 = {one.stored.name for one in self._published if one.stored.dtype == "BF16"}
        tiles = range(len(self.tiling.tiles))
        found = [tile for tile in tiles if self.tiling.place(tile).tensor in bf16]
        if not found:
            raise InvalidArgument("largest= limits tensors of bfloat16, and there are none")
        return dict.fromkeys(found, selection)

    def _metrics(self, address: str | None, security: Security, undo: ExitStack) -> str | None:
        if address is None:
            return None
        # Imported here, because it needs the extra `metrics`.
        from rose.transfer.observing.metrics import Metrics, MetricsServer  # noqa: PLC0415

        figures = weakly(self.figures)
        metrics = Metrics("publisher", lambda: figures() or {})
        return undo.enter_context(MetricsServer(metrics, address, security)).address

    @property
    def version(self) -> int:
        """Number of the newest version."""
        return self.newest.n

    @property
    def newest(self) -> Version:
        """The newest version: run, incarnation and number."""
        return self._publisher.version

    @property
    def digest(self) -> str:
        """Digest of the newest version, as 32 hexadecimal digits."""
        return hexadecimal(self._publisher.digest)

    @property
    def drift(self) -> Drift:
        """Distance between the receivers' weights and the trainer's; 0 without `largest`."""
        return self._publisher.drift

    @property
    def receivers(self) -> dict[str, Acknowledgement]:
        """The last report of each receiver, by its name."""
        return self._log.receivers()

    def update(self, tensors: Tensors) -> int:
        """Publish the changes as the next version, and return its number.

        If an earlier call was interrupted, so that nobody knows which weights receivers hold, the
        version opens another incarnation: receivers fetch the tiles that differ.

        Args:
            tensors: the new weights, with the same names, dtypes and shapes. They are not modified.

        Raises:
            InvalidArgument: names, dtypes or shapes differ from those of `rose.publish`.
            OutOfMemory: memory is not sufficient for the changes. After any error no version was
                published.
            Unavailable: the publisher is closed.
        """
        return self.update_rows(named_rows(tensors, names=self._names)).version.n

    def update_rows(self, rows: Sequence[NamedRow], label: str = "") -> Manifest:
        """Publish rows as the next version, and return its manifest; see `update`.

        Args:
            rows: the new weights.
            label: name of the weights in the processes of the other parts.
        """
        self._once.check_open("this publisher")
        fresh = matched(rows, self._published, what="the version before")
        for name, some in fresh.items():
            if len(some) > 1:
                raise InvalidArgument(
                    f"{name} shared its memory with another name before, and no longer does: "
                    f"publish the weights anew"
                )
        if not self.is_sound:
            self.begin_again(rows, label)
            return self._log.wait_manifests(self.version - 1, 0)[-1]
        if self._encoding is None:
            is_far = self._server.longest_rtt_ms >= _FAR_MS
            self._contributor.encode_as("strat" if is_far else "gap")
        views = [views_of(self.tiling, fresh)]
        if not self._parts:
            return self._publisher.publish(*views)
        # Imported here, because it needs the extra `wire`.
        from rose.transfer.wire.remote_part import WeightsElsewhere  # noqa: PLC0415

        return self._publisher.publish(*views, *(WeightsElsewhere(label) for _ in self._parts))

    @property
    def is_sound(self) -> bool:
        """Whether it is known which weights receivers hold; if not, `begin_again` must follow."""
        return self._publisher.is_sound

    def begin_again(self, rows: Sequence[NamedRow], label: str = "") -> None:
        """Begin another incarnation with these weights; see `update_rows`."""
        for part in self._parts:
            part.open(label)
        before = self.newest
        self._begin(rows, Version(before.run, before.incarnation + 1, self._log.newest_n + 1))

    def figures(self) -> dict[str, float | Mapping[str, float]]:
        """Return the values of the metrics."""
        sums, drift, newest = self._log.statistics(), self.drift, self.version
        held = {name: float(one.n) for name, one in self.receivers.items()}
        return {
            "versions": sums.versions,
            "sent_bytes": sums.sent_bytes,
            "snapshots": sums.snapshots,
            "version": newest,
            "receivers": len(held),
            "receiver_version": held,
            "lag_versions": newest - min(held.values(), default=newest),
            "drift": drift.relative,
            "unsent_share": drift.unsent / drift.elements if drift.elements else 0.0,
            "unsent_age": drift.age,
        }
