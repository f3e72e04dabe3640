"""The same trainer, link and ranks with rose: each rank follows what it holds, and nothing else."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.netns import Link, inside
from bench.refit_peers import Bits, Layout
from bench.refit_ranks import Place, Rank
from rose.errors import CorruptData, check
from rose.transfer import Commit, CommitState, Publisher, Receiver, Row, Tiles, Version, VersionLog
from rose.transfer.remote import RemoteSource
from rose.transfer.server import WeightServer, serve

_RUN = "bench"


@dataclass(frozen=True, slots=True)
class Committed:
    """What a rank says of a version.

    Args:
        digest: of its weights.
        pause_ns: from when the engine stopped for the commit to when it could go on.
        received_bytes: of chunks, since the start.
    """

    digest: tuple[int, int]
    pause_ns: int
    received_bytes: int


def serve_rose(line: Connection, place: Place, address: str, token: str) -> None:
    """Be a rank that follows a publisher, until killed; says `Committed` after each version."""
    bits = place.row()
    tiles = Tiles.of(len(bits))
    row = Row(bits, tiles)
    digests = row.digests()
    staged_is_ready = threading.Event()
    source = RemoteSource(address, token)
    held = Version("", 0, 0)
    name = f"rank-{place.rank}"
    with Receiver(source, name, held, digests.total, tiles, staged_is_ready.set) as receiver:
        while True:
            staged_is_ready.wait()
            staged_is_ready.clear()
            staged = receiver.take_staged()
            if staged is None:
                continue
            began_ns = time.perf_counter_ns()
            commit = Commit(staged, row, receiver.digest, digests=digests)
            while commit.step():
                pass
            pause_ns = time.perf_counter_ns() - began_ns
            check(commit.state is CommitState.COMMITTED, f"{commit.outcome}")
            receiver.report(commit.outcome)
            line.send(Committed(receiver.digest, pause_ns, receiver.stats.received_bytes))


class RoseTrainer:
    """The near end: publishes what each rank holds, and waits until every rank has it."""

    def __init__(self, layout: Layout, old: Bits) -> None:
        self._rows = [layout.row_of(rank, old) for rank in range(layout.ranks)]
        logs = [VersionLog(versions_max=4) for _ in self._rows]
        self._publishers = [
            Publisher(row, _RUN, 1, 1, log) for row, log in zip(self._rows, logs, strict=True)
        ]
        self._servers: list[WeightServer] = [serve(log, "127.77.0.1:0") for log in logs]
        self._pool = ThreadPoolExecutor(len(logs))
        self.ranks: list[Rank] = []
        self.said: list[Committed] = []

    @property
    def addresses(self) -> list[tuple[str, str]]:
        """Return address and token for each rank."""
        return [(server.address, server.token) for server in self._servers]

    def update(self, rows: list[Bits]) -> int:
        """Bring every rank to its row of a version; returns the bytes of chunks."""
        pairs = zip(self._publishers, rows, strict=True)
        packed = list(self._pool.map(lambda pair: pair[0].publish(pair[1]), pairs))
        self.hear()
        for manifest, said in zip(packed, self.said, strict=True):
            if manifest.digest != said.digest:
                raise CorruptData("a rank of rose holds other weights than the trainer's")
        return sum(manifest.nbytes for manifest in packed)

    def hear(self) -> None:
        """Wait until every rank has committed the next version."""
        self.said = [rank.hear() for rank in self.ranks]

    def close(self) -> None:
        self._pool.shutdown()
        for server in self._servers:
            server.close()


@contextmanager
def rose_trainer(layout: Layout, old: Bits, folder: Path, link: Link) -> Iterator[RoseTrainer]:
    """Start a trainer here and its ranks at the far end, and end them with the body.

    Args:
        layout: of the model.
        old: the canonical row that all begin with; also in `folder` as `old.npy`.
        folder: see there.
        link: between the trainer and the ranks.
    """
    with ExitStack() as parts:
        with inside(link.near.namespace):
            trainer = RoseTrainer(layout, old)
        parts.callback(trainer.close)
        for number, (address, token) in enumerate(trainer.addresses):
            place = Place(number, layout, folder, link.far.address)
            rank = Rank(link.far.namespace, serve_rose, place, address, token)
            parts.callback(rank.end)
            trainer.ranks.append(rank)
        trainer.hear()  # the version that all begin with
        yield trainer
