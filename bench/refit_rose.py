"""Rose with the link and ranks of `refit_ranks`: a rank receives only the tiles that it holds."""

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from bench.netns import Link, inside
from bench.refit_peers import Bits, Layout
from bench.refit_ranks import DEADLINE_S, Place, Rank
from rose.errors import CorruptData, check
from rose.transfer import Commit, Publisher, Receiver, Tiles, Version, VersionLog
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import NAMELESS, Subscription
from rose.transfer.publishing.contributor import Contributor
from rose.transfer.receiving.commit import CommitState
from rose.transfer.tiles import TILE_ELEMENTS, ShardViews
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve

_WIDTH: Final = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """The tiles of a layout: each rank's part of each tensor, in pieces.

    Args:
        tiles: all tiles, rank by rank within each tensor.
        canonical: position of each tile in the trainer's row.
        held: position of each tile in the row of its rank.
        rank: rank of each tile.
    """

    tiles: Tiles
    canonical: tuple[slice, ...]
    held: tuple[slice, ...]
    rank: tuple[int, ...]

    @classmethod
    def of(cls, layout: Layout) -> "Cut":
        """Divide a layout; both ends get the same tiles."""
        canonical: list[slice] = []
        held: list[slice] = []
        ranks: list[int] = []
        for index in range(len(layout.counts)):
            for rank in range(layout.ranks):
                part, begins = layout.part(index, rank), layout.tensor(index).start
                shift = layout.held(index).start - part.start
                for first in range(part.start, part.stop, TILE_ELEMENTS):
                    last = min(first + TILE_ELEMENTS, part.stop)
                    canonical.append(slice(begins + first, begins + last))
                    held.append(slice(shift + first, shift + last))
                    ranks.append(rank)
        counts = [where.stop - where.start for where in canonical]
        name = hashlib.sha256(f"{layout.counts} in {layout.ranks}".encode()).hexdigest()
        tiles = Tiles(counts, [_WIDTH] * len(counts), name)
        return cls(tiles, tuple(canonical), tuple(held), tuple(ranks))

    def trainers(self, canonical: Bits) -> ShardViews:
        """Return all tiles as views into the trainer's row."""
        return ShardViews({tile: (canonical[at],) for tile, at in enumerate(self.canonical)})

    def of_rank(self, rank: int, row: Bits) -> ShardViews:
        """Return a rank's tiles as views into its row."""
        return ShardViews(
            {tile: (row[at],) for tile, at in enumerate(self.held) if self.rank[tile] == rank}
        )


@dataclass(frozen=True, slots=True)
class Committed:
    """A rank's report of a version.

    Args:
        digest: digest of its weights.
        pause_ns: pause of the engine for the commit.
    """

    digest: tuple[int, int]
    pause_ns: int


def serve_rose(line: Connection, place: Place, address: str, token: str) -> None:
    """Run a rank until killed: it follows a publisher, and sends a `Committed` per version."""
    cut = Cut.of(place.layout)
    shard = cut.of_rank(place.rank, place.row())
    subscription = Subscription(cut.tiles, shard.tiles)
    digests = shard.digests()
    known: TileDigests | None = digests
    is_staged = threading.Event()
    source = RemoteSource(address, token)
    held = NAMELESS
    name = f"rank-{place.rank}"
    start = partial(Receiver, source, name, held, digests.total, subscription, is_staged.set)
    with start(digests=digests.copy()) as receiver:
        while True:
            check(is_staged.wait(DEADLINE_S), "the trainer published no version in time")
            is_staged.clear()
            staged = receiver.take_staged()
            if staged is None:
                continue
            began_ns = time.perf_counter_ns()
            commit = Commit(
                staged, shard, receiver.digest, digests=known, subscribed=subscription.wanted
            )
            commit.run()
            pause_ns = time.perf_counter_ns() - began_ns
            check(commit.state is CommitState.COMMITTED, f"{commit.outcome}")
            known = commit.digests
            receiver.report(commit.outcome)
            line.send(Committed(receiver.digest, pause_ns))


class RoseTrainer:
    """The near end: publishes each version once, and waits until every rank has its part."""

    def __init__(self, layout: Layout, old: Bits, address: str) -> None:
        self._cut = Cut.of(layout)
        self._log = VersionLog(versions_max=4)
        shadow = self._cut.trainers(old.copy())
        contributor = Contributor(shadow, self._cut.tiles, threads=os.cpu_count() or 1)
        opening = Version("bench", 1, 1)
        self._publisher = Publisher([contributor], self._cut.tiles, opening, self._log)
        self._server = serve(self._log, f"{address}:0")
        self.address = (self._server.address, self._server.token)
        self.ranks: list[Rank] = []

    def update(self, new: Bits) -> int:
        """Update every rank to its part of a version; return the bytes of chunks."""
        manifest = self._publisher.publish(self._cut.trainers(new))
        said = self.hear()
        # Each rank has different tiles, and together they have all of the trainer's.
        halves = zip(*(one.digest for one in said), strict=True)
        if tuple(sum(half) % (1 << 64) for half in halves) != manifest.digest:
            raise CorruptData("the ranks of rose hold other weights than the trainer's")
        return manifest.nbytes

    def hear(self) -> list[Committed]:
        """Wait until every rank has committed the next version."""
        return [rank.hear() for rank in self.ranks]

    def close(self) -> None:
        self._server.close()


@contextmanager
def rose_trainer(layout: Layout, old: Bits, folder: Path, link: Link) -> Iterator[RoseTrainer]:
    """Start a trainer here and its ranks at the far end; stop them after the body.

    Args:
        layout: layout of the model.
        old: canonical row at the start; also in `folder` as `old.npy`.
        folder: folder with `old.npy`.
        link: link between the trainer and the ranks.
    """
    with ExitStack() as parts:
        with inside(link.near.namespace):
            trainer = RoseTrainer(layout, old, link.near.address)
        parts.callback(trainer.close)
        for number in range(layout.ranks):
            place = Place(number, layout, folder, link.far.address)
            rank = Rank(link.far.namespace, serve_rose, place, *trainer.address)
            parts.callback(rank.end)
            trainer.ranks.append(rank)
        trainer.hear()  # the version at the start
        yield trainer
