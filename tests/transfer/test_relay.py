"""A relay: each chunk crosses once, damage stops there, and versions outlive its upstream."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.transfer.manifest import Chunk, Manifest, Subscription, UpdateKey
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.shelf import Limits
from rose.transfer.publishing.store import MemoryStore
from rose.transfer.relaying.relay import Relay, follow
from rose.transfer.relaying.snapshot_book import SNAPSHOTS_MAX, SURVEYS_MAX, SnapshotBook
from rose.transfer.source import Frames, SourceAround
from rose.transfer.tiles import Tiles
from rose.transfer.wire.chunk_plane import ANSWERERS, WHOLE_TOGETHER
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve
from tests.transfer.chain_world import KEY, Behind, Chain
from tests.transfer.planted_disk import PlantedDisk
from tests.transfer.worker import (
    LONG_S,
    TILE,
    TILES,
    Planted,
    Worker,
    eventually,
    weights,
    whole_row,
)

ROOMY = 1 << 20


class Far(Planted):
    """The other end of the slow link."""

    has_moved = False  # chunks are elsewhere, which it says when it tells of versions

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        found = super().wait_manifests(after_n, timeout_s)
        self.has_moved = False
        return found

    def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
        if self.has_moved:
            raise Unavailable("planted: nobody is at that port any more")
        yield from super().chunks(key, wanted)


class World:
    """A publisher, the link, and a relay; all in this thread."""

    def __init__(self, disk: PlantedDisk | None = None, **knobs: Any) -> None:
        self.chain = Chain()
        self.far = Far(self.chain.log)
        self.knobs = {"patience_s": 0.01, "retries": 1, **knobs}
        self.disk = disk
        self.start()

    def start(self) -> None:
        """Begin another relay, as after a restart."""
        store = MemoryStore() if self.disk is None else DiskStore(self.disk, bytes_max=ROOMY)
        self.relay = Relay(self.far, store=store, **self.knobs)

    def round(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.relay.round(0)

    def publish(self, versions: int = 1, **how: Any) -> None:
        for _ in range(versions):
            self.chain.publish(**how)
            self.round()

    def behind(self, n: int | None = None) -> Behind:
        bits = self.chain.bits if n is None else self.chain.by_n[n]
        return Behind(self.relay, bits)

    def bytes_of(self, keys: list[UpdateKey]) -> int:
        every = {one.key: one.nbytes for one in self.chain.log.wait_manifests(-1, 0)}
        return sum(every[key] for key in keys)


def single(n: int) -> UpdateKey:
    return UpdateKey(n, n - 1)


def test_each_chunk_crosses_once_for_any_number_of_receivers() -> None:
    world = World()
    world.round()
    receivers = [world.behind() for _ in range(4)]
    world.publish(12)
    for one in receivers:
        one.follow(13)
        assert np.array_equal(one.bits, world.chain.bits)
    assert len(world.far.crossed) == len(set(world.far.crossed))
    counts = world.relay.statistics()
    assert counts.crossing_bytes == world.bytes_of([single(n) for n in range(2, 14)])
    assert counts.sent_bytes >= 4 * world.bytes_of([receivers[0].taken[-1]])
    assert (counts.landed, counts.rejected) == (12, 0)


def test_remaining_chunks_come_from_the_current_upstream() -> None:
    world = World()
    world.round()
    world.chain.publish()
    world.far.left = 0
    with pytest.raises(Unavailable):
        world.round()
    world.far.is_away, world.far.left, world.far.has_moved = False, None, True
    world.round()
    assert world.relay.statistics().landed == 1


def test_merged_deltas_are_made_of_what_is_here_and_do_not_cross() -> None:
    world = World()
    world.round()
    late = world.behind()
    world.publish(16)
    world.round(3)
    late.follow(17)
    assert np.array_equal(late.bits, world.chain.bits)
    assert [key.n - key.base_n for key in late.taken] == [16]
    assert {key.n - key.base_n for key, _ in world.far.crossed} == {1}


def test_merged_deltas_whose_parts_cannot_be_merged_are_fetched_when_they_are_asked_for() -> None:
    world = World()
    world.chain = Chain(encoding="strat")
    world.far._source = world.chain.log
    world.round()
    late = world.behind()
    world.publish(8, share=0.4)
    world.round(3)
    late.follow(9)
    assert np.array_equal(late.bits, world.chain.bits)
    assert len(world.far.crossed) == len(set(world.far.crossed))


def test_a_merged_delta_that_a_merge_does_not_give_is_not_believed() -> None:
    """A publisher may pack a merged delta in other bytes than a merge gives: the bytes decide."""
    world = World()
    world.round()
    late = world.behind()
    real = world.chain.log.append_merged

    def otherwise(manifest: Manifest, chunks: dict[int, bytes]) -> bool:
        chunk = manifest.chunks[0]
        other = KEY.signed(
            replace(manifest, chunks=(replace(chunk, sha256=bytes(32)), *manifest.chunks[1:]))
        )
        return real(other, chunks)

    world.chain.log.append_merged = otherwise  # type: ignore[method-assign]
    world.publish(2)
    world.round(3)
    merged = UpdateKey(3, 1)
    [manifest] = [one for one in world.relay.wait_manifests(-1, 0) if one.key == merged]
    assert world.relay.held(merged, manifest.chunks[0].tile) is None
    assert world.relay.held(merged, manifest.chunks[1].tile) is not None
    with pytest.raises(CorruptData):
        world.relay.chunk(merged, manifest.chunks[0].tile)
    assert late.staging.held.n == 0


def test_history_is_fetched_only_as_it_is_asked_for() -> None:
    world = World()
    world.chain.publish(8)
    world.round()
    assert world.far.crossed == []
    late = world.behind(1)
    late.follow(9)
    assert np.array_equal(late.bits, world.chain.bits)
    assert world.relay.statistics().crossing_bytes == world.bytes_of(late.taken)
    second = world.behind(1)
    second.follow(9)
    assert world.relay.statistics().crossing_bytes == world.bytes_of(late.taken)


def test_only_the_landing_tiles_are_fetched_before_anybody_asks() -> None:
    landing = Subscription(TILES, range(0, len(TILES), 2))
    world = World(landing=landing)
    world.round()
    one, two = world.behind(), world.behind()
    world.publish(share=1.0)
    assert {tile % 2 for _, tile in world.far.crossed} == {0}
    assert len(world.far.crossed) == len(landing.wanted)
    for receiver in (one, two):
        receiver.follow(2)
        assert np.array_equal(receiver.bits, world.chain.bits)
    assert len(world.far.crossed) == len(TILES)


def test_relay_resumes_after_its_upstream_breaks_off() -> None:
    world = World()
    world.round()
    one = world.behind()
    world.chain.publish(share=1.0)
    world.far.left = 3
    with pytest.raises(Unavailable):
        world.round()
    assert len(world.far.crossed) == 3
    with pytest.raises(Unavailable):
        world.round()
    world.far.left, world.far.is_away = None, False
    world.round()
    assert len(world.far.crossed) == len(set(world.far.crossed)) == len(TILES)
    one.follow(2)
    assert np.array_equal(one.bits, world.chain.bits)


def test_stored_versions_are_served_without_upstream() -> None:
    world = World()
    world.round()
    late, later = world.behind(), world.behind()
    world.publish(5)
    snapshot = world.relay.snapshot(None, (0, 1))
    assert snapshot is not None
    frame = world.relay.chunk(snapshot.key, 1)
    world.far.is_away = True
    with pytest.raises(Unavailable):
        world.round()
    for receiver in (late, later):
        receiver.follow(6)
        assert np.array_equal(receiver.bits, world.chain.bits)
    assert world.relay.snapshot(None, (0, 1)) == snapshot
    assert world.relay.snapshot(6, (0, 1)) == snapshot
    assert world.relay.chunk(snapshot.key, 1) == frame
    with pytest.raises(Unavailable):
        world.relay.snapshot(None, (2,))
    with pytest.raises(Unavailable):
        world.relay.chunk(snapshot.key, 0)  # known, and never fetched


def test_answers_are_passed_on_once_upstream_is_there() -> None:
    world = World()
    world.round()
    one = world.behind()
    world.publish()
    one.follow(2)
    world.far.is_away = True
    one.round()  # the relay takes its answer
    assert "behind" not in world.chain.log.receivers()
    world.far.is_away = False
    world.round()
    assert world.chain.log.receivers()["behind"].n == 2
    assert world.chain.log.receivers()["behind"].is_match
    with pytest.raises(InvalidArgument):
        world.relay.report("x" * 257, 1, is_match=True, digest=(0, 0))


def test_answers_that_wait_are_bounded_and_one_that_is_refused_holds_none_up() -> None:
    world = World()
    world.round()
    world.publish()
    for n in range(1500):  # more than wait at a relay, and more receivers than a log takes
        world.relay.report(f"r{n}", 2, is_match=True, digest=(0, 0))
    world.round()
    assert len(world.chain.log.receivers()) == world.relay.statistics().receivers == 1024
    for n in range(3):
        world.relay.report(f"new{n}", 2, is_match=True, digest=(0, 0))
    world.relay.report("r1499", 2, is_match=False, digest=(0, 0))
    world.round()
    assert not world.chain.log.receivers()["r1499"].is_match


@pytest.mark.parametrize("left", [None, 1], ids=["whole", "broken off"])
def test_update_that_is_trimmed_while_it_crosses_does_not_stay_in_the_store(
    left: int | None,
) -> None:
    chain = Chain()
    chain.publish(is_merged=False, share=1.0)
    store = MemoryStore()

    class Slow(Far):
        def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
            for at, one in enumerate(super().chunks(key, wanted)):
                yield one
                if at == 0:  # versions come meanwhile
                    chain.publish(4, is_merged=False)
                    relay.round(0)

    reader = Slow(chain.log)
    relay = Relay(
        chain.log, reader=reader, store=store,
        landing=Subscription(TILES, [15]), limits=Limits(versions_max=2, merged_max=0),
    )  # fmt: skip
    relay.round(0)
    assert relay.held(single(2), 0) is None
    reader.left = left
    with nullcontext() if left is None else pytest.raises(Unavailable):
        relay.read(single(2), (0, 1))
    assert single(2) not in [one.key for one in relay.wait_manifests(-1, 0)]
    assert single(2) not in [one.key for one in store.manifests()]


class Narrow(MemoryStore):
    """A store whose host runs out of memory at some looks."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[int] = set()
        self.looks = 0

    def get(self, key: UpdateKey, tile: int) -> bytes | None:
        self.looks += 1
        if self.looks in self.failing:
            raise MemoryError
        return super().get(key, tile)


@pytest.mark.parametrize("at", [4, 5, 6])
def test_chunk_can_be_asked_for_again_after_a_host_had_no_memory(at: int) -> None:
    chain = Chain()
    chain.publish(2, is_merged=False, share=1.0)
    store = Narrow()
    landing = Subscription(TILES, [15])
    relay = Relay(chain.log, store=store, landing=landing, patience_s=0.01)
    relay.round(0)
    store.looks, store.failing = 0, {at}  # three looks of the caller, and then three of its flights
    with pytest.raises(MemoryError):
        relay.read(single(3), (0, 1, 2))
    assert len(relay._frames._flights) == 0
    assert None not in relay.read(single(3), (0, 1, 2)).values()


def test_snapshots_that_a_relay_notes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain()
    book = SnapshotBook()

    def noted(tiles: Sequence[int]) -> None:
        snapshot = chain.log.snapshot(None, tiles)
        assert snapshot is not None
        book.note(snapshot)

    noted(())
    for first in range(len(TILES)):
        for last in range(first + 1, len(TILES)):
            noted((first, last))
    assert len(book._snapshots) == SNAPSHOTS_MAX + 1
    assert book.find(None, (len(TILES) - 2, len(TILES) - 1)) is not None
    for _ in range(2 * SURVEYS_MAX):
        chain.publish()
        noted(())
    assert len(book._snapshots) == SNAPSHOTS_MAX + SURVEYS_MAX
    monkeypatch.setattr("rose.transfer.relaying.snapshot_book.FIELDS_MAX", 1)
    noted((0,))
    assert [tiles for _, tiles in book._snapshots if tiles] == [
        (0,)
    ]  # the one that is asked for now


def other_run(log: VersionLog, versions: int) -> RowPublisher:
    publisher = RowPublisher(weights(3), "other", 1, 1, log, tile_elements=TILE, signing=KEY)
    for seed in range(versions):
        publisher.publish(weights(seed + 4))
    return publisher


@pytest.mark.parametrize("versions", [2, 5, 7], ids=["below", "as far", "above"])
@pytest.mark.parametrize("is_started_again", [False, True])
def test_relay_follows_upstream_to_another_run_whatever_its_numbers(
    versions: int, is_started_again: bool
) -> None:
    world = World(PlantedDisk())
    world.round()
    world.publish(5)
    world.round(3)
    snapshot = world.relay.snapshot(3, (0,))
    assert snapshot is not None
    assert world.relay.chunk(snapshot.key, 0) is not None
    log = VersionLog()
    publisher = other_run(log, versions)
    world.far._source = log
    if is_started_again:
        world.start()
    world.round(3)
    offered = world.relay.wait_manifests(-1, 0)
    assert offered == log.wait_manifests(-1, 0)
    for manifest in offered:
        for chunk in manifest.chunks:
            frame = world.relay.chunk(manifest.key, chunk.tile)
            assert frame == log.chunk(manifest.key, chunk.tile)
    snapshot = world.relay.snapshot(3, (0,))
    assert snapshot is not None
    assert (snapshot.version.run, snapshot.version.n) == ("other", 3)
    assert world.relay.chunk(snapshot.key, 0) == log.chunk(snapshot.key, 0)
    publisher.publish(weights(99))
    world.round()
    assert world.relay.newest_n == publisher.version.n


def test_nothing_crosses_again_after_a_restart_with_a_disk() -> None:
    disk = PlantedDisk()
    world = World(disk)
    world.round()
    world.publish(7)
    world.round(3)
    crossed = len(world.far.crossed)
    world.start()
    world.far.is_away = True
    late = world.behind(1)
    late.follow(8)  # before upstream answered again
    world.far.is_away = False
    world.round(3)
    assert np.array_equal(late.bits, world.chain.bits)
    assert len(world.far.crossed) == crossed
    world.publish()
    assert len(world.far.crossed) > crossed
    assert len(world.far.crossed) == len(set(world.far.crossed))


def test_updates_lost_on_disk_are_fetched_after_a_restart() -> None:
    disk = PlantedDisk()
    world = World(disk)
    world.round()
    late = world.behind()
    world.publish(3, is_merged=False)
    del disk.files["3.2.update"]
    world.start()
    world.round()
    late.source._source = world.relay
    late.follow(4)
    assert np.array_equal(late.bits, world.chain.bits)
    assert late.staging.stats.snapshots == 0
    assert len(world.far.crossed) == len(set(world.far.crossed)) + len(
        world.chain.log.frames(single(3)) or {}
    )


def test_chunk_that_arrived_early_is_not_fetched_again() -> None:
    world = World()
    world.round()
    world.publish(share=1.0)
    manifest = world.relay.wait_manifests(1, 0)[0]
    frames = world.relay._frames
    assert frames.begin(manifest.key, manifest.chunks) == ([], {})
    assert len(frames._flights) == 0


def test_after_an_outage_the_cheapest_way_to_the_newest_lands() -> None:
    world = World(PlantedDisk())
    world.round()
    one = world.behind()
    world.chain.publish(16)
    world.start()
    world.round()
    assert {key for key, _ in world.far.crossed} == {UpdateKey(17, 1)}
    one.source._source = world.relay
    one.follow(17)
    assert np.array_equal(one.bits, world.chain.bits)


def test_damage_stops_at_the_relay() -> None:
    world = World()
    world.round()
    one = world.behind()
    world.far.spoiled = 2
    world.publish(share=1.0)
    assert world.relay.statistics().rejected == 2
    world.far.spoiled = 1 << 30
    world.publish()
    assert world.relay.failure is not None
    manifest = world.relay.wait_manifests(2, 0)[0]
    for chunk in manifest.chunks:
        assert world.relay.held(manifest.key, chunk.tile) is None
    with pytest.raises(CorruptData, match="undamaged in 2 attempts"):
        world.relay.chunk(manifest.key, manifest.chunks[0].tile)
    world.far.spoiled = 0
    one.follow(3)
    assert np.array_equal(one.bits, world.chain.bits)


@pytest.mark.parametrize("is_full", [True, False])
def test_full_disk_causes_no_second_transfer(is_full: bool) -> None:
    disk = PlantedDisk()
    world = World(disk)
    world.round()
    one, two = world.behind(), world.behind()
    disk.room_bytes, disk.is_broken = (0, False) if is_full else (1 << 40, True)
    world.publish()
    for receiver in (one, two):
        receiver.follow(2)
        assert np.array_equal(receiver.bits, world.chain.bits)
    assert len(world.far.crossed) == len(set(world.far.crossed))
    assert "planted" in (world.relay.failure or "")


def test_memory_beside_a_full_disk_is_bounded() -> None:
    disk = PlantedDisk()
    world = World(disk, memory_bytes_max=2000)
    world.round()
    disk.room_bytes = 0
    for _ in range(4):
        world.publish(share=1.0)
        assert world.relay._frames._arrived_bytes <= 2000
    assert world.relay._frames._arrived_bytes > 0


def test_whole_tiles_are_forwarded_and_cross_once() -> None:
    world = World()
    world.round()
    world.publish(2)
    strangers = [Behind(world.relay, weights(70 + n)) for n in range(3)]
    for one in strangers:
        one.follow(3)
        assert np.array_equal(one.bits, world.chain.bits)
        assert one.staging.stats.snapshots == 1
    assert len(world.far.crossed) == len(set(world.far.crossed))
    assert len([key for key, _ in world.far.crossed if key.is_whole]) == len(TILES)


def test_whole_tiles_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose.transfer.relaying.snapshot_book.WHOLE_BYTES_MAX", 1000)
    world = World()
    world.round()
    snapshot = world.relay.snapshot(None, range(len(TILES)))
    assert snapshot is not None
    for chunk in snapshot.chunks:
        assert world.relay.chunk(snapshot.key, chunk.tile) is not None
        assert world.relay._snapshots.store.nbytes <= 1000


def test_a_relay_fetches_whole_tiles_of_one_request_together() -> None:
    class Slow(Planted):
        """Answers the first request when 8 tiles, all that may wait, were requested."""

        def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
            if "chunks" not in self.calls:
                eventually(lambda: len(relay._whole._flights) >= WHOLE_TOGETHER)
            yield from super().chunks(key, wanted)

    chain = Chain()
    far = Slow(chain.log)
    relay = Relay(far, store=MemoryStore())
    relay.round(0)
    with serve(relay) as server, closing(RemoteSource(server.address, server.token)) as source:
        assert np.array_equal(whole_row(source), chain.bits)
    assert sorted(tile for _, tile in far.crossed) == list(range(len(TILES)))
    assert far.calls.count("chunks") <= ANSWERERS + len(TILES) - WHOLE_TOGETHER


def test_future_version_is_not_reported_as_forgotten() -> None:
    world = World()
    world.round()
    world.chain.publish()
    with pytest.raises(Unavailable, match="has not arrived here"):
        world.relay.chunk(single(2), 0)
    world.round()
    assert world.relay.chunk(UpdateKey(2, 0), 0) is None
    assert world.relay.chunk(UpdateKey(2, -1), 0) is None


def test_relay_observes_its_limits() -> None:
    world = World(limits=Limits(3, 2, 2000))
    world.round()
    for _ in range(20):
        world.publish()
        assert world.relay._store.nbytes <= 2000
    keys = [one.key for one in world.relay.wait_manifests(1, 0)]
    assert sum(key.n - key.base_n == 1 for key in keys) <= 3
    assert world.chain.publisher.version.n == world.relay.newest_n


@pytest.mark.parametrize(("misses", "snapshots"), [(3, 0), (1 << 30, 1)])
def test_missing_chunk_of_a_relay_is_awaited_without_a_snapshot(
    misses: int, snapshots: int
) -> None:
    """Over TCP a relay reports a missing chunk; its manifests show that the chunk exists."""
    world = World()
    world.round()

    class Lacking(SourceAround):
        left = misses

        def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
            for tile, frame in super().chunks(key, wanted):
                is_lacking = tile == wanted[-1].tile and self.left > 0 and not key.is_whole
                self.left -= is_lacking
                yield tile, None if is_lacking else frame

    one = Behind(Lacking(world.relay), world.chain.bits)
    one.follow(1)
    world.publish()
    for _ in range(3):
        with pytest.raises(Unavailable, match="does not arrive"):
            one.round()
    one.follow(2)
    assert np.array_equal(one.bits, world.chain.bits)
    assert one.staging.stats.snapshots == snapshots


# ---- any order of events


# ---- threads


def test_concurrent_requests_for_a_chunk_fetch_it_once() -> None:
    world = World(patience_s=LONG_S, landing=Subscription(TILES, []))
    world.round()
    world.publish(share=1.0)
    began, go_on = threading.Event(), threading.Event()

    class Slow(Far):
        def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
            began.set()
            assert go_on.wait(LONG_S)
            yield from super().chunks(key, wanted)

    slow = Slow(world.chain.log)
    world.relay._reader = slow
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(world.relay.chunk, single(2), 3) for _ in range(8)]
        assert began.wait(LONG_S)
        eventually(lambda: world.relay.statistics().shared == 7)
        go_on.set()
        frames = {one.result(LONG_S) for one in asked}
    assert frames == {world.chain.log.chunk(single(2), 3)}
    assert slow.crossed == [(single(2), 3)]


def test_wait_for_others_is_bounded_by_the_patience() -> None:
    world = World(patience_s=0.05, landing=Subscription(TILES, []))
    world.round()
    world.publish(share=1.0)
    began, go_on = threading.Event(), threading.Event()

    class Stuck(Far):
        def chunks(self, key: UpdateKey, wanted: Sequence[Chunk]) -> Frames:
            began.set()
            assert go_on.wait(LONG_S)
            yield from super().chunks(key, wanted)

    world.relay._reader = Stuck(world.chain.log)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(world.relay.chunk, single(2), 0)
        assert began.wait(LONG_S)
        with pytest.raises(DeadlineExceeded):  # the same chunk
            world.relay.chunk(single(2), 0)
        with pytest.raises(DeadlineExceeded):  # another one, behind it
            world.relay.chunk(single(2), 1)
        go_on.set()
        assert first.result(LONG_S) is not None
    assert world.relay.chunk(single(2), 1) is not None
    assert len(world.relay._frames._flights) == 0


def test_only_one_waits_for_a_version_that_has_not_come() -> None:
    world = World(patience_s=LONG_S)
    world.round()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(world.relay.chunk, UpdateKey(2, 1), 0) for _ in range(8)]
        eventually(lambda: sum(one.done() for one in asked) == 7)
        for one in asked:
            if one.done():
                with pytest.raises(Unavailable, match="has not arrived"):
                    one.result()
        world.publish(share=1.0)
        [waited] = [one for one in asked if not one.done() or one.exception() is None]
        assert waited.result(LONG_S) is not None
    assert not world.relay._future.locked()


def test_threaded_relay_serves_threaded_receivers() -> None:
    chain = Chain()
    relay = Relay(Far(chain.log), store=MemoryStore())
    with follow(relay) as follower:
        workers = [Worker(relay, weights(1), signing=KEY) for _ in range(2)]
        try:
            for _ in range(5):
                chain.publish()
                for one in workers:
                    one.follow(chain.publisher.version)
                    assert np.array_equal(one.bits, chain.bits)
        finally:
            for one in workers:
                one.__exit__()
        assert follower.failure is None
    assert not follower._thread.is_alive()
    assert chain.publisher.version.n == 6


def test_relay_that_lands_other_tiles_fetches_nothing_early() -> None:
    world = World(landing=Subscription(Tiles.of(1000, 128)))
    world.round()
    world.publish()
    assert world.far.crossed == []


def test_version_forgotten_upstream_is_reported_as_forgotten() -> None:
    world = World()
    world.chain.publish(3)
    world.round()
    world.chain.log._forget([single(2)])
    assert world.relay.chunk(single(2), 0) is None
    assert single(2) not in {one.key for one in world.relay.wait_manifests(-1, 0)}
