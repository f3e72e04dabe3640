"""The log keeps to its limits, and the publisher's shadow moves with it or not at all."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rose.errors import InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.codec import delta_pack, digest
from rose.transfer.delta import Delta
from rose.transfer.log import RECEIVERS_MAX, VersionLog
from rose.transfer.manifest import Chunk, Manifest
from rose.transfer.row_publisher import RowPublisher
from rose.transfer.tiles import Tiles
from rose.transfer.version import Version
from tests.transfer.worker import COUNT, TILE, TILES, changed, weights

DENSE_BYTES = 2 * COUNT


def publisher_of(log: VersionLog, first_version: int = 1) -> RowPublisher:
    return RowPublisher(weights(1), "run", 1, first_version, log, tile_elements=TILE)


def publish(publisher: RowPublisher, versions: int) -> None:
    bits = weights(1)
    for seed in range(versions):
        bits = changed(bits, seed)
        publisher.publish(bits)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000, 1021])
def test_tiles_cover_the_row_once(count: int) -> None:
    tiles = Tiles.of(count, 64)
    seen = [index for tile in tiles for index in range(tile.first, tile.first + tile.count)]
    assert seen == list(range(count))
    assert all(tile == tiles[tile.index] for tile in tiles)


@pytest.mark.parametrize(("count", "tile_elements"), [(-1, 64), (10, 0), (10, 6), (10, 1 << 21)])
def test_tiles_that_cannot_be_are_refused(count: int, tile_elements: int) -> None:
    with pytest.raises(InvalidArgument):
        Tiles.of(count, tile_elements)


def test_manifest_that_no_publisher_makes_is_refused() -> None:
    def manifest(tiles: list[int], base: Version | None, form: int = 1) -> Manifest:
        chunks = tuple(Chunk(tile, 10, 1, bytes(32)) for tile in tiles)
        return Manifest(Version("r", 1, 2), base, (1, 1), (0, 0), COUNT, TILE, chunks, form)

    base = Version("r", 1, 1)
    assert manifest([0, 3], base).nbytes == 20
    for tiles, of, form in [
        ([3, 0], base, 1),
        ([3, 3], base, 1),
        ([len(TILES)], base, 1),
        ([0], None, 1),  # a seed is whole
        ([0], base, 2),
    ]:
        with pytest.raises(InvalidArgument):
            manifest(tiles, of, form)
    for n in (-1, 1 << 63):
        with pytest.raises(InvalidArgument):
            replace(manifest([0], base), version=Version("r", 1, n))
    for fields in [(-1, 10, 1, bytes(32)), (0, 0, 1, bytes(32)), (1 << 32, 10, 1, bytes(32))]:
        with pytest.raises(InvalidArgument):
            Chunk(*fields)
    for fields in [(0, 10, 1, bytes(31)), (0, 5 << 20, 1, bytes(32)), (0, 10, -1, bytes(32))]:
        with pytest.raises(InvalidArgument):
            Chunk(*fields)


def test_versions_count_up_from_the_opening() -> None:
    log = VersionLog()
    publisher = publisher_of(log, first_version=7)
    publish(publisher, 2)
    assert [one.version.n for one in log.manifests_after(-1)] == [7, 8, 9]
    assert [one.base.n for one in log.manifests_after(-1) if one.base] == [7, 7, 8]
    assert publisher.version == Version("run", 1, 9)


def test_unchanged_tiles_are_absent() -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    bits = weights(1)
    bits[5 * TILE] ^= 1
    manifest = publisher.publish(bits)
    assert [(one.tile, one.changed) for one in manifest.chunks] == [(5, 1)]
    assert manifest.digest == digest(bits)
    assert manifest.base_digest == digest(weights(1))


def test_oldest_are_forgotten() -> None:
    log = VersionLog(versions_max=3)
    publish(publisher_of(log), 5)
    assert [one.version.n for one in log.manifests_after(-1)] == [4, 5, 6]
    first = log.manifests_after(3)[0].chunks[0].tile
    assert log.chunk(4, first) is not None
    assert log.chunk(3, first) is None
    assert [one.n for one in log.versions()] == [2, 3, 4, 5, 6]  # figures stay


def test_bytes_are_bounded_seed_included() -> None:
    log = VersionLog(bytes_max=8000)
    publisher = publisher_of(log)
    for seed in range(6):
        publish_one(publisher, seed)
        log.seed_and_after(-1)
        kept = [
            log.chunk(one.version.n, chunk.tile, is_seed=is_seed)
            for is_seed in (False, True)
            for one in log.manifests_after(-1)
            for chunk in one.chunks
        ]
        assert sum(len(frame) for frame in kept if frame is not None) <= 8000


def publish_one(publisher: RowPublisher, seed: int) -> None:
    publisher.publish(changed(weights(1), 100 + seed))


def test_seed_leads_to_the_newest_or_is_made_again() -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    publish_one(publisher, 0)
    [seed] = log.seed_and_after(-1)
    assert seed.is_seed
    assert seed.version.n == 2
    publish_one(publisher, 1)
    assert [one.version.n for one in log.seed_and_after(-1)] == [2, 3]  # the old one will do
    assert [one.version.n for one in log.seed_and_after(3)] == [3]
    assert [one.version.n for one in log.seed_and_after(9)] == [3]  # there is no newer one
    assert log.statistics().seeds == 2


def test_seed_whose_successor_was_forgotten_is_dropped() -> None:
    log = VersionLog(versions_max=1)
    publisher = publisher_of(log)
    log.seed_and_after(-1)
    publish_one(publisher, 0)
    publish_one(publisher, 1)
    assert [one.version.n for one in log.seed_and_after(-1)] == [3]


@pytest.mark.parametrize(
    ("log", "is_closed", "error"),
    [(VersionLog(bytes_max=300), False, OutOfMemory), (VersionLog(), True, Unavailable)],
)
def test_version_that_the_log_refuses_leaves_the_shadow(
    log: VersionLog, is_closed: bool, error: type[Exception]
) -> None:
    publisher = publisher_of(log)
    small = weights(1)
    small[0] ^= 1
    if is_closed:
        log.close()
    with pytest.raises(error):
        publisher.publish(changed(weights(1), 3, share=0.5))
    assert publisher.version.n == 1
    seed, _ = publisher.seed()
    assert seed.digest == digest(weights(1))
    assert len(log.manifests_after(-1)) == 1
    if not is_closed:  # the next delta is against what receivers have
        manifest = publisher.publish(small)
        assert manifest.changed == 1
        assert manifest.base_digest == digest(weights(1))


def test_seed_frames_are_the_shadow_after_a_refused_version() -> None:
    log = VersionLog(bytes_max=300)
    publisher = publisher_of(log)
    _, before = publisher.seed()
    with pytest.raises(OutOfMemory):
        publisher.publish(changed(weights(1), 3, share=0.5))
    assert publisher.seed()[1] == before


def test_error_that_is_not_of_rose_leaves_the_shadow_too() -> None:
    class Full(VersionLog):
        def append(self, manifest: Manifest, chunks: Mapping[int, bytes]) -> None:
            raise MemoryError

    publisher = publisher_of(Full())
    _, before = publisher.seed()
    with pytest.raises(MemoryError):
        publisher.publish(changed(weights(1), 3, share=0.5))
    assert publisher.seed()[1] == before


def test_seed_that_does_not_fit_is_said() -> None:
    log = VersionLog(bytes_max=300)
    publisher_of(log)
    with pytest.raises(OutOfMemory, match="seed"):
        log.seed_and_after(-1)


def test_numbers_are_not_used_twice_and_a_log_has_one_publisher() -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    manifest = publisher.publish(changed(weights(1), 1))
    frames = {one.tile: log.chunk(2, one.tile) or b"" for one in manifest.chunks}
    with pytest.raises(InvalidArgument, match="not above"):
        log.append(manifest, frames)
    with pytest.raises(InvalidArgument, match="chunks"):
        log.append(manifest, {})
    with pytest.raises(InvalidArgument, match="publisher"):
        publisher_of(log)
    with pytest.raises(Unavailable):
        VersionLog().seed_and_after(-1)


def test_weights_of_another_shape_are_refused() -> None:
    publisher = publisher_of(VersionLog())
    for wrong in [weights(1, 999), weights(1).astype(np.int64), weights(1).reshape(10, 100)]:
        with pytest.raises(InvalidArgument):
            publisher.publish(wrong)  # type: ignore[arg-type]


def test_closed_log_lets_receivers_wait_as_before() -> None:
    log = VersionLog()
    publisher_of(log)
    log.close()
    asked: list[bool] = []

    def is_over() -> bool:
        asked.append(True)
        return False

    assert log.wait_after(1, 0.001, is_over=is_over) == []
    assert asked
    assert len(log.wait_after(-1, 0)) == 1


def test_number_of_receivers_and_their_names_are_bounded() -> None:
    log = VersionLog()
    publisher_of(log)
    with pytest.raises(InvalidArgument, match="name"):
        log.acknowledge("x" * 257, 1, is_match=True, digest=(0, 0))
    for receiver in range(RECEIVERS_MAX):
        log.acknowledge(str(receiver), 1, is_match=True, digest=(0, 0))
    with pytest.raises(InvalidArgument, match="receivers"):
        log.acknowledge("one more", 1, is_match=True, digest=(0, 0))
    log.acknowledge("7", 1, is_match=False, digest=(0, 0))


def test_statistics_add_up() -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    manifest = publisher.publish(changed(weights(1), 1))
    for _ in range(2):  # two receivers
        for one in manifest.chunks:
            log.chunk(2, one.tile)
    log.chunk(2, 99)  # nothing there, nothing sent
    for receiver, is_match in [("a", True), ("a", True), ("b", False), ("c", True)]:
        log.acknowledge(receiver, 2, is_match=is_match, digest=(1, 2))
    log.acknowledge("a", 1, is_match=True, digest=(1, 2))  # the opening cost nobody anything
    log.acknowledge("a", 77, is_match=True, digest=(1, 2))  # unknown
    assert log.receivers()["a"].n == 1
    [row] = log.versions()
    assert (row.n, row.receivers, row.matched) == (2, 3, 2)
    assert row.sent_bytes == 2 * manifest.nbytes == 2 * row.packed_bytes
    assert row.dense_bytes == 3 * DENSE_BYTES
    assert row.density == manifest.changed / COUNT
    total = log.statistics()
    assert (total.versions, total.answers, total.matched) == (1, 3, 2)
    assert (total.sent_bytes, total.dense_bytes) == (row.sent_bytes, row.dense_bytes)
    assert log.receivers()["b"].is_match is False


def test_a_frame_that_has_no_room_leaves_the_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    real, calls = Delta.to_bytes, [0]

    def to_bytes(delta: Delta) -> bytes:
        calls[0] += 1
        if calls[0] == 2:
            raise MemoryError
        return real(delta)

    bits = weights(2)
    monkeypatch.setattr(Delta, "to_bytes", to_bytes)
    with pytest.raises(MemoryError):
        publisher.publish(bits)
    monkeypatch.undo()
    assert len(publisher.publish(bits).chunks) == len(TILES)


def test_an_interrupt_leaves_the_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    before = publisher.seed()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(weights(2))
    monkeypatch.undo()
    assert publisher.seed() == before
    assert len(publisher.publish(weights(2)).chunks) == len(TILES)


def test_an_interrupt_that_loses_a_delta_ends_publishing(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = publisher_of(VersionLog())

    def interrupted(new: object, shadow: object, **options: Any) -> None:
        delta_pack(new, shadow, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("rose.transfer.publisher.delta_pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(weights(2))
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="was interrupted"):
        publisher.publish(weights(2))
    with pytest.raises(Unavailable, match="was interrupted"):
        publisher.seed()
