"""The log keeps its limits, and the shadow changes only if the log accepts a version."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.errors import InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import pack_tiles
from rose.transfer.manifest import Chunk, Manifest, UpdateKey, Version
from rose.transfer.publishing.log import RECEIVERS_MAX, VersionLog
from rose.transfer.signing import Signing
from rose.transfer.tiles import Row, Tiles
from tests.transfer.worker import COUNT, TILE, TILES, changed, row_digest, weights, whole_row

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
def test_invalid_tiles_are_refused(count: int, tile_elements: int) -> None:
    with pytest.raises(InvalidArgument):
        Tiles.of(count, tile_elements)


def test_manifest_that_no_publisher_makes_is_refused() -> None:
    def chunk(tile: int, nbytes: int = 10, changed: int = 1, sha_bytes: int = 32) -> Chunk:
        return Chunk(tile, nbytes, changed, bytes(sha_bytes), (1, 2))

    def manifest(tiles: list[int], **fields: Any) -> Manifest:
        begun = Manifest(
            Version("r", 1, 2),
            Version("r", 1, 1),
            (1, 1),
            (0, 0),
            TILES.layout,
            len(TILES),
            COUNT,
            tuple(chunk(tile) for tile in tiles),
        )
        return replace(begun, **fields)

    assert manifest([0, 3]).nbytes == 20
    assert manifest([0], base=None, chunks=(chunk(0, sha_bytes=0),)).is_snapshot  # of one tile
    wrong: list[tuple[list[int], dict[str, Any]]] = [
        ([0], {"base": None}),  # its frame is made when it is sent, so its SHA-256 is unknown
        ([3, 0], {}),
        ([3, 3], {}),
        ([len(TILES)], {}),
        ([0], {"format": 1}),
        ([0], {"version": Version("r", 1, -1)}),
        ([0], {"version": Version("r", 1, 1 << 63)}),
        ([0], {"base": Version("r", -1, 1)}),
        ([0], {"digest": (1 << 64, 0)}),
        ([0], {"base_digest": (-1, 0)}),
        ([0], {"tile_digests": ((1, 1),)}),
        ([], {"tile_count": 1 << 32}),
        ([], {"count": -1}),
        *(([], {"layout": layout}) for layout in ("", "x" * 64, "AB" * 32, "ab" * 33)),
    ]
    for tiles, fields in wrong:
        with pytest.raises(InvalidArgument):
            manifest(tiles, **fields)
    for arguments in [(-1,), (0, 0), (1 << 32,), (0, 10, 1, 31), (0, 5 << 20), (0, 10, -1)]:
        with pytest.raises(InvalidArgument):
            chunk(*arguments)


def test_unchanged_tiles_are_absent() -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    bits = weights(1)
    bits[5 * TILE] ^= 1
    manifest = publisher.publish(bits)
    assert [(one.tile, one.changed) for one in manifest.chunks] == [(5, 1)]
    assert manifest.digest == row_digest(bits)
    assert manifest.base_digest == row_digest(weights(1))


def test_oldest_are_forgotten() -> None:
    log = VersionLog(versions_max=3)
    publish(publisher_of(log), 5)
    # Whoever asks for all also hears of the opening: it may hold just that.
    assert [one.version.n for one in log.wait_manifests(-1, 0)] == [1, 4, 5, 6]
    assert [one.version.n for one in log.wait_manifests(0, 0)] == [1, 4, 5, 6]
    assert [one.version.n for one in log.wait_manifests(1, 0)] == [4, 5, 6]
    first = log.wait_manifests(3, 0)[0].chunks[0].tile
    assert log.chunk(UpdateKey(4, 3), first) is not None
    assert log.chunk(UpdateKey(3, 2), first) is None
    assert log.statistics().versions == 5  # figures stay


def publish_one(publisher: RowPublisher, seed: int) -> None:
    publisher.publish(changed(weights(1), 100 + seed))


def test_snapshot_has_the_tiles_that_were_asked_for_and_the_digests_of_all() -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    publish_one(publisher, 0)
    survey = log.snapshot(None, ())
    assert survey is not None
    assert (survey.version.n, survey.is_snapshot, survey.chunks) == (2, True, ())
    assert survey.tile_digests == tuple(
        Row(changed(weights(1), 100), TILES).digest(tile) for tile in range(len(TILES))
    )
    snapshot = log.snapshot(2, [3, 5])
    assert snapshot is not None
    assert [one.tile for one in snapshot.chunks] == [3, 5]
    for one in snapshot.chunks:
        frame = log.chunk(snapshot.key, one.tile)
        assert one.is_of(frame)
        fresh = changed(weights(1), 100)[TILES[one.tile].where]
        assert np.array_equal(np.frombuffer(frame, np.uint16, TILE), fresh)
    assert log.snapshot(99, ()) is None
    assert log.statistics().snapshots == 1
    with pytest.raises(InvalidArgument):
        log.snapshot(None, [len(TILES)])


def test_snapshot_of_an_older_version_is_made_from_what_the_log_has() -> None:
    log = VersionLog(versions_max=3)
    publisher = publisher_of(log)
    bits = [weights(1)]
    for seed in range(4):
        bits.append(changed(bits[-1], seed))
        publisher.publish(bits[-1])
    old = log.snapshot(3, [0, 7])
    assert old is not None
    row = Row(bits[2], TILES)
    assert old.version == Version("run", 1, 3)
    assert old.digest == row.digests().total
    assert old.tile_digests == tuple(row.digest(tile) for tile in range(len(TILES)))
    for one in old.chunks:
        assert one.is_of(log.chunk(old.key, one.tile))
    assert log.snapshot(1, [0]) is None  # what led on from it was forgotten
    assert publisher.publish(bits[0]).base_digest == row_digest(bits[-1])  # the shadow stayed


@pytest.mark.parametrize("error", [OutOfMemory, Unavailable, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("at", ["to_bytes", "append"])
def test_version_that_fails_leaves_the_shadow(
    at: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the log refuses it, or the second of its frames has no room."""
    log = VersionLog()
    publisher = publisher_of(log)
    calls = [0]
    real = Delta.to_bytes

    def fail(*arguments: Any) -> bytes:
        calls[0] += 1
        if at == "append" or calls[0] == 2:
            raise error
        return real(*arguments)

    monkeypatch.setattr(Delta if at == "to_bytes" else log, at, fail)
    with pytest.raises(error):
        publisher.publish(weights(2))
    monkeypatch.undo()
    assert (publisher.version.n, log.newest_n) == (1, 1)
    assert np.array_equal(whole_row(log), weights(1))
    manifest = publisher.publish(changed(weights(1), 3))
    assert manifest.base_digest == row_digest(weights(1))


def test_version_beyond_the_limit_of_the_log_is_refused() -> None:
    log = VersionLog(bytes_max=300)
    publisher = publisher_of(log)
    with pytest.raises(OutOfMemory, match="more than the log's limit of 300"):
        publisher.publish(changed(weights(1), 3, share=0.5))
    assert np.array_equal(whole_row(log), weights(1))  # which is not kept, and not limited
    log.close()
    with pytest.raises(Unavailable, match="closed"):
        publisher.publish(weights(1))
    assert [one.version for one in log.wait_manifests(-1, 0)] == [publisher.version]


def test_manifest_is_signed_with_the_key() -> None:
    manifest = publisher_of(VersionLog()).publish(changed(weights(1), 1))
    signing = Signing(b"key")
    signed = signing.signed(manifest)
    assert signing.is_signed(signed)
    assert not signing.is_signed(replace(signed, count=7))
    assert not signing.is_signed(manifest)
    assert not Signing(b"another").is_signed(signed)
    assert Signing().is_signed(manifest)


def test_numbers_are_not_used_twice_and_a_log_has_one_publisher() -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    manifest = publisher.publish(changed(weights(1), 1))
    frames = {one.tile: log.chunk(manifest.key, one.tile) or b"" for one in manifest.chunks}
    with pytest.raises(InvalidArgument, match="must have a number above"):
        log.append(manifest, frames)
    with pytest.raises(InvalidArgument, match="chunks"):
        log.append(manifest, {})
    with pytest.raises(InvalidArgument, match="begin a later incarnation"):
        publisher_of(log)
    with pytest.raises(Unavailable):
        VersionLog().snapshot(None, ())


def test_closed_log_lets_receivers_wait_as_before() -> None:
    log = VersionLog()
    publisher_of(log)
    log.close()
    asked: list[bool] = []

    def is_over() -> bool:
        asked.append(True)
        return False

    assert log.wait_manifests(1, 0.001, is_over=is_over) == []
    assert asked
    assert len(log.wait_manifests(-1, 0)) == 1


def test_number_of_receivers_and_their_names_are_bounded() -> None:
    log = VersionLog()
    publisher_of(log)
    with pytest.raises(InvalidArgument, match="name"):
        log.report("x" * 257, 1, is_match=True, digest=(0, 0))
    for receiver in range(RECEIVERS_MAX):
        log.report(str(receiver), 1, is_match=True, digest=(0, 0))
    log.report("0", 1, is_match=False, digest=(0, 0))
    log.report("one more", 1, is_match=True, digest=(0, 0))
    assert len(log.receivers()) == RECEIVERS_MAX
    assert {"0", "one more"} <= log.receivers().keys()
    assert "1" not in log.receivers()  # of which nothing was heard for longest
    [opening] = log._counts.values()
    assert len(opening.answered) == RECEIVERS_MAX


def test_statistics_add_up() -> None:
    log = VersionLog()
    publisher = publisher_of(log)
    manifest = publisher.publish(changed(weights(1), 1))
    for _ in range(2):  # two receivers
        for one in manifest.chunks:
            log.chunk(manifest.key, one.tile)
    log.chunk(manifest.key, 99)  # nothing there, nothing sent
    for receiver, is_match in [("a", True), ("a", True), ("b", False), ("c", True)]:
        log.report(receiver, 2, is_match=is_match, digest=(1, 2))
    log.report("a", 1, is_match=True, digest=(1, 2))  # the opening cost nobody anything
    log.report("a", 77, is_match=True, digest=(1, 2))  # unknown
    assert log.receivers()["a"].n == 1
    total = log.statistics()
    assert total.versions == 1
    assert total.sent_bytes == 2 * manifest.nbytes
    assert total.dense_bytes == 3 * DENSE_BYTES
    assert log.receivers()["b"].is_match is False


def test_an_interrupt_that_loses_a_delta_ends_publishing(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = publisher_of(VersionLog())

    def interrupted(new: object, shadow: object, **options: Any) -> None:
        pack_tiles(new, shadow, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("rose.transfer.publishing.contributor.pack_tiles", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(weights(2))
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="was interrupted"):
        publisher.publish(weights(2))
    with pytest.raises(Unavailable, match="was interrupted"):
        publisher.snapshot(None, range(len(publisher.tiles)))
    with pytest.raises(Unavailable, match="was interrupted"):
        publisher.whole(1, 0)


def test_interrupt_after_publication_ends_publishing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = VersionLog()
    publisher = publisher_of(log)

    def interrupted(_limits: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log, "_trim_to", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(weights(2))
    monkeypatch.undo()
    assert log.newest_n == 2  # receivers have it
    for ask in (lambda: publisher.snapshot(None, ()), lambda: publisher.publish(weights(3))):
        with pytest.raises(Unavailable, match="was interrupted"):
            ask()


def test_publisher_of_an_old_incarnation_cannot_publish() -> None:
    log = VersionLog()
    before = RowPublisher(weights(1), "run", 1, 1, log, tile_elements=TILE)
    heir = RowPublisher(weights(2), "run", 2, 2, log, tile_elements=TILE)
    before._version = Version("run", 1, 7)  # its numbers may be above those of the heir
    with pytest.raises(Unavailable, match="belongs to an older incarnation"):
        before.publish(weights(3))
    assert heir.publish(weights(3)).version == Version("run", 2, 3)
    assert [one.version.incarnation for one in log.wait_manifests(-1, 0)] == [2, 2]


def test_weights_of_another_shape_are_refused() -> None:
    publisher = publisher_of(VersionLog())
    for wrong in [weights(1, 999), weights(1).astype(np.int64), weights(1).reshape(10, 100)]:
        with pytest.raises(InvalidArgument):
            publisher.publish(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="bits must have the shape"):
        Row(weights(1, 999), TILES)
