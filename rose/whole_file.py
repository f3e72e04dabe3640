"""Atomic writes of files and folders, file locks, and reading of user inputs."""

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
# Errors of `open` for a link, for a pipe without a reader, and for a folder.
_IS_NOT_REGULAR: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
# Errors of file systems that cannot sync a folder; fsync(2) documents EINVAL.
_HAS_NO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})


@contextmanager
def beside(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` when the block succeeds.

    If `path` is a symbolic link, the link stays and its target is replaced. If `path` is a device
    or a pipe, `path` itself is yielded and nothing is renamed.

    Raises:
        OSError: the directory cannot be written, `path` is a directory, or it is a pipe that nobody
            reads; nothing is left behind.
    """
    if not is_folder:
        if not _is_replaceable(path):
            # Kept open, so that opening a pipe in the block does not wait for a reader.
            held = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                yield path
            finally:
                os.close(held)
            return
        path = Path(os.path.realpath(path))
    with replaced(path, is_folder=is_folder) as place:
        yield place


@contextmanager
def replaced(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Like `beside`, but if `path` is a symbolic link, the link itself is replaced.

    Raises:
        OSError: the directory cannot be written; nothing is left behind.
    """
    place = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # Created with default permissions, so that the user's umask applies.
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
    """Return whether `path` leads to a regular file or does not exist."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return stat.S_ISREG(mode)


def _standard_stream(path: Path) -> int | None:
    """Return the descriptor of stdout or stderr if `path` is that stream, else None."""
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
    """Replace a file atomically: a reader sees either the old file or the new one.

    A power cut may undo the replacement until `sync_folder` is called. If `path` is stdout or
    stderr, printed output is flushed first. Devices and pipes are written directly.

    Args:
        path: file to write.
        pieces: consecutive parts of the content.

    Raises:
        OSError: as in `beside`.
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


def open_own(path: Path, mode: int) -> int:
    """Open a regular file of this user, and return its descriptor.

    For files in folders that other users may write. A link is not followed, and a pipe is not
    waited for.

    Args:
        path: file to open.
        mode: flags of `os.open`.

    Raises:
        OSError: the file cannot be opened, is not regular, or belongs to another user.
    """
    rule = "it must be a regular file of this user"
    descriptor = open_regular(path, mode | os.O_NOFOLLOW, rule=rule)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError(errno.EPERM, rule, str(path))
    return descriptor


def open_regular(path: Path, mode: int, *, rule: str = "it must be a regular file") -> int:
    """Open a regular file without waiting for a pipe, and return its descriptor.

    Args:
        path: file to open.
        mode: flags of `os.open`.
        rule: text of the error if the file is not regular.

    Raises:
        OSError: the file cannot be opened, or is not regular.
    """
    refusal = OSError(errno.EPERM, rule, str(path))
    try:
        descriptor = os.open(path, mode | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno in _IS_NOT_REGULAR:
            raise refusal from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    return descriptor


def open_input(path: Path) -> io.BufferedReader:
    """Open a user's file for reading.

    Raises:
        OSError: the file cannot be opened, or it is a pipe or a device, where reading may block for
            ever.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # Opening a folder fails by itself.
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path.open("rb")


def read_input(path: Path, *, bytes_max: int) -> bytes:
    """Return the content of a user's file.

    Raises:
        OSError: as in `open_input`, or the file has more than `bytes_max` bytes.
    """
    with open_input(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max >> 20} MiB", str(path))
    return content


def sweep(path: Path) -> None:
    """Remove temporary files that killed processes left beside `path`.

    No other process may be writing `path`.

    Raises:
        OSError: the directory cannot be read or written.
    """
    begun = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}")
    for one in path.parent.iterdir():
        if begun.fullmatch(one.name):
            one.unlink(missing_ok=True)


def lock(path: Path) -> BinaryIO:
    """Lock `path` against other processes and callers until the returned file is closed.

    The lock belongs to this process. It ends with the process, even if a forked child still has the
    file open. Nobody removes the file: otherwise two processes could lock two different files of
    this name.

    Raises:
        BlockingIOError: the lock is taken.
        OSError: the file cannot be opened, or is not a regular file of this user.
    """
    # Looked for first: the kernel drops this process's lock when any descriptor of the file closes.
    if _is_open(path):
        raise BlockingIOError(errno.EAGAIN, "this process has locked it", str(path))
    file = os.fdopen(open_own(path, os.O_RDWR | os.O_CREAT), "r+b")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def _is_open(path: Path) -> bool:
    """Return whether this process has a descriptor of the file at `path`."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # The descriptor of the listing, or one that has just been closed.
            if os.path.samestat(there, os.fstat(int(one.name))):
                return True
    return False


def sync_file(path: Path) -> None:
    """Sync a file's content to disk.

    Call this before a rename: otherwise the new name may refer to an empty file after a power cut.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, which makes renames durable.

    Raises:
        OSError: the disk failed; a power cut may undo the latest renames.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _HAS_NO_SYNC:
            raise
    finally:
        os.close(descriptor)
