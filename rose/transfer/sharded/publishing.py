"""A trainer of several ranks publishes one set of weights: rank 0 keeps the log, all ranks pack."""

import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Protocol

from rose.addresses import spelled
from rose.clock import BootClock
from rose.closing import Closing, Once, weakly
from rose.errors import (
    DeadlineExceeded,
    InvalidArgument,
    RoseError,
    Unavailable,
    sentence,
)
from rose.transfer.digests import hexadecimal
from rose.transfer.manifest import Version
from rose.transfer.plan import Places, Plan, ShardMap
from rose.transfer.plan.files import RankFile, ShardFile, places_from_json, shards_to_json
from rose.transfer.published import ServedWeights
from rose.transfer.publishing.contributor import Contributor, Encoding, PackedPart
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.merger import MergerThread
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.sharded.gathering import Gathering
from rose.transfer.sharded.joining import PAUSE_S, join, listed
from rose.transfer.sharded.patience import Patience
from rose.transfer.sharded.shards import Shards
from rose.transfer.sharded.words import (
    ANSWER_S,
    AskStep,
    Join,
    Stepped,
    answer_of,
    packed,
)
from rose.transfer.signing import Signing
from rose.transfer.tiles import ShardViews, Tiles, TileViews
from rose.transfer.wire import messages
from rose.transfer.wire.part_server import PartServer
from rose.transfer.wire.peers import Peers
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.remote_part import PACK_S, RemotePart, WeightsElsewhere
from rose.transfer.wire.security import TlsFiles
from rose.transfer.wire.server import serve

# Time for an answer to a rank that is refused, in seconds.
_REFUSED_S: Final = 1.0
# Label of a rank's shadow, which it opens again by another plan.
_SHADOW: Final = "shadow"


class RankWeights(Protocol):
    """A rank's part of the weights, as it is in memory."""

    @property
    def shards(self) -> ShardMap:
        """Return the rank's shard map."""
        ...

    def views(self, places: Places) -> ShardViews:
        """Return tiles as views of the memory."""
        ...

    def copy(self) -> "RankWeights":
        """Return a copy with memory of its own."""
        ...


# Finds a rank's part in what a user passes, such as a model.
ReadWeights = Callable[[Any], RankWeights]


class LeadPublisher(ServedWeights):
    """Rank 0 of a trainer: serves the log, and publishes with all ranks. For use by one thread.

    The lock guards the shadow and the publisher: an update holds it, and so does a call of an
    engine whose shards are new, which publishes by another plan.

    Args:
        read: function that finds the rank's part in what a user passes.
        weights: what the user passes, such as a model; only read.
        shards: rank 0.
        listen: host and port for all other ranks and for engines.
        token: 64 hexadecimal digits that they must present; None: a random token.
        tls: certificates for both sides.
        signing: signing key of versions.
        opening: name of the first version.
        encoding: wire encoding, as in `Contributor`.

    Raises:
        InvalidArgument: the ranks have different tensors, or `listen` is not allowed.
        DeadlineExceeded: a rank did not start in time.
        Unavailable: the port is taken, or a rank ended meanwhile.
    """

    def __init__(
        self,
        read: ReadWeights,
        weights: Any,
        shards: Shards,
        *,
        listen: str,
        token: str | None,
        tls: TlsFiles | None,
        signing: Signing,
        opening: Version,
        encoding: Encoding,
    ) -> None:
        self._once = Once()
        self._clock = BootClock()
        self._read, self._signing, self._tls = read, signing, tls
        self._contributor = partial(Contributor, encoding=encoding)
        self._opening = opening
        first = read(weights)
        self._shards, self._shadow = first.shards, first.copy()
        self._lock = threading.Lock()
        self._publisher: Publisher | None = None
        self._parts: dict[int, RemotePart] = {}
        self._sessions: dict[int, str] = {}  # of the ranks in `_parts`
        self._incarnation = self._opening.incarnation
        self._step = 0
        self._log = VersionLog()
        self._peers = Peers(self._opening.run)
        include = weakly(self._include)
        self._gathering = Gathering(
            shards.ranks, self._log, lambda plan: bool(include(plan)), clock=self._clock
        )
        with ExitStack() as undo:
            undo.callback(self._log.close)
            self._merger = undo.enter_context(MergerThread(self._log, signing))
            self._server = undo.enter_context(
                serve(
                    self._log, listen, token=token, tls=tls, peers=self._peers,
                    gathering=self._gathering.answer,
                )
            )  # fmt: skip
            undo.callback(_close_all, self._parts)
            own = shards_to_json(ShardFile(first.shards))
            self._gathering.join_source(Join("", 0, shards.ranks, "lead", own), waits=False)
            plan = self._first_plan(shards.within_s)
            with self._lock:
                self._begin(plan, _SHADOW)
            self._gathering.step_is(0, self.version)
            self._undo = undo.pop_all()
        self._once.when_dropped(self, self._undo.close)

    @property
    def version(self) -> int:
        """Number of the newest version."""
        return self._log.newest_n

    @property
    def digest(self) -> str:
        """Digest of the newest version, as 32 hexadecimal digits."""
        newest = self._log.wait_manifests(self._log.newest_n - 1, 0)
        return hexadecimal(newest[-1].digest)

    def update(self, weights: Any) -> int:
        """Publish the changes of all ranks as the next version, and return its number.

        All ranks call it in step. After an error no rank has published, and the next call works.

        Args:
            weights: the rank's new weights, as passed at the start. They are not modified.

        Raises:
            InvalidArgument: names, dtypes, shapes or shards differ from those at the start.
            Unavailable: a rank did not take part in time.
        """
        self._once.check_open("this publisher")
        with self._lock:
            self._step += 1
            try:
                new = self._read(weights)
                check_alike(self._shards, new.shards)
                self._publish(new, f"update {self._step}")
            except (RoseError, MemoryError) as error:
                self._gathering.step_is(self._step, self.version, sentence(error))
                raise
            self._gathering.step_is(self._step, self.version)
            return self.version

    def _first_plan(self, within_s: float) -> Plan:
        """Wait for all ranks, and return the plan of their shards."""
        patience = Patience("rank 0 of the trainer", within_s, clock=self._clock)
        try:
            while missing := self._gathering.missing_sources(PAUSE_S):
                patience.wait_for(f"rank {listed(missing)}")
            return self._gathering.first_plan()
        except InvalidArgument as error:
            self._gathering.fail(error)
            self._clock.sleep(_REFUSED_S)  # closing the server would cancel the answers to ranks
            raise

    # ---- under the lock

    def _publish(self, new: RankWeights, label: str) -> None:
        planned = self._gathering.planned
        if planned is None:
            raise Unavailable("the trainer has no plan yet")
        sessions = {rank: one.session for rank, one in self._gathering.sources().items() if rank}
        publisher = self._publisher
        if publisher is None or not publisher.is_sound or sessions != self._sessions:
            self._publisher = None
            self._shadow = new.copy()
            self._begin(planned.plan, label)
            return
        own = new.views(planned.plan.sent_from(0))
        publisher.publish(own, *(WeightsElsewhere(label) for _ in self._parts))

    def _include(self, plan: Plan) -> bool:
        """Publish the newest version by another plan, unless an update is in progress."""
        if not self._lock.acquire(timeout=ANSWER_S):
            return False
        try:
            is_sound = self._publisher is not None and self._publisher.is_sound
            self._publisher = None
            if is_sound and self._are_settled():
                self._begin(plan, _SHADOW)
            else:  # the next update begins an incarnation
                self._gathering.plan_is(plan)
        finally:
            self._lock.release()
        return True

    def _are_settled(self) -> bool:
        """Return whether each rank's shadow is the newest version."""
        nothing = PackedPart()
        for part in self._parts.values():
            part.give_up(nothing)  # the rank keeps a pack that the log has
        settled = [part.take_back(nothing) for part in self._parts.values()]
        return all(settled)

    def _begin(self, plan: Plan, label: str) -> None:
        """Begin an incarnation with the weights that all ranks know by a label."""
        _close_all(self._parts)
        cut = plan.cut
        self._gathering.plan_is(plan)
        sources = self._gathering.sources()
        for rank, member in sources.items():
            if rank:
                self._parts[rank] = RemotePart(
                    member.address, self.token, cut, label, tls=self._tls
                )
        self._sessions = {rank: sources[rank].session for rank in self._parts}
        views = self._shadow.views(plan.sent_from(0))
        mine = self._contributor(views, cut, views.tiles)
        n = max(self._opening.n, self._log.newest_n + 1)
        self._publisher = Publisher(
            [mine, *self._parts.values()],
            cut,
            Version(self._opening.run, self._incarnation, n),
            self._log,
            signing=self._signing,
            on_published=self._merger.note,
        )
        self._incarnation += 1
        self._peers.announce(cut.layout)


class RankPublisher(Closing):
    """Another rank of a trainer: packs its own part. For use by one thread.

    The condition guards the weights of the update in progress.

    Args:
        read: function that finds the rank's part in what a user passes.
        weights: what the user passes, such as a model; only read.
        shards: the rank.
        listen: address of rank 0.
        token: token of rank 0.
        tls: certificates for both sides.
        encoding: wire encoding, as in `Contributor`.

    Raises:
        InvalidArgument: rank 0 has other tensors.
        DeadlineExceeded: another rank did not start in time.
    """

    def __init__(
        self,
        read: ReadWeights,
        weights: Any,
        shards: Shards,
        *,
        listen: str,
        token: str | None,
        tls: TlsFiles | None,
        encoding: Encoding,
    ) -> None:
        if token is None or listen.endswith(":0"):
            raise InvalidArgument(
                "every rank of a trainer needs the same token, and the port of rank 0 in listen: "
                "pass token= and listen= on all ranks"
            )
        self._once = Once()
        self._clock = BootClock()
        self._read, self._who = read, f"rank {shards.rank} of the trainer"
        self._contributor = partial(Contributor, encoding=encoding)
        self._within_s = shards.within_s
        first = read(weights)
        self._shards, self._shadow = first.shards, first.copy()
        self._changed = threading.Condition()
        self._current: tuple[str, RankWeights] | None = None  # label and weights of an update
        self._is_closed = False
        self.token: Final = token
        self.address: Final = listen
        self._version = 0
        with ExitStack() as undo:
            self._source = RemoteSource(listen, token, tls=tls)
            undo.callback(self._source.close)
            self._part = undo.enter_context(_OwnPart(self, _host_towards(listen), token, tls))
            self._join = Join(
                "", shards.rank, shards.ranks, secrets.token_hex(8),
                shards_to_json(ShardFile(first.shards)), self._part.address,
            )  # fmt: skip
            self._enter()
            self._undo = undo.pop_all()
        self._once.when_dropped(self, self._undo.close)

    @property
    def version(self) -> int:
        """Number of the newest version that this rank knows."""
        return self._version

    def update(self, weights: Any) -> int:
        """Publish with all other ranks: see `LeadPublisher.update`."""
        self._once.check_open("this publisher")
        self._step += 1  # also of an update that fails, so that ranks stay in step
        new = self._read(weights)
        check_alike(self._shards, new.shards)
        with self._given(f"update {self._step}", new):
            self._version = self._result(self._step)
        return self._version

    def close(self) -> None:
        """Stop serving the part; the publisher can publish nothing more without it."""
        self._once(self._close)

    def _close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._undo.close()

    def _enter(self) -> None:
        """Join the trainer, and wait for its opening."""
        joined = join(self._source, self._join, self._who, self._within_s)
        self._epoch, self._step = joined.epoch, max(joined.step, 0)  # below 0 before the opening
        self._version = self._ended(self._step).n

    def _result(self, number: int) -> int:
        """Wait for the result of an update.

        Raises:
            Unavailable: it failed, on any rank; or rank 0 was restarted or does not answer.
        """
        answer = self._ended(number)
        if answer.epoch != self._epoch:
            self._enter()
            raise Unavailable("rank 0 of the trainer was restarted: call update again")
        if answer.failure:
            raise Unavailable(f"update {number} failed: {answer.failure}")
        return answer.n

    def _ended(self, number: int) -> Stepped:
        """Wait for the end of an update, or for another publisher."""
        patience = Patience(self._who, self._within_s, clock=self._clock)
        while True:
            content = self._source.gather(
                packed(AskStep(number, self._join.rank, self._join.session)), ANSWER_S
            )
            answer = answer_of(content, Stepped)
            if answer.is_over or answer.epoch != self._epoch:
                return answer
            patience.wait_for(f"update {number} of rank 0")

    @contextmanager
    def _given(self, label: str, new: RankWeights) -> Iterator[None]:
        """Give weights to the threads of the part server, by a label."""
        with self._changed:
            self._current = label, new
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._current = None

    # ---- for the threads of the part server

    def named(self, label: str) -> RankWeights:
        """Return the weights of an update; wait for the rank to reach it.

        Raises:
            Unavailable: the rank does not reach it in time.
        """
        patience = Patience(f"rank 0, to publish {label},", PACK_S, clock=self._clock)
        with self._changed:
            while self._current is None or self._current[0] != label:
                try:
                    patience.wait_for(self._who)
                except DeadlineExceeded:
                    raise Unavailable(f"{self._who} has not reached {label}") from None
                if self._is_closed:
                    raise Unavailable(f"{self._who} was closed")
                self._changed.wait(PAUSE_S)
            return self._current[1]

    def opened(self, label: str) -> tuple[RankFile, Contributor]:
        """Return the rank's part of the present plan, and a contributor of it."""
        joined = join(self._source, self._join, self._who, self._within_s)
        file = places_from_json(joined.places, what="the part of the plan")
        if label != _SHADOW:
            self._shadow = self.named(label).copy()
        views = self._shadow.views(file.places)
        return file, self._contributor(views, file.cut, views.tiles)


class _OwnPart(PartServer):
    """Serves a rank's part by the plan that the publisher has when it opens the part."""

    def __init__(self, rank: RankPublisher, host: str, token: str, tls: TlsFiles | None) -> None:
        self._known_rank = weakref.ref(rank)
        self._places: Places = {}
        super().__init__((), Tiles.of(0), self._views, spelled(host, 0), token=token, tls=tls)

    @property
    def _rank(self) -> RankPublisher:
        rank = self._known_rank()
        if rank is None:
            raise Unavailable("this rank of the trainer has ended")
        return rank

    def _views(self, label: str) -> TileViews:
        return self._rank.named(label).views(self._places)

    def _opened(self, ask: messages.PartAsk) -> Contributor:
        file, made = self._rank.opened(ask.label)
        if file.layout != ask.layout:
            raise Unavailable("the publisher has made another plan meanwhile")
        self._places = file.places
        return made


def _close_all(parts: dict[int, RemotePart]) -> None:
    for part in parts.values():
        part.close()
    parts.clear()


def check_alike(before: ShardMap, after: ShardMap) -> None:
    """Refuse weights that are not those of the start.

    Raises:
        InvalidArgument: a tensor differs; the message names it.
    """
    if before == after:
        return
    for name in [*before.tensors, *after.tensors]:
        one, other = before.tensors.get(name), after.tensors.get(name)
        if one != other:
            raise InvalidArgument(f"{name} was {one} at the start, and is {other} now")
    moved = frozenset(before.pieces) ^ frozenset(after.pieces)
    name = next(iter(moved)).tensor if moved else "a tensor"
    raise InvalidArgument(f"{name} has other shards than at the start")


def _host_towards(address: str) -> str:
    """Return this machine's address on the way to another one."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    family, kind, protocol, _, place = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # sends nothing
        return str(probe.getsockname()[0])
