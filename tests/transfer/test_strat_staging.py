"""A publisher that sends wire encodings, and receivers that decode or refuse them."""

from typing import Any

import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.errors import InvalidArgument, OutOfMemory
from rose.transfer.codec.delta import Delta
from rose.transfer.manifest import Manifest, Version
from rose.transfer.publishing.log import VersionLog
from rose.transfer.receiving.commit import CommitState
from rose.transfer.tiles import Row, Tiles
from tests.transfer.lr_law import bits_of_floats
from tests.transfer.worker import Bits, Worker

TILE = 16_384
COUNT = 2 * TILE + 1_000
TILES = Tiles.of(COUNT, TILE)
LEARNING_RATE = 1e-5


class Trainer:
    """fp32 masters, and a publisher of their bf16 bits."""

    def __init__(self, encoding: Any = "strat") -> None:
        self._rng = np.random.default_rng(7)
        self._masters = self._rng.normal(0, 0.02, COUNT)
        self.log = VersionLog()
        self.publisher = RowPublisher(
            self.bits, "run", 1, 1, self.log, tile_elements=TILE, encoding=encoding
        )

    @property
    def bits(self) -> Bits:
        return bits_of_floats(self._masters, 16)

    def step(self) -> Bits:
        self._masters += self._rng.normal(0, 0.3 * LEARNING_RATE, COUNT)
        return self.bits

    def publish(self) -> Version:
        self.publisher.publish(self.step())
        return self.publisher.version


class Staging(Worker):
    """A worker whose receiver unpacks while it stages."""

    def __init__(self, trainer: Trainer, bits: Bits, **knobs: Any) -> None:
        rows: list[Row] = []

        def base(tile: int) -> Bits:
            return rows[0].bits(tile)

        super().__init__(
            trainer.log,
            bits,
            tiles=TILES,
            wrap=lambda row: rows.append(row) or row,
            base=base,
            **knobs,
        )


def late(trainer: Trainer, bits: Bits) -> Worker:
    """Return a worker whose receiver has no base: its commits unpack."""
    return Worker(trainer.log, bits, tiles=TILES)


def deltas_in(log: VersionLog, manifest: Manifest) -> list[Delta]:
    frames = [log.chunk(manifest.key, one.tile) for one in manifest.chunks]
    return [Delta.from_bytes(frame) for frame in frames if frame is not None]


@pytest.mark.parametrize("make", [Staging, late])
def test_links_come_through_bit_for_bit_with_and_without_a_base(make: Any) -> None:
    trainer = Trainer()
    with make(trainer, trainer.bits) as worker:
        for _ in range(5):
            version = trainer.publish()
            worker.follow(version)
            assert np.array_equal(worker.bits, trainer.bits)
        assert {one.state for one in worker.outcomes} == {CommitState.COMMITTED}
        assert worker.receiver.stats.snapshots == worker.receiver.stats.given_up == 0
    (last,) = trainer.log.wait_manifests(version.n - 1, 0)
    assert all(delta.rule is not None for delta in deltas_in(trainer.log, last))


@pytest.mark.parametrize("fault", [OutOfMemory, InvalidArgument, MemoryError])
def test_pulled_chunks_stay_until_unpacked(fault: type[Exception]) -> None:
    trainer = Trainer()
    left = 3

    def base(tile: int) -> Bits:
        nonlocal left
        if tile == 1 and left > 0:
            left -= 1
            raise fault("planted")
        return row.bits(tile)

    bits = trainer.bits
    row = Row(bits.copy(), TILES)
    with Worker(trainer.log, bits, tiles=TILES, wrap=lambda _: row, base=base) as worker:
        worker.follow(trainer.publish())
        assert left == 0
        assert np.array_equal(np.concatenate([row.bits(i) for i in range(3)]), trainer.bits)
        sent = trainer.log.statistics().sent_bytes
        [last] = trainer.log.wait_manifests(worker.receiver.held.n - 1, 0)
        assert sent == sum(chunk.nbytes for chunk in last.chunks)


def test_links_are_a_fifth_smaller_and_make_the_same_versions() -> None:
    sent = {}
    for encoding in ("gap", "strat"):
        trainer = Trainer(encoding)
        with Staging(trainer, trainer.bits) as worker:
            for _ in range(3):
                worker.follow(trainer.publish())
            assert np.array_equal(worker.bits, trainer.bits)
        sent[encoding] = trainer.log.statistics().sent_bytes
    assert sent["strat"] < 0.8 * sent["gap"]


def test_corruption_is_found_while_staging_and_a_snapshot_repairs_it() -> None:
    trainer = Trainer()
    with Staging(trainer, trainer.bits) as worker:
        worker.follow(trainer.publish())
        worker.bits[TILE + 3] ^= 1  # behind everybody's back
        worker.follow(trainer.publish())
        assert np.array_equal(worker.bits, trainer.bits)
        stats = worker.receiver.stats
        assert (stats.given_up, stats.snapshots) == (1, 1)
        assert {one.state for one in worker.outcomes} == {CommitState.COMMITTED}


def test_corruption_that_only_the_commit_can_find_goes_back_and_is_repaired() -> None:
    trainer = Trainer()
    with late(trainer, trainer.bits) as worker:
        worker.follow(trainer.publish())
        worker.bits[TILE + 3] ^= 1
        corrupted = worker.bits.copy()
        version = trainer.publish()
        assert worker.commit() is CommitState.ROLLED_BACK
        assert "base" in str(worker.outcomes[-1].reason)
        assert np.array_equal(worker.bits, corrupted)
        assert worker.outcomes[-1].digest == Row(corrupted, TILES).digests().total
        worker.follow(version)
        assert np.array_equal(worker.bits, trainer.bits)
        assert worker.receiver.stats.snapshots == 1


def test_another_kind_of_link_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="choose gap or strat"):
        Trainer("zip")
