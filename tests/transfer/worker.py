"""A receiver with weights of its own, driven as by an engine."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from rose.errors import Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import (
    NAMELESS,
    Chunk,
    Manifest,
    StagedVersion,
    Subscription,
    UpdateKey,
    Version,
)
from rose.transfer.receiving.commit import Commit, CommitState, Target
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.source import Frames, Source, SourceAround
from rose.transfer.tiles import Row, Tiles

Bits = npt.NDArray[np.uint16]
COUNT, TILE = 1000, 64
TILES = Tiles.of(COUNT, TILE)
LONG_S = 200.0


class HandClock:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ns(self) -> int:
        return int(self.seconds * 1e9)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    pause = threading.Event()
    for _ in range(int(LONG_S / 0.005)):
        if is_so():
            return
        pause.wait(0.005)
    raise AssertionError("it never came to that")


def weights(seed: int, count: int = COUNT) -> Bits:
    return np.random.default_rng(seed).integers(0, 1 << 16, count).astype(np.uint16)


def changed(bits: Bits, seed: int, share: float = 0.05) -> Bits:
    """Return a copy in which some elements make a step, and a few jump."""
    rng = np.random.default_rng(seed)
    fresh = bits.copy()
    where = np.flatnonzero(rng.random(len(bits)) < share)
    fresh[where] += np.where(rng.random(len(where)) < 0.9, 1, 77).astype(np.uint16)
    return fresh


def row_digest(bits: Bits, tile_elements: int = TILE) -> Digest:
    """Return the digest of weights that are this row."""
    return Row(bits, Tiles.of(len(bits), tile_elements)).digests().total


def whole_row(source: Source, n: int | None = None) -> Bits:
    """Return the weights of a version, from a snapshot of all tiles."""
    snapshot = source.snapshot(n, range(len(TILES)))
    assert snapshot is not None
    bits = np.zeros(COUNT, np.uint16)
    for tile, frame in source.chunks(snapshot.key, snapshot.chunks):
        assert frame is not None
        assert snapshot.chunks[tile].is_of(frame)
        bits[TILES[tile].where] = np.frombuffer(frame, np.uint16, TILES[tile].count)
    assert row_digest(bits) == snapshot.digest
    return bits


class Planted(SourceAround):
    """A source that disappears and damages chunks on request, and records all requests."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.is_away = False
        self.left: int | None = None  # chunks until it goes away
        self.spoiled = 0  # chunks that it still spoils
        self.calls: list[str] = []
        self.crossed: list[tuple[UpdateKey, int]] = []

    def _look(self, call: str) -> None:
        self.calls.append(call)
        if self.is_away:
            raise Unavailable("planted: it is away")

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        self._look("wait")
        return super().wait_manifests(after_n, timeout_s)

    def snapshot(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        self._look("snapshot")
        return super().snapshot(n, tiles)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:
        self._look("report")
        super().report(receiver, n, is_match, digest)

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        self._look("chunks")
        for tile, frame in super().chunks(key, wanted):
            if self.left is not None:
                self.is_away = self.left == 0
                self.left -= 1
                self._look("chunk")
            self.crossed.append((key, tile))
            if self.spoiled and frame is not None:
                self.spoiled -= 1
                content = bytearray(frame)
                content[len(content) // 2] ^= 0xA5
                yield tile, bytes(content)
            else:
                yield tile, frame


class Worker:
    """Weights, a target over them, and a receiver; `follow` commits whatever is staged."""

    def __init__(
        self,
        source: Source,
        bits: Bits,
        *,
        tiles: Tiles = TILES,
        held: Version = NAMELESS,
        wrap: Callable[[Row], Target] = lambda row: row,
        claimed: tuple[int, int] | None = None,
        name: str = "worker",
        **knobs: Any,
    ) -> None:
        self.bits = bits.copy()
        self.target = wrap(Row(self.bits, tiles))
        self.digests = None
        self.outcomes = []
        self._bell = threading.Event()
        self.receiver = Receiver(
            source,
            name,
            held,
            Row(self.bits, tiles).digests().total if claimed is None else claimed,
            Subscription(tiles),
            self._bell.set,
            **knobs,
        )

    def take_staged(self, *, timeout_s: float = LONG_S) -> StagedVersion:
        """Wait for the next staged version, and take it."""
        assert self._bell.wait(timeout_s), f"nothing was staged; {self.receiver.failure}"
        self._bell.clear()
        staged = self.receiver.take_staged()
        assert staged is not None
        return staged

    def commit(self, *, timeout_s: float = LONG_S) -> CommitState:
        """Wait for the next staged version, commit it, and report."""
        staged = self.take_staged(timeout_s=timeout_s)
        commit = Commit(staged, self.target, self.receiver.digest, digests=self.digests)
        while commit.step():
            pass
        self.digests = commit.digests
        self.outcomes.append(commit.outcome)
        self.receiver.report(commit.outcome)
        return commit.state

    def follow(self, version: Version) -> None:
        """Commit until the weights are a version."""
        for _ in range(100):
            if self.receiver.held == version:
                return
            self.commit()
        raise AssertionError(f"100 commits, and not at {version}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.receiver.close()
