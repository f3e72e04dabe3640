"""A store on disk: one file per update; the newest updates also stay in memory."""

import threading
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from rose.errors import CorruptData, OutOfMemory, Unavailable
from rose.transfer.manifest import Manifest, UpdateKey
from rose.transfer.publishing.disk import HostDisk
from rose.transfer.publishing.store import MemoryStore, check_sizes
from rose.transfer.publishing.update_file import UpdateFile, begin_update, read_update
from rose.units import GIB

MEMORY_BYTES_MAX: Final = GIB

_SUFFIX: Final = ".update"


class DiskStore(MemoryStore):
    """Stores each update as a file of a folder; the folder is the index.

    The first frames of an update are written with its manifest; after a crash either all of
    them exist or none. Later frames are appended, and a crash may lose them. Torn or damaged data
    is dropped when the folder is opened or the data is read.

    Any thread may call. `_lock` guards the index of the files and is not held during disk calls;
    `_changing` lets one thread at a time change the files.

    Args:
        disk: the folder; closed with the store.
        bytes_max: limit for all frames, in bytes.
        memory_bytes_max: limit for frames of the newest updates that also stay in memory, so that a
            slow disk does not delay receivers that follow closely.

    Raises:
        Unavailable: the disk cannot be read.
        InvalidArgument: a file was written by an earlier rose.
    """

    def __init__(
        self, disk: HostDisk, *, bytes_max: int, memory_bytes_max: int = MEMORY_BYTES_MAX
    ) -> None:
        self._disk = disk
        self._bytes_max = bytes_max
        self._memory_bytes_max = memory_bytes_max
        super().__init__()  # the memory store keeps the newest updates
        self._changing = threading.Lock()
        self._files: dict[UpdateKey, UpdateFile] = {}
        self._unwanted: set[str] = set()  # files that could not be removed yet
        for name in disk.names():
            self._open(name)

    @property
    def nbytes(self) -> int:
        """Return the size of all frames, in bytes."""
        with self._lock:
            return sum(one.nbytes for one in self._files.values())

    def put(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        """Write frames, and wait for the disk."""
        check_sizes(manifest, frames)
        with self._changing:
            with self._lock:
                known = self._files.get(manifest.key)
            fresh = {
                tile: frame
                for tile, frame in frames.items()
                if known is None or tile not in known.places
            }
            size = sum(map(len, fresh.values()))
            if self.nbytes + size > self._bytes_max:
                raise OutOfMemory(
                    f"{size} more bytes for version {manifest.version} exceed the folder's limit "
                    f"of {self._bytes_max}"
                )
            file = self._create(manifest, fresh) if known is None else self._extend(known, fresh)
            with self._lock:
                self._files[manifest.key] = file
            self._remember(manifest, fresh)

    def get(self, key: UpdateKey, tile: int) -> bytes | None:
        """Look in memory, then on disk; a frame damaged on disk is dropped."""
        if (frame := super().get(key, tile)) is not None:
            return frame
        with self._lock:
            file = self._files.get(key)
            place = None if file is None else file.places.get(tile)
        if file is None or place is None:
            return None
        first, nbytes, crc = place
        try:
            frame = self._disk.read(_name(key), first, nbytes)
        except Unavailable:
            with self._lock:
                if self._files.get(key) is not file:
                    return None  # forgotten meanwhile
            raise
        if len(frame) != nbytes or zlib.crc32(frame) != crc:
            with self._lock:
                file.places.pop(tile, None)
            return None
        return frame

    def forget(self, key: UpdateKey) -> None:
        """Remove the file; if that fails, the update counts as gone, and the next call retries."""
        super().forget(key)
        with self._changing:
            with self._lock:
                if self._files.pop(key, None) is not None:
                    self._unwanted.add(_name(key))
            for name in sorted(self._unwanted):
                with suppress(Unavailable, OutOfMemory):
                    self._disk.remove(name)
                    self._unwanted.discard(name)

    def manifests(self) -> list[Manifest]:
        """Return all manifests, ascending by key."""
        with self._lock:
            return [self._files[key].manifest for key in sorted(self._files)]

    def nbytes_of(self, key: UpdateKey) -> int:
        """Return the size of the frames of an update, in bytes."""
        with self._lock:
            file = self._files.get(key)
            return 0 if file is None else file.nbytes

    def close(self) -> None:
        """Wait for the disk, and close it."""
        self._disk.close()

    def _create(self, manifest: Manifest, frames: Mapping[int, bytes]) -> UpdateFile:
        file, header = begin_update(manifest)
        self._disk.write(_name(manifest.key), [header, *file.add(frames)])
        self._unwanted.discard(_name(manifest.key))
        return file

    def _extend(self, known: UpdateFile, frames: Mapping[int, bytes]) -> UpdateFile:
        file = UpdateFile(known.manifest, known.end, dict(known.places))
        if frames:
            self._disk.extend(_name(known.manifest.key), known.end, file.add(frames))
        return file

    def _remember(self, manifest: Manifest, frames: Mapping[int, bytes]) -> None:
        super().put(manifest, frames)
        for old in super().manifests():  # the newest is the last
            if super().nbytes <= self._memory_bytes_max:
                return
            super().forget(old.key)

    def _open(self, name: str) -> None:
        """Index a file; remove it if its header is damaged or its name is wrong."""
        if not name.endswith(_SUFFIX):
            return
        content = self._disk.read(name)
        with suppress(CorruptData):
            file = read_update(content)
            if _name(file.manifest.key) == name:
                self._files[file.manifest.key] = file
                return
        with suppress(Unavailable, OutOfMemory):
            self._disk.remove(name)


def _name(key: UpdateKey) -> str:
    return f"{key.n}.{key.base_n}{_SUFFIX}"
