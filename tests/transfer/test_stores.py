"""Stores keep updates whole, also through a crash, and report a broken disk."""

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rose.errors import CorruptData, InvalidArgument, OutOfMemory, Unavailable
from rose.transfer.manifest import Chunk, Manifest, UpdateKey, Version
from rose.transfer.publishing.disk import HostDisk
from rose.transfer.publishing.disk_store import DiskStore
from rose.transfer.publishing.store import MemoryStore
from tests.transfer.planted_disk import PlantedDisk

LAYOUT = hashlib.sha256(b"any").hexdigest()
TILES = 5
ROOMY = 1 << 20


def frame(n: int, tile: int) -> bytes:
    return bytes([n % 256, tile]) * (10 + tile)


def manifest(n: int, base_n: int | None = None, tiles: range = range(TILES)) -> Manifest:
    base = Version("run", 1, n - 1 if base_n is None else base_n)
    chunks = [
        Chunk(tile, len(frame(n, tile)), 1, hashlib.sha256(frame(n, tile)).digest(), (n, tile))
        for tile in tiles
    ]
    return Manifest(
        Version("run", 1, n), base, (n, n), (0, 0), LAYOUT, TILES, 99, tuple(chunks), mac=b"mac"
    )


def frames(n: int, *tiles: int) -> dict[int, bytes]:
    return {tile: frame(n, tile) for tile in tiles or range(TILES)}


def tiles_of(store: MemoryStore, key: UpdateKey) -> set[int]:
    return {tile for tile in range(TILES) if store.get(key, tile) is not None}


def stores(tmp_path: Path) -> dict[str, Callable[[], MemoryStore]]:
    return {
        "memory": MemoryStore,
        "planted": lambda: DiskStore(PlantedDisk(), bytes_max=ROOMY),
        "host": lambda: DiskStore(HostDisk(tmp_path / "log"), bytes_max=ROOMY),
        "host alone": lambda: DiskStore(
            HostDisk(tmp_path / "log"), bytes_max=ROOMY, memory_bytes_max=0
        ),
    }


@pytest.fixture(params=["memory", "planted", "host", "host alone"])
def store(request: pytest.FixtureRequest, tmp_path: Path):
    made = stores(tmp_path)[request.param]()
    yield made
    made.close()


def test_stored_update_is_found(store: MemoryStore) -> None:
    store.put(manifest(2), frames(2, 0, 3))
    store.put(manifest(1), {})
    assert store.get(UpdateKey(2, 1), 3) == frame(2, 3)
    assert store.get(UpdateKey(2, 1), 1) is None
    assert store.get(UpdateKey(2, 0), 0) is None
    assert [one.key.n for one in store.manifests()] == [1, 2]
    assert tiles_of(store, UpdateKey(2, 1)) == {0, 3}
    assert tiles_of(store, UpdateKey(9, 8)) == set()
    assert store.nbytes == store.nbytes_of(UpdateKey(2, 1)) == len(frame(2, 0) + frame(2, 3))
    store.put(manifest(2), frames(2, 1, 3))  # more of it, and one again
    assert store.get(UpdateKey(2, 1), 1) == frame(2, 1)
    assert tiles_of(store, UpdateKey(2, 1)) == {0, 1, 3}
    assert store.nbytes == len(frame(2, 0) + frame(2, 1) + frame(2, 3))


def test_trimming_drops_the_lowest_first(store: MemoryStore) -> None:
    for n in (1, 2, 3):
        store.put(manifest(n), frames(n))
    store.trim(store.nbytes - 1)
    assert [one.key.n for one in store.manifests()] == [2, 3]
    store.clear()
    assert (store.manifests(), store.nbytes) == ([], 0)


def test_frame_of_another_size_is_refused_and_not_kept(store: MemoryStore) -> None:
    for wrong in ({0: frame(2, 0), 1: frame(2, 1) + b"\0"}, {0: frame(2, 0), 9: b"x"}):
        with pytest.raises(CorruptData):
            store.put(manifest(2), wrong)
        assert store.manifests() == []
        assert store.get(UpdateKey(2, 1), 0) is None


def test_reopened_folder_has_its_updates(tmp_path: Path) -> None:
    for memory_bytes_max in (0, ROOMY):
        folder = tmp_path / str(memory_bytes_max)
        first = DiskStore(HostDisk(folder), bytes_max=ROOMY, memory_bytes_max=memory_bytes_max)
        first.put(manifest(2), frames(2, 0, 1))
        first.put(manifest(2), frames(2, 4))
        first.put(manifest(4, 2), frames(4))
        first.put(manifest(3), frames(3))
        first.forget(UpdateKey(3, 2))
        first.close()
        again = DiskStore(HostDisk(folder), bytes_max=ROOMY)
        assert again.manifests() == [manifest(2), manifest(4, 2)]
        assert tiles_of(again, UpdateKey(2, 1)) == {0, 1, 4}
        assert [again.get(UpdateKey(4, 2), tile) for tile in range(TILES)] == [
            frame(4, tile) for tile in range(TILES)
        ]
        assert again.nbytes == first.nbytes
        again.close()


@given(st.integers(0, 400))
def test_new_update_cut_at_any_byte_is_ignored(torn_at: int) -> None:
    disk = PlantedDisk()
    store = DiskStore(disk, bytes_max=ROOMY)
    store.put(manifest(2), frames(2))
    disk.torn_at = torn_at
    try:
        store.put(manifest(3), frames(3))
        is_whole = True
    except Unavailable:
        is_whole = False
        assert [one.key.n for one in store.manifests()] == [2]
    again = DiskStore(PlantedDisk(disk.files), bytes_max=ROOMY)
    assert [one.key.n for one in again.manifests()] == [2, 3][: 1 + is_whole]


@given(st.integers(0, 200), st.integers(0, 255))
def test_crash_while_frames_are_added_loses_only_these_frames(torn_at: int, junk: int) -> None:
    disk = PlantedDisk()
    store = DiskStore(disk, bytes_max=ROOMY, memory_bytes_max=0)
    store.put(manifest(2), frames(2, 0))
    disk.torn_at = torn_at
    try:
        store.put(manifest(2), frames(2, 1, 2))
    except Unavailable:
        assert tiles_of(store, UpdateKey(2, 1)) == {0}
    left = {name: content + bytes([junk]) * 3 for name, content in disk.files.items()}
    again = DiskStore(PlantedDisk(left), bytes_max=ROOMY, memory_bytes_max=0)
    there = tiles_of(again, UpdateKey(2, 1))
    assert 0 in there
    again.put(manifest(2), frames(2, 3))  # goes on where the sound part ends
    for tile in there | {3}:
        assert again.get(UpdateKey(2, 1), tile) == frame(2, tile)


@given(st.data())
def test_chunk_corrupted_on_disk_is_never_served(data: st.DataObject) -> None:
    disk = PlantedDisk()
    DiskStore(disk, bytes_max=ROOMY).put(manifest(2), frames(2))
    [name] = disk.files
    content = bytearray(disk.files[name])
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    store = DiskStore(PlantedDisk({name: bytes(content)}), bytes_max=ROOMY, memory_bytes_max=0)
    for tile in range(TILES):
        assert store.get(UpdateKey(2, 1), tile) in (None, frame(2, tile))
    assert len(tiles_of(store, UpdateKey(2, 1))) < TILES


def test_corruption_of_an_open_store_is_found_at_the_next_read() -> None:
    disk = PlantedDisk()
    store = DiskStore(disk, bytes_max=ROOMY, memory_bytes_max=0)
    store.put(manifest(2), frames(2))
    [name] = disk.files
    disk.files[name] = disk.files[name][:-1] + b"\xff"
    assert store.get(UpdateKey(2, 1), TILES - 1) is None
    assert TILES - 1 not in tiles_of(store, UpdateKey(2, 1))
    store.put(manifest(2), frames(2, TILES - 1))  # so that it can come again
    assert store.get(UpdateKey(2, 1), TILES - 1) == frame(2, TILES - 1)


def test_files_of_others_and_of_other_names_are_not_taken_for_updates() -> None:
    disk = PlantedDisk()
    DiskStore(disk, bytes_max=ROOMY).put(manifest(2), frames(2))
    [name] = disk.files
    others = {name.replace("2.1", "7.6"): disk.files[name], "notes.txt": b"mine", "1.update": b""}
    left = PlantedDisk({name: disk.files[name], **others})
    assert [one.key.n for one in DiskStore(left, bytes_max=ROOMY).manifests()] == [2]
    assert sorted(left.files) == sorted([name, "notes.txt"])


def test_folder_of_an_earlier_format_is_refused_unchanged() -> None:
    disk = PlantedDisk({"2.1.update": b"ROSEUPD1" + bytes(99)})
    with pytest.raises(InvalidArgument, match="earlier rose"):
        DiskStore(disk, bytes_max=ROOMY)
    assert set(disk.files) == {"2.1.update"}


def test_full_disk_is_reported_and_stored_updates_are_served() -> None:
    disk = PlantedDisk()
    store = DiskStore(disk, bytes_max=ROOMY)
    store.put(manifest(2), frames(2))
    disk.room_bytes = 0
    with pytest.raises(OutOfMemory, match="no room"):
        store.put(manifest(3), frames(3))
    with pytest.raises(OutOfMemory):
        store.put(manifest(4), {})
    assert [one.key.n for one in store.manifests()] == [2]
    disk.is_broken = True  # and even so the newest come from memory
    assert store.get(UpdateKey(2, 1), 1) == frame(2, 1)
    assert disk.reads == 0


def test_more_than_the_folder_may_keep_is_refused() -> None:
    size = sum(map(len, frames(2).values()))
    store = DiskStore(PlantedDisk(), bytes_max=size)
    store.put(manifest(2), frames(2))
    with pytest.raises(OutOfMemory, match="exceed the folder"):
        store.put(manifest(3), frames(3, 0))
    store.forget(UpdateKey(2, 1))
    store.put(manifest(3), frames(3))


def test_memory_keeps_the_newest_and_the_disk_all() -> None:
    size = sum(map(len, frames(2).values()))
    disk = PlantedDisk()
    store = DiskStore(disk, bytes_max=ROOMY, memory_bytes_max=2 * size)
    for n in (2, 3, 4):
        store.put(manifest(n), frames(n))
    assert [store.get(UpdateKey(n, n - 1), 0) for n in (4, 3)] == [frame(4, 0), frame(3, 0)]
    assert disk.reads == 0
    assert store.get(UpdateKey(2, 1), 0) == frame(2, 0)
    assert disk.reads == 1
    disk.is_broken = True
    with pytest.raises(Unavailable):
        store.get(UpdateKey(2, 1), 0)


def test_file_that_cannot_be_removed_is_forgotten_and_removed_later() -> None:
    disk = PlantedDisk()
    store = DiskStore(disk, bytes_max=ROOMY)
    store.put(manifest(2), frames(2))
    disk.is_broken = True
    store.forget(UpdateKey(2, 1))
    assert store.get(UpdateKey(2, 1), 0) is None
    disk.is_broken = False
    store.put(manifest(3), frames(3))
    store.forget(UpdateKey(9, 8))
    assert [name[0] for name in disk.files] == ["3"]


def test_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Unavailable, match="file"):
        HostDisk(tmp_path / "file" / "log")


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    (tmp_path / f".3.2.update.{8 * '3f'}").write_bytes(b"half")
    disk = HostDisk(tmp_path)
    assert disk.names() == []
    assert list(tmp_path.iterdir()) == []
    disk.close()


def test_file_name_that_the_disk_refuses_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, code = os.fsync, errno.EIO

    def fail_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    disk = HostDisk(tmp_path)
    monkeypatch.setattr(os, "fsync", fail_for_folders)
    with pytest.raises(Unavailable, match="Input/output error"):
        disk.write("3.2.update", [b"whole"])
    assert disk.names() == []
    code = errno.EINVAL  # A file system without such a thing.
    disk.write("3.2.update", [b"whole"])
    assert disk.read("3.2.update") == b"whole"
    disk.close()


def test_slow_disk_is_reported_and_its_late_file_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, real = threading.Event(), Path.replace
    began = threading.Event()

    def slow(self: Path, target: Path) -> Path:
        began.set()
        assert held.wait(60)
        return real(self, target)

    monkeypatch.setattr("rose.transfer.publishing.disk.WRITE_S", 0.05)
    disk = HostDisk(tmp_path)
    store = DiskStore(disk, bytes_max=ROOMY)
    monkeypatch.setattr(Path, "replace", slow)
    try:
        with pytest.raises(Unavailable, match="within"):
            store.put(manifest(2), frames(2))
        assert began.wait(60)
        with pytest.raises(Unavailable, match="earlier change"):
            store.put(manifest(3), frames(3))
        assert store.manifests() == []
    finally:
        held.set()
        disk.close()
    assert disk.names() == []


class StoreMachine(RuleBasedStateMachine):
    """A disk store, opened again at any time, beside the one in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = PlantedDisk()
        self.model = MemoryStore()
        self.open()

    def open(self) -> None:
        self.store = DiskStore(self.disk, bytes_max=ROOMY, memory_bytes_max=100)

    @rule(n=st.integers(1, 4), tiles=st.sets(st.integers(0, TILES - 1)))
    def put(self, n: int, tiles: set[int]) -> None:
        for store in (self.store, self.model):
            store.put(manifest(n), {tile: frame(n, tile) for tile in tiles})

    @rule(n=st.integers(1, 4))
    def forget(self, n: int) -> None:
        for store in (self.store, self.model):
            store.forget(UpdateKey(n, n - 1))

    @rule()
    def open_again(self) -> None:
        self.disk = PlantedDisk(self.disk.files)
        self.open()

    @rule(n=st.integers(1, 4), tiles=st.sets(st.integers(0, TILES - 1), min_size=1))
    def put_on_a_full_disk(self, n: int, tiles: set[int]) -> None:
        wanted = tiles - tiles_of(self.model, UpdateKey(n, n - 1))
        if not wanted:
            return
        self.disk.room_bytes = 0
        with pytest.raises(OutOfMemory):
            self.store.put(manifest(n), {tile: frame(n, tile) for tile in wanted})
        self.disk.room_bytes = ROOMY

    @invariant()
    def both_have_the_same(self) -> None:
        assert self.store.manifests() == self.model.manifests()
        assert self.store.nbytes == self.model.nbytes
        for n in range(1, 5):
            key = UpdateKey(n, n - 1)
            for tile in range(TILES):
                assert self.store.get(key, tile) == self.model.get(key, tile)


TestStoreMachine = StoreMachine.TestCase
