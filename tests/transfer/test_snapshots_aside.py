"""Whole tiles are read from the shadow when they are sent, and delay no version."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rose.errors import Unavailable
from rose.transfer.manifest import TILE_MAC_BYTES, Manifest, Version
from rose.transfer.publishing import past
from rose.transfer.publishing import publisher as publishing
from rose.transfer.publishing.contributor import Contributor, Encoding
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.publisher import Publisher
from rose.transfer.tiles import Row
from tests.transfer.worker import (
    LONG_S,
    TILES,
    Bits,
    HandClock,
    changed,
    row_digest,
    weights,
)

BITS = [weights(1)]
for step in range(8):
    BITS.append(changed(BITS[-1], 70 + step, share=0.3))


class Paused(Contributor):
    """Calls `before_tile` before it packs each tile, while the shadow is between two versions."""

    def __init__(self, encoding: Encoding = "gap") -> None:
        super().__init__(Row(BITS[0].copy(), TILES), TILES, encoding=encoding)
        self.before_tile: Callable[[int], None] = lambda _tile: None

    def _pack_here(self, new: Any, tiles: Any, rule: Any, part: Any) -> None:
        for bits, tile in zip(new, tiles, strict=True):
            self.before_tile(tile)
            super()._pack_here([bits], [tile], rule, part)


def publisher_of(contributor: Contributor, **limits: int) -> Publisher:
    return Publisher([contributor], TILES, Version("run", 1, 1), VersionLog(**limits))


def elements(publisher: Publisher, manifest: Manifest, tile: int) -> Bits:
    frame = publisher.whole(manifest.version.n, tile)
    assert frame is not None
    assert manifest.chunks[tile].is_of(frame)
    assert len(frame) == TILES[tile].nbytes + TILE_MAC_BYTES
    return np.frombuffer(frame, np.uint16, TILES[tile].count)


def snapshot_of(publisher: Publisher) -> Manifest:
    snapshot = publisher.snapshot(None, range(len(TILES)))
    assert snapshot is not None
    return snapshot


@pytest.mark.parametrize("encoding", ["gap", "strat"])
@pytest.mark.parametrize("bytes_max", [0, 1 << 20])
def test_all_tiles_of_a_snapshot_are_of_its_version_whatever_is_published_meanwhile(
    encoding: Encoding, bytes_max: int
) -> None:
    """The log keeps one version, and the deltas since the snapshot are merged at once or never."""
    publisher = publisher_of(Paused(encoding), versions_max=1)
    publisher._past._bytes_max = bytes_max
    manifest = snapshot_of(publisher)
    got = np.empty_like(BITS[0])
    for tile in TILES:
        got[tile.where] = elements(publisher, manifest, tile.index)
        publisher.publish(Row(BITS[tile.index % 8 + 1], TILES))
    assert np.array_equal(got, BITS[0])
    assert len(publisher._past._steps) == (len(TILES) if bytes_max else 1)


def test_snapshots_of_two_versions_are_fetched_to_their_end() -> None:
    """As by the ranks of an engine that stage a version which others of them were late for."""
    publisher = publisher_of(Paused("strat"))
    publisher._past._bytes_max = 0
    manifests = []
    for step in range(4):
        manifests.append(snapshot_of(publisher))
        publisher.publish(Row(BITS[step + 1], TILES))
    assert [one.base_n for one in publisher._past._steps] == [1, 2, 3, 4]
    for step, manifest in enumerate(manifests):
        again = publisher.snapshot(manifest.version.n, range(len(TILES)))
        assert again == manifest
        for tile in TILES:
            assert np.array_equal(elements(publisher, manifest, tile.index), BITS[step][tile.where])


def test_tile_is_read_while_a_version_is_packed() -> None:
    contributor = Paused()
    publisher = publisher_of(contributor)
    manifest = snapshot_of(publisher)
    got: list[Bits] = []
    contributor.before_tile = lambda tile: got.append(elements(publisher, manifest, tile))
    publisher.publish(Row(BITS[1], TILES))
    assert np.array_equal(np.concatenate(got), BITS[0])


def test_tile_that_is_packed_already_waits_for_the_end_of_that_publish() -> None:
    contributor = Paused()
    publisher = publisher_of(contributor)
    manifest = snapshot_of(publisher)
    got: list[Bits] = []
    reader = threading.Thread(target=lambda: got.append(elements(publisher, manifest, 0)))

    def read_in_between(tile: int) -> None:
        if tile == 1:
            reader.start()
            reader.join(0.1)  # bounds what is looked for, and nothing else
            assert not got

    contributor.before_tile = read_in_between
    publisher.publish(Row(BITS[1], TILES))
    reader.join(LONG_S)
    assert np.array_equal(got[0], Row(BITS[0], TILES).bits(0))


def test_reader_of_a_long_publish_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "WHOLE_WAIT_S", 0.01)
    contributor = Paused()
    publisher = publisher_of(contributor)
    manifest = snapshot_of(publisher)
    refused: list[Unavailable] = []

    def read_in_between(tile: int) -> None:
        if tile == 1:
            with pytest.raises(Unavailable, match="request the tile again"):
                publisher.whole(manifest.version.n, 0)
            refused.append(Unavailable())

    contributor.before_tile = read_in_between
    publisher.publish(Row(BITS[1], TILES))
    assert refused
    assert np.array_equal(elements(publisher, manifest, 0), Row(BITS[0], TILES).bits(0))


def test_shadow_that_changed_by_itself_is_not_sent() -> None:
    contributor = Paused()
    publisher = publisher_of(contributor)
    contributor._shadow.bits(3)[5] ^= 1
    with pytest.raises(Unavailable, match="changed by itself"):
        publisher.whole(1, 3)
    assert publisher.whole(1, 4) is not None


def test_nothing_is_kept_for_snapshots_that_nobody_fetches_any_more() -> None:
    publisher = publisher_of(Paused(), versions_max=1)
    publisher._past._clock = clock = HandClock()
    manifest = snapshot_of(publisher)
    for step in range(3):
        publisher.publish(Row(BITS[step + 1], TILES))
        clock.sleep(past.IDLE_S / 2)
        assert publisher.whole(manifest.version.n, 0) is not None
    clock.sleep(past.IDLE_S + 1)
    publisher.publish(Row(BITS[5], TILES))
    assert not publisher._past._steps
    assert publisher.whole(manifest.version.n, 0) is None
    assert snapshot_of(publisher).digest == row_digest(BITS[5])
