"""A trainer and one engine of a large model, in two processes of one machine.

The weights repeat a pattern, so both ends make them without a file. The trainer holds only its new
weights and its shadow.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import numpy as np

from bench.refit_peers import Bits
from bench.refit_ranks import DEADLINE_S, Rank
from bench.row_publisher import RowPublisher
from bench.versions import PATTERN, two_versions
from rose.errors import CorruptData, InvalidArgument, check
from rose.transfer import Commit, Receiver, Tiles, VersionLog
from rose.transfer.digests import TileDigests
from rose.transfer.manifest import NAMELESS, Subscription
from rose.transfer.receiving.commit import CommitState
from rose.transfer.tiles import Row
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve

_DENSITY: Final = 0.01
_COMMIT: Final = "commit"
_BARE: Final = "bare"


@dataclass(frozen=True, slots=True)
class Update:
    """Times of an update.

    Args:
        e2e_ms: time from new weights until the engine runs on them.
        pause_ms: pause of the engine.
        nbytes: bytes of frames.
        changed: changed elements.
    """

    e2e_ms: float
    pause_ms: float
    nbytes: int
    changed: int


class LargeTrainer:
    """Updates an engine to and fro between two versions."""

    def __init__(self, elements: int) -> None:
        versions = two_versions(PATTERN, density=_DENSITY)
        self._patch = versions.old ^ versions.new
        self._live: Bits = np.resize(versions.old, elements)
        # The engine has the first version, so the log need not keep its snapshot.
        self._log = VersionLog(versions_max=2)
        self._publisher = RowPublisher(self._live, "bench", 1, 1, self._log)
        self._server = serve(self._log)
        address, token = self._server.address, self._server.token
        self._engine = Rank("", serve_large, elements, address, token)
        self._hear_commit()

    def update(self) -> Update:
        """Publish the other version, and wait until the engine runs on it."""
        flip(self._live, self._patch)
        began_ns = time.perf_counter_ns()
        manifest = self._publisher.publish(self._live)
        digest, pause_ns = self._hear_commit()
        took_ns = time.perf_counter_ns() - began_ns
        if digest != manifest.digest:
            raise CorruptData("the engine has other weights than the trainer's")
        return Update(took_ns / 1e6, pause_ns / 1e6, manifest.nbytes, manifest.changed)

    def bare_ms(self) -> float:
        """Return the engine's time for a bare read-modify-write and digest, in ms."""
        self._engine.say(_BARE)
        return float(self._engine.hear()) / 1e6

    def _hear_commit(self) -> tuple[tuple[int, int], int]:
        self._engine.say(_COMMIT)
        digest, pause_ns = self._engine.hear()
        return digest, pause_ns

    def close(self) -> None:
        self._engine.end()
        self._server.close()


@contextmanager
def large_trainer(elements: int) -> Iterator[LargeTrainer]:
    """Start both ends at the same version; stop them at the end of the body.

    Args:
        elements: number of elements, a multiple of `PATTERN`; each end holds one or two copies.
    """
    if elements % PATTERN:
        raise InvalidArgument(f"elements must be a multiple of {PATTERN}, got {elements}")
    with ExitStack() as parts:
        trainer = LargeTrainer(elements)
        parts.callback(trainer.close)
        yield trainer


def flip(bits: Bits, patch: Bits) -> None:
    """Turn one version into the other, in place."""
    patterns = bits.reshape(-1, PATTERN)
    np.bitwise_xor(patterns, patch, out=patterns)


def serve_large(line: Connection, elements: int, address: str, token: str) -> None:
    """Run the engine until killed: commit the next version or do the bare work, on request."""
    versions = two_versions(PATTERN, density=_DENSITY)
    patch = versions.old ^ versions.new
    bits: Bits = np.resize(versions.old, elements)
    tiles = Tiles.of(elements)
    row = Row(bits, tiles)
    digests = row.digests()
    known: TileDigests | None = digests
    is_staged = threading.Event()
    source = RemoteSource(address, token)
    held = NAMELESS
    all_tiles = Subscription(tiles)
    with Receiver(
        source, "engine", held, digests.total, all_tiles, is_staged.set, digests=digests.copy()
    ) as receiver:
        while True:
            if line.recv() == _BARE:
                line.send(_bare_ns(row, tiles, patch))
                flip(bits, patch)  # back to the first version
                continue
            check(is_staged.wait(DEADLINE_S), "the trainer published no version in time")
            is_staged.clear()
            staged = receiver.take_staged()
            check(staged is not None, "no staged version was ready")
            began_ns = time.perf_counter_ns()
            commit = Commit(staged, row, receiver.digest, digests=known)  # type: ignore[arg-type]
            commit.run()
            pause_ns = time.perf_counter_ns() - began_ns
            check(commit.state is CommitState.COMMITTED, f"{commit.outcome}")
            known = commit.digests
            receiver.report(commit.outcome)
            line.send((receiver.digest, pause_ns))


def _bare_ns(row: Row, tiles: Tiles, patch: Bits) -> int:
    """Apply a dense patch to every tile and compute its digest; an update touches all tiles too."""
    began_ns = time.perf_counter_ns()
    for tile in tiles:
        bits = row.bits(tile.index)
        first = tile.first % PATTERN
        np.bitwise_xor(bits, patch[first : first + tile.count], out=bits)
        row.digest(tile.index)
    return time.perf_counter_ns() - began_ns
