"""A folder as a store of updates sees it: few calls, so that tests can put faults behind each."""

import errno
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from pathlib import Path
from typing import Final

from rose.errors import OutOfMemory, RoseError, Unavailable
from rose.whole_file import sync_folder, write_whole

WRITE_S: Final = 30.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Files that `write_whole` of a process which was killed had begun.
_BEGUN: Final = ".*." + 16 * "[0-9a-f]"


class HostDisk:
    """A folder of this machine, for which no caller waits longer than `write_s` with a change.

    Any thread reads; one thread at a time changes. Every call raises OutOfMemory where the disk is
    full, and Unavailable where it fails or is slow.

    One thread of its own changes the folder. What it could not finish in time is given up: it is
    not in the folder once that thread gets to it, and until then every further change is refused.

    Args:
        directory: made where it is not there; nobody else may change it.
        write_s: for one change.

    Raises:
        Unavailable: the folder cannot be made.
    """

    def __init__(self, directory: Path, *, write_s: float = WRITE_S) -> None:
        self._directory = directory
        self._write_s = write_s
        self._late: Future[None] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for left in directory.glob(_BEGUN):
                left.unlink()
        except OSError as error:
            raise _failure(directory, error) from error
        self._pool = ThreadPoolExecutor(1, "rose-disk")

    def names(self) -> list[str]:
        """Return the names of all whole files."""
        try:
            found = [one.name for one in self._directory.iterdir() if one.is_file()]
        except OSError as error:
            raise _failure(self._directory, error) from error
        return sorted(name for name in found if not name.startswith("."))

    def read(self, name: str, first: int = 0, nbytes: int | None = None) -> bytes:
        """Return bytes of a file from `first` on, to its end or at most so many."""
        try:
            with (self._directory / name).open("rb") as file:
                file.seek(first)
                return file.read(-1 if nbytes is None else nbytes)
        except OSError as error:
            raise _failure(self._directory / name, error) from error

    def write(self, name: str, parts: Sequence[bytes]) -> None:
        """Make a file that is there whole, also after a crash, or not at all."""
        path = self._directory / name

        def change() -> None:
            write_whole(path, *parts)
            try:
                sync_folder(self._directory)
            except OSError:
                path.unlink(missing_ok=True)  # A crash might take it: it is not there.
                raise

        self._run(path, change, take_back=lambda: path.unlink(missing_ok=True))

    def extend(self, name: str, first: int, parts: Sequence[bytes]) -> None:
        """Cut off what is torn and write on; the disk gets it when the system sees fit."""
        path = self._directory / name

        def change() -> None:
            with path.open("r+b") as file:
                file.truncate(first)
                file.seek(first)
                file.writelines(parts)

        self._run(path, change)

    def remove(self, name: str) -> None:
        """Drop a file; one that is not there is as good as dropped."""
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
            raise Unavailable(f"the disk of {path} still works on an earlier change")
        self._late = self._pool.submit(change)
        try:
            self._late.result(self._write_s)
        except LateError as error:
            # It will come through, or has at this very moment; nobody was told that it did.
            self._late = self._pool.submit(take_back)
            raise Unavailable(f"the disk did not take {path} within {self._write_s} s") from error
        except OSError as error:
            raise _failure(path, error) from error


def _failure(path: Path, error: OSError) -> RoseError:
    text = error.strerror or str(error)
    if error.errno in _FULL:
        return OutOfMemory(f"no room for {path}: {text}")
    return Unavailable(f"{path} cannot be used: {text}")
