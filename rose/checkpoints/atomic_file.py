"""Files and folders that appear whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rose.errors import InvalidArgument


@contextmanager
def beside(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Give a place beside `path`, and move it there once the block ends well.

    Raises:
        InvalidArgument: the place cannot be written to; nothing is left behind.
    """
    partial: Path | None = None
    try:
        # Made as anybody makes them, so that the permissions are those that the user asks for.
        place = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        if is_folder:
            place.mkdir()
        else:
            place.touch(exist_ok=False)
        partial = place
        yield partial
        for one in partial.iterdir() if is_folder else (partial,):
            _write_through(one)
        partial.replace(path)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {path}: {error.strerror or error}; name a place that can be written to"
        ) from None
    finally:
        if partial is not None and partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        elif partial is not None:
            partial.unlink(missing_ok=True)


def _write_through(path: Path) -> None:
    """Wait until the disk has a file, so that a name never stands for half of one."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
