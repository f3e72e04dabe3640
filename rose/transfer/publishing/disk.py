"""A folder for a store of updates. It has few calls, so tests can inject faults into each."""

import errno
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from pathlib import Path
from typing import Final

from rose.errors import OutOfMemory, RoseError, Unavailable
from rose.thread import ThreadPool
from rose.whole_file import sync_folder, write_whole

# Deadline of one change, in seconds.
WRITE_S: Final = 30.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Temporary files left by `write_whole` of a killed process.
_BEGUN: Final = ".*." + 16 * "[0-9a-f]"


class HostDisk:
    """A folder of this machine; no caller waits longer than `WRITE_S` for a change.

    Any thread may read; one thread at a time may change the folder. Every call raises OutOfMemory
    if the disk is full, and Unavailable if the disk fails or is slow.

    One internal thread changes the folder. While the thread works on a change that is past its
    deadline, every further change is refused. A new file that is written too late is removed again.

    Args:
        directory: path of the folder, created if missing; nobody else may change the folder.

    Raises:
        Unavailable: the folder cannot be created.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._late: Future[None] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for left in directory.glob(_BEGUN):
                left.unlink()
        except OSError as error:
            raise _failure(directory, error) from error
        self._pool = ThreadPool(1, "rose-disk")

    def names(self) -> list[str]:
        """Return the names of all complete files."""
        try:
            found = [one.name for one in self._directory.iterdir() if one.is_file()]
        except OSError as error:
            raise _failure(self._directory, error) from error
        return sorted(name for name in found if not name.startswith("."))

    def read(self, name: str, first: int = 0, nbytes: int | None = None) -> bytes:
        """Return bytes of a file from offset `first`: up to `nbytes`, by default to its end."""
        try:
            with (self._directory / name).open("rb") as file:
                file.seek(first)
                return file.read(-1 if nbytes is None else nbytes)
        except OSError as error:
            raise _failure(self._directory / name, error) from error

    def write(self, name: str, parts: Sequence[bytes]) -> None:
        """Write a file: even after a crash it exists whole, or not at all."""
        path = self._directory / name

        def change() -> None:
            write_whole(path, *parts)
            try:
                sync_folder(self._directory)
            except OSError:
                path.unlink(missing_ok=True)  # The entry is not durable: a crash might lose it.
                raise

        self._run(path, change, take_back=lambda: path.unlink(missing_ok=True))

    def extend(self, name: str, first: int, parts: Sequence[bytes]) -> None:
        """Truncate a file at offset `first`, then append `parts`, without fsync."""
        path = self._directory / name

        def change() -> None:
            with path.open("r+b") as file:
                file.truncate(first)
                file.seek(first)
                file.writelines(parts)

        self._run(path, change)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        path = self._directory / name
        self._run(path, lambda: path.unlink(missing_ok=True))

    def close(self) -> None:
        """Join the thread, however long its last change takes."""
        self._pool.shutdown()

    def _run(
        self,
        path: Path,
        change: Callable[[], None],
        *,
        take_back: Callable[[], None] = lambda: None,
    ) -> None:
        if self._late is not None and not self._late.done():
            raise Unavailable(f"the disk of {path} is still busy with an earlier change")
        self._late = self._pool.submit(change)
        try:
            self._late.result(WRITE_S)
        except LateError as error:
            # The change may finish later, or just did. The caller is told that it failed, so a new
            # file is removed again.
            self._late = self._pool.submit(take_back)
            raise Unavailable(f"the disk did not write {path} within {WRITE_S} s") from error
        except OSError as error:
            raise _failure(path, error) from error


def _failure(path: Path, error: OSError) -> RoseError:
    text = error.strerror or str(error)
    if error.errno in _FULL:
        return OutOfMemory(f"no room for {path}: {text}")
    return Unavailable(f"{path} cannot be used: {text}")
