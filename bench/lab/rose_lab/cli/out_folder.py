"""The folder of a command's report."""

import tempfile
from contextlib import suppress
from pathlib import Path

from rose.errors import InvalidArgument


def try_folder(folder: Path) -> None:
    """Test before a long run that the folder of `--out` can be written; leave nothing behind.

    Raises:
        InvalidArgument: the folder cannot be written; the message says why.
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
