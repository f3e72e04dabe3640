"""Checkpoints that appear whole or not at all, and a sentence where they cannot."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rose import whole_file
from rose.errors import InvalidArgument


@contextmanager
def beside(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Give a place beside `path`, and move it there once the block ends well.

    Raises:
        InvalidArgument: the place cannot be written to; nothing is left behind.
    """
    try:
        with whole_file.beside(path, is_folder=is_folder) as place:
            yield place
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {path}: {error.strerror or error}; name a place that can be written to"
        ) from None
