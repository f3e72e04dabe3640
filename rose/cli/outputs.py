"""Where commands write the files that a user names."""

import tempfile
from contextlib import suppress
from pathlib import Path

from rose.errors import InvalidArgument
from rose.whole_file import write_whole


def write_output(path: Path, content: bytes, *, what: str) -> None:
    """Write a file that a user named; it appears whole or not at all, links are followed.

    Args:
        path: where; a device, a pipe or a standard stream is written as it is.
        content: of the file.
        what: the content's name in the sentence of a failure.

    Raises:
        InvalidArgument: it cannot be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {what} to {path}: {error.strerror or error}; "
            f"name a file in a directory that can be written"
        ) from None


def try_folder(folder: Path) -> None:
    """Try, before a long run, whether the folder of `--out` can be written to; leave nothing.

    Raises:
        InvalidArgument: it cannot; the sentence says why.
    """
    if folder.is_file():
        raise InvalidArgument(f"--out {folder} is a file: name a folder")
    missing: list[Path] = []
    try:
        missing += [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgument(
            f"cannot write to --out {folder}: {error.strerror or error}; "
            f"name a folder that can be written"
        ) from None
    finally:
        for one in missing:
            with suppress(OSError):
                one.rmdir()
