"""A disk in memory whose calls can fail: full, broken, or cut off by a crash at any byte."""

from collections.abc import Sequence

from rose.errors import OutOfMemory, Unavailable


class PlantedDisk:
    """Files as bytes. A crash leaves what `survivors` returns; `DiskStore` opens a disk of that."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.room_bytes = 1 << 40
        self.is_broken = False
        self.is_closed = False
        self.torn_at: int | None = None  # of the next change: the bytes until the machine dies
        self.partial: dict[str, bytes] = {}  # beside the files, as a crash leaves them
        self.reads = 0

    def names(self) -> list[str]:
        self._look()
        return sorted(self.files)

    def read(self, name: str, first: int = 0, nbytes: int | None = None) -> bytes:
        self._look()
        self.reads += 1
        if name not in self.files:
            raise Unavailable(f"there is no {name}")
        content = self.files[name][first:]
        return content if nbytes is None else content[:nbytes]

    def write(self, name: str, parts: Sequence[bytes]) -> None:
        self._look()
        content = b"".join(parts)
        self._make_room(len(content))
        if self.torn_at is not None and self.torn_at < len(content):
            self.partial[name] = content[: self.torn_at]
            raise Unavailable("the machine died")
        self.files[name] = content

    def extend(self, name: str, first: int, parts: Sequence[bytes]) -> None:
        self._look()
        content = b"".join(parts)
        whole = self.files[name][:first] + content
        if self.torn_at is not None and self.torn_at < len(content):
            self.files[name] = whole[: first + self.torn_at]
            raise Unavailable("the machine died")
        self._make_room(len(content))
        self.files[name] = whole

    def remove(self, name: str) -> None:
        self._look()
        self.files.pop(name, None)

    def close(self) -> None:
        self.is_closed = True

    def _look(self) -> None:
        if self.is_broken:
            raise Unavailable("planted: the disk is broken")

    def _make_room(self, nbytes: int) -> None:
        if sum(map(len, self.files.values())) + nbytes > self.room_bytes:
            raise OutOfMemory("planted: no room on the disk")
