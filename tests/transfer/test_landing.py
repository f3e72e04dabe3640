"""A first sync lands in place: whole tiles, read back and compared, one version at the end."""

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.errors import CorruptData, Unavailable
from rose.transfer.manifest import (
    TILE_MAC_BYTES,
    Chunk,
    StagedVersion,
    Subscription,
    UpdateKey,
    Version,
)
from rose.transfer.publishing.contributor import Encoding
from rose.transfer.publishing.log import VersionLog
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.commit import Commit, CommitState
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.staging import Staging
from rose.transfer.signing import UNSIGNED, Signing
from rose.transfer.source import Frames, Source, SourceAround
from rose.transfer.tiles import Row
from rose.transfer.wire.server import serve
from tests.transfer.worker import (
    LONG_S,
    NAMELESS,
    TILE,
    TILES,
    Bits,
    Planted,
    changed,
    weights,
)

KEY = Signing(b"k" * 32)


class Trainer:
    """A publisher, and the bits of every version."""

    def __init__(self, *, encoding: Encoding = "gap", signing: Signing = UNSIGNED) -> None:
        self.log = VersionLog(versions_max=2)
        bits = weights(1)
        self.publisher = RowPublisher(
            bits, "run", 1, 1, self.log, tile_elements=TILE, encoding=encoding, signing=signing
        )
        self.by_version = {self.publisher.version: bits}

    def publish(self) -> Version:
        before = self.by_version[self.publisher.version]
        fresh = changed(before, self.publisher.version.n, share=0.3)
        version = self.publisher.publish(fresh).version
        self.by_version[version] = fresh
        return version


class Landing:
    """A receiver without a thread, of weights that nobody uses yet."""

    def __init__(self, source: Source, bits: Bits, *, signing: Signing = UNSIGNED) -> None:
        self.bits = bits
        self.row = Row(bits, TILES)
        self.source = Planted(source)
        self.staging = Staging(
            self.source, "one", Held(NAMELESS, (0, 0)), Subscription(TILES),
            puller=Puller(self.source, threading.Event(), signing=signing), on_staged=lambda: None,
            base=self.row.bits, lands=self.row, signing=signing,
        )  # fmt: skip

    def staged(self) -> StagedVersion:
        for _ in range(3):
            self.staging.round(0)
            if (staged := self.staging.take_staged()) is not None:
                return staged
        raise AssertionError("nothing was staged")

    def commit(self) -> Version:
        commit = Commit(self.staged(), self.row, self.staging.digest)
        assert commit.run().state is CommitState.COMMITTED
        self.staging.report(commit.outcome)
        return self.staging.held

    @property
    def fetched(self) -> list[int]:
        return [tile for key, tile in self.source.crossed if key.is_whole]


@pytest.mark.parametrize("signing", [UNSIGNED, KEY])
def test_first_sync_is_in_place_before_the_commit_names_it(signing: Signing) -> None:
    trainer = Trainer(signing=signing)
    one = Landing(trainer.log, weights(9), signing=signing)
    staged = one.staged()
    assert np.array_equal(one.bits, weights(1))
    assert one.staging.held == NAMELESS
    assert not staged.whole
    commit = Commit(staged, one.row, one.staging.digest)
    one.staging.report(commit.run())
    assert one.staging.held == trainer.publisher.version
    version = trainer.publish()  # and deltas go on
    assert one.commit() == version
    assert np.array_equal(one.bits, trainer.by_version[version])
    assert sorted(one.fetched) == list(range(len(TILES)))


def test_only_differing_tiles_are_fetched() -> None:
    trainer = Trainer()
    trainer.publish()
    bits = trainer.by_version[trainer.publish()].copy()
    bits[3 * TILE] ^= 1
    one = Landing(trainer.log, bits)
    one.commit()
    assert one.fetched == [3]
    same = Landing(trainer.log, trainer.by_version[trainer.publisher.version].copy())
    assert same.commit() == trainer.publisher.version
    assert not same.source.crossed


def test_weights_of_an_older_version_take_its_update() -> None:
    trainer = Trainer()
    older = trainer.publish()
    newest = trainer.publish()
    one = Landing(trainer.log, trainer.by_version[older].copy())
    assert one.commit() == newest
    assert not one.fetched


@pytest.mark.parametrize("seed", range(10))
def test_sync_goes_on_where_the_connection_broke(seed: int) -> None:
    trainer = Trainer()
    one = Landing(trainer.log, weights(9))
    rng = Random(seed)
    for _ in range(3):
        one.source.left = rng.randrange(len(TILES) // 4)
        one.source.is_away = False
        with pytest.raises(Unavailable):
            one.staging.round(0)
        assert one.staging.held == NAMELESS
    one.source.left, one.source.is_away = None, False
    one.commit()
    assert sorted(one.fetched) == list(range(len(TILES)))  # each once


@pytest.mark.parametrize("signing", [UNSIGNED, KEY])
def test_damaged_tile_is_fetched_again_and_given_up_after_some_attempts(signing: Signing) -> None:
    trainer = Trainer(signing=signing)
    one = Landing(trainer.log, weights(9), signing=signing)
    one.source.spoiled = 2
    one.commit()
    assert one.staging.stats.chunks_retried == 2
    other = Landing(trainer.log, weights(9), signing=signing)
    other.source.spoiled = 1 << 30
    with pytest.raises(CorruptData, match="did not arrive undamaged in 4 attempts"):
        other.staging.round(0)
    assert other.staging.held == NAMELESS
    other.source.spoiled = 0
    assert other.commit() == trainer.publisher.version
    assert np.array_equal(other.bits, weights(1))


def test_tile_with_the_right_digest_but_no_mac_is_refused() -> None:
    """A relay can find other elements with the tile's digest, but not make their MAC."""
    trainer = Trainer(signing=KEY)

    class Forging(SourceAround):
        def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
            for tile, frame in super().chunks(key, wanted):
                assert frame is not None
                elements = bytes(frame[:-TILE_MAC_BYTES])
                yield tile, elements + Signing(b"another").tile_mac(elements)

    one = Landing(Forging(trainer.log), weights(9), signing=KEY)
    with pytest.raises(CorruptData, match="its MAC"):
        one.staging.round(0)
    assert np.array_equal(one.bits, weights(9))


class Updating(SourceAround):
    """Publishes a version before each whole tile that is sent."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer.log)
        self.trainer = trainer

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        for one in super().chunks(key, wanted):
            if key.is_whole:
                self.trainer.publish()
            yield one


@pytest.mark.parametrize("encoding", ["gap", "strat"])
def test_publisher_that_goes_on_starves_nobody(encoding: Encoding) -> None:
    """The log keeps two versions, so none of the deltas since the snapshot's version is there."""
    trainer = Trainer(encoding=encoding)
    one = Landing(Updating(trainer), weights(9))
    version = one.commit()
    assert np.array_equal(one.bits, trainer.by_version[version])
    assert trainer.publisher.version.n == version.n + len(TILES)


def test_publisher_that_restarts_in_between_is_followed() -> None:
    before, after = Trainer(), VersionLog()
    one = Landing(before.log, weights(9))
    one.source.left = 5
    with pytest.raises(Unavailable):
        one.staging.round(0)
    fresh = changed(weights(1), 3)
    RowPublisher(fresh, "run", 2, 7, after, tile_elements=TILE)
    one.source._source, one.source.left, one.source.is_away = after, None, False
    assert one.commit() == Version("run", 2, 7)
    assert np.array_equal(one.bits, fresh)


KILLED = """
import os, signal, sys, threading
import numpy as np
from rose.transfer.manifest import NAMELESS, Subscription
from rose.transfer.receiving.receiver import Receiver
from rose.transfer.tiles import Row
from rose.transfer.wire.remote import RemoteSource
from tests.transfer.worker import COUNT, TILES

lock = threading.Lock()

class Dying(Row):
    left = int(sys.argv[4])
    def write(self, tile, elements):
        with lock:
            super().write(tile, elements)
            Dying.left -= 1
            if Dying.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

row = Dying(np.memmap(sys.argv[1], np.uint16, "r+", shape=(COUNT,)), TILES)
source = RemoteSource(sys.argv[2], sys.argv[3])
Receiver(source, "dying", NAMELESS, None, Subscription(TILES), lands=row)._rounds.has_ended(200)
"""


@pytest.mark.parametrize("at", [1, 7, len(TILES)])
def test_receiver_killed_while_tiles_land_is_completed_by_the_next(at: int, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    weights(9).tofile(file)
    trainer = Trainer()
    with serve(trainer.log) as server:
        command = [sys.executable, "-c", KILLED, str(file), server.address, server.token, str(at)]
        assert subprocess.run(command, timeout=LONG_S, check=False).returncode == -signal.SIGKILL
    torn = np.fromfile(file, np.uint16)
    right = Row(torn, TILES).digests()
    whole = Row(weights(1), TILES)
    missing = [tile for tile in right if right[tile] != whole.digest(tile)]
    assert len(missing) == len(TILES) - at
    one = Landing(trainer.log, torn)
    one.commit()
    assert sorted(one.fetched) == missing
    assert np.array_equal(one.bits, weights(1))
