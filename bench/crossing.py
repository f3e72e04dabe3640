"""Eight receivers in four layouts behind one relay: bytes from the trainer to them.

The trainer's four ranks share one server. The relay connects to it over TCP, and the receivers
follow the relay. All of them are in this process. Bytes are counted where they arrive.
"""

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.shardings import (
    Bits,
    Memory,
    by_rows,
    decoder,
    pipelined,
    shard_map,
    tensor_parallel,
)
from bench.versions import two_versions
from rose.errors import CorruptData, DeadlineExceeded, InternalError, check
from rose.transfer import (
    Commit,
    Publisher,
    Receiver,
    Tiles,
    Version,
    VersionLog,
)
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import NAMELESS, Chunk, Subscription, UpdateKey
from rose.transfer.plan import Plan, Replica, make_plan
from rose.transfer.plan import RelayNode as Landing
from rose.transfer.plan import SourceRanks as Trainer
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.receiving.commit import CommitState
from rose.transfer.relaying.relay import Relay, follow
from rose.transfer.source import Frames, Source, SourceAround
from rose.transfer.tiles import Row, ShardViews
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve

_CLUSTER: Final = "serving"
_DENSITY: Final = 0.01
_DEADLINE_S: Final = 60.0
LAYOUTS: Final = {
    "whole": (1, tensor_parallel(1)),
    "tensor parallel": (2, tensor_parallel(2)),
    "pipelined": (2, pipelined(2)),
    "by rows": (3, by_rows(3)),
}


class CountedSource(SourceAround):
    """A source that records the bytes of every frame it delivers."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.nbytes = 0

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        for tile, frame in super().chunks(key, wanted):
            self.nbytes += len(frame or b"")
            yield tile, frame


@dataclass(slots=True)
class Rank:
    """One receiver: its memory, its tiles, and the objects that bring versions there."""

    memory: Memory
    views: ShardViews
    subscription: Subscription
    known: TileDigests | None
    receiver: Receiver | None = None

    def commit(self) -> int:
        """Commit the staged version; return its number."""
        if self.receiver is None:
            raise InternalError("a rank must follow a source before it commits")
        staged = self.receiver.take_staged()
        if staged is None:
            raise InternalError("no staged version was ready")
        commit = Commit(
            staged,
            self.views,
            self.receiver.digest,
            digests=self.known,
            subscribed=self.subscription.wanted,
        )
        commit.run()
        check(commit.state is CommitState.COMMITTED, f"{commit.outcome}")
        self.known = commit.digests
        self.receiver.report(commit.outcome)
        return staged.manifest.version.n


@dataclass(frozen=True, slots=True)
class Crossed:
    """Bytes of frames in one update.

    Args:
        crossing: bytes from the trainer to the relay.
        bound: bytes if each changed tile that a receiver holds is sent once.
        flat: bytes of the same change in a flat row, which needs no division into shards.
        relayed: bytes from the relay to the receivers.
        received: bytes at all receivers together.
    """

    crossing: int
    bound: int
    flat: int
    relayed: int
    received: int


class Crossing:
    """The trainer, the relay and the eight receivers."""

    def __init__(self, parts: ExitStack) -> None:
        self._tensors = decoder()
        counts = {name: int(np.prod(spec.shape)) for name, spec in self._tensors.items()}
        versions = two_versions(sum(counts.values()), density=_DENSITY)
        self._old, self._new = versions.old, versions.new
        canonical = self._named(self._old)
        trainer = shard_map(self._tensors, by_rows(4))
        self.plan: Plan = make_plan(
            Trainer("training", trainer),
            [
                Replica(name, _CLUSTER, shard_map(self._tensors, cut))
                for name, (_, cut) in LAYOUTS.items()
            ],
            [Landing("relay", _CLUSTER)],
        )
        plan, self._tiles = self.plan, self.plan.cut
        self._trainer = trainer
        log = VersionLog(versions_max=4)
        contributors = [
            Contributor(views, self._tiles, plan.contributes(rank))
            for rank, views in zip(trainer.ranks, self._sent(canonical), strict=True)
        ]
        opening = Version("bench", 1, 1)
        self._publisher = Publisher(contributors, self._tiles, opening, log)
        self._log = log
        self._flat = _Flat(self._old)
        self._staged: queue.Queue[int] = queue.Queue()
        self.ranks = [
            self._rank(name, rank, canonical)
            for name, (ranks, _) in LAYOUTS.items()
            for rank in range(ranks)
        ]
        self._follow(parts)

    def update(self, *, is_new: bool) -> Crossed:
        """Publish a version, commit it on every rank, and check all of them."""
        row = self._new if is_new else self._old
        canonical = self._named(row)
        before, relayed, received = self._counted(), self._relayed(), self._received()
        manifest = self._publisher.publish(*self._sent(canonical))
        self._commit_all(manifest.version.n)
        for number, rank in enumerate(self.ranks):
            if not rank.memory.equals(canonical):
                raise CorruptData(f"receiver {number} has other weights than the trainer")
        held = {holder for rank in self.ranks for holder in rank.subscription.wanted}
        return Crossed(
            crossing=self._counted() - before,
            bound=sum(chunk.nbytes for chunk in manifest.chunks if chunk.tile in held),
            flat=self._flat.nbytes_of(row),
            relayed=self._relayed() - relayed,
            received=self._received() - received,
        )

    def _named(self, row: Bits) -> dict[str, Bits]:
        named: dict[str, Bits] = {}
        first = 0
        for name, spec in self._tensors.items():
            last = first + int(np.prod(spec.shape))
            named[name] = row[first:last].reshape(spec.shape)
            first = last
        return named

    def _sent(self, canonical: Mapping[str, Bits]) -> list[ShardViews]:
        """Return the tiles that each of the trainer's ranks sends, in separate memory."""
        found = []
        for rank in self._trainer.ranks:
            memory = Memory.of(self._trainer, rank, canonical)
            found.append(ShardViews(memory.views(self.plan.sent_from(rank))))
        return found

    def _rank(self, replica: str, rank: int, canonical: Mapping[str, Bits]) -> Rank:
        shards = shard_map(self._tensors, LAYOUTS[replica][1])
        memory = Memory.of(shards, rank, canonical)
        views = ShardViews(memory.views(self.plan.places(replica, rank)))
        wanted = self.plan.tiles_for(replica, rank)
        return Rank(memory, views, Subscription(self._tiles, wanted), views.digests())

    def _follow(self, parts: ExitStack) -> None:
        server = serve(self._log)
        parts.callback(server.close)
        # One source for the relay's own thread, and one for tiles that receivers request before the
        # tiles arrive.
        sources = [RemoteSource(server.address, server.token) for _ in range(2)]
        for source in sources:
            parts.callback(source.close)
        self._counts = [CountedSource(source) for source in sources]
        self._relay = Relay(self._counts[0], store=MemoryStore(), reader=self._counts[1])
        parts.enter_context(follow(self._relay))
        for number, rank in enumerate(self.ranks):
            digests = rank.views.digests()
            rank.receiver = Receiver(
                self._relay,
                f"receiver-{number}",
                NAMELESS,
                digests.total,
                rank.subscription,
                lambda number=number: self._staged.put(number),
                digests=digests,
            )
            parts.callback(rank.receiver.close)
        self._commit_all(self._publisher.version.n)

    def _commit_all(self, n: int) -> None:
        behind = set(range(len(self.ranks)))
        while behind:
            try:
                number = self._staged.get(timeout=_DEADLINE_S)
            except queue.Empty as error:
                failures = [rank.receiver and rank.receiver.failure for rank in self.ranks]
                raise DeadlineExceeded(f"ranks {behind} were late: {failures}") from error
            if self.ranks[number].commit() == n:
                behind.discard(number)

    def _counted(self) -> int:
        return sum(one.nbytes for one in self._counts)

    def _relayed(self) -> int:
        return self._relay.statistics().sent_bytes

    def _received(self) -> int:
        return sum(rank.receiver.stats.received_bytes for rank in self.ranks if rank.receiver)


class _Flat:
    """The same versions in a flat row, without receivers."""

    def __init__(self, old: Bits) -> None:
        self._tiles = Tiles.of(len(old))
        shadow = Row(old.copy(), self._tiles)
        contributor = Contributor(shadow, self._tiles)
        log = VersionLog(versions_max=2)
        self._publisher = Publisher([contributor], self._tiles, Version("flat", 1, 1), log)

    def nbytes_of(self, row: Bits) -> int:
        """Return the bytes of the frames of a step to `row`."""
        return self._publisher.publish(Row(row, self._tiles)).nbytes


@contextmanager
def crossing() -> Iterator[Crossing]:
    """Start everything; stop it at the end of the body."""
    with ExitStack() as parts:
        yield Crossing(parts)
