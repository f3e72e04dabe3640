"""Files and folders that appear whole or not at all, locks on them, and inputs."""

import errno
import fcntl
import io
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

_STANDARD_STREAMS: Final = (1, 2)
# What a file system says that has no such thing as a folder's sync; the first is of fsync(2).
_HAS_NO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})


@contextmanager
def beside(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Give a place beside `path`, and move it there once the block ends well.

    A link stays, and the file at its end is replaced. A device or a pipe is never replaced: it is
    the place itself.

    Raises:
        OSError: the directory cannot be written, or `path` is one; nothing is left behind.
    """
    if not is_folder:
        if not _is_replaceable(path):
            yield path
            return
        path = Path(os.path.realpath(path))
    place = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # Made as anybody makes them, so that the permissions are those that the user asks for.
    if is_folder:
        place.mkdir()
    else:
        place.touch(exist_ok=False)
    try:
        yield place
        for one in place.iterdir() if is_folder else (place,):
            sync_file(one)
        place.replace(path)
    finally:
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)


def _is_replaceable(path: Path) -> bool:
    """Whether a regular file is at the end of `path`, or nothing."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return stat.S_ISREG(mode)


def _standard_stream(path: Path) -> int | None:
    """Return which standard stream of this process `path` is; None if it is neither."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return None
    for stream in _STANDARD_STREAMS:
        with suppress(OSError):  # It may be closed.
            if os.path.samestat(there, os.fstat(stream)):
                return stream
    return None


def write_whole(path: Path, *pieces: bytes | memoryview) -> None:
    """Write beside `path`, then rename: a reader sees the old file or the new one.

    The new one outlives a power cut after `sync_folder`; before it, either may be there. Into a
    standard stream it is written behind what was printed, and to a device or a pipe as it is.

    Args:
        path: of the file.
        pieces: what it holds, one behind the other.

    Raises:
        OSError: as of `beside`.
    """
    stream = _standard_stream(path)
    if stream is not None:
        for printed in (sys.stdout, sys.stderr):
            printed.flush()
        with os.fdopen(os.dup(stream), "wb") as file:
            file.writelines(pieces)
        return
    with beside(path) as place, place.open("wb") as file:
        file.writelines(pieces)


def open_input(path: Path) -> io.BufferedReader:
    """Open a file that a user named, to read it.

    Raises:
        OSError: it cannot be opened, or is a pipe or a device, which may never end or begin.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # Opening a folder fails by itself.
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.open("rb")


def read_input(path: Path, *, bytes_max: int) -> bytes:
    """Return what is in a file that a user named.

    Raises:
        OSError: as of `open_input`, or there are more than `bytes_max` bytes.
    """
    with open_input(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max >> 20} MiB", str(path))
    return content


def sweep(path: Path) -> None:
    """Remove files that a process which was killed had begun beside `path`.

    Only for who knows that nobody else writes `path` now.

    Raises:
        OSError: the directory cannot be read or written.
    """
    begun = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}")
    for one in path.parent.iterdir():
        if begun.fullmatch(one.name):
            one.unlink(missing_ok=True)


def lock(path: Path) -> BinaryIO:
    """Lock `path` against other processes and callers until the file returned is closed.

    The file stays: if its name were removed, two could hold locks of one name.

    Raises:
        BlockingIOError: somebody holds it.
        OSError: the file cannot be opened.
    """
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def sync_file(path: Path) -> None:
    """Wait until the disk has a file: a name that outlived a power cut must not stand for half."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder: a rename lives there, and not in the file.

    Raises:
        OSError: the disk fails; the names are there, and a power cut may undo the last of them.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _HAS_NO_SYNC:
            raise
    finally:
        os.close(descriptor)
