"""Files and folders that appear whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def beside(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Give a place beside `path`, and move it there once the block ends well.

    Raises:
        OSError: the directory cannot be written, or `path` is one; nothing is left behind.
    """
    place = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # Made as anybody makes them, so that the permissions are those that the user asks for.
    if is_folder:
        place.mkdir()
    else:
        place.touch(exist_ok=False)
    try:
        yield place
        for one in place.iterdir() if is_folder else (place,):
            _write_through(one)
        place.replace(path)
    finally:
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)


def write_whole(path: Path, *pieces: bytes) -> None:
    """Write beside `path`, then rename: a reader sees the old file or the new one.

    Args:
        path: of the file.
        pieces: what it holds, one behind the other.

    Raises:
        OSError: as of `beside`.
    """
    with beside(path) as place, place.open("wb") as file:
        file.writelines(pieces)


def _write_through(path: Path) -> None:
    """Wait until the disk has a file: a name that outlived a power cut must not stand for half."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
