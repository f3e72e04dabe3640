"""The file beside a device's socket that keeps an operator's limit across restarts."""

import os
from pathlib import Path
from typing import Final

from rose.errors import CorruptData, Unavailable
from rose.whole_file import open_own, replaced

_BYTES_MAX: Final = 64


def read_limit(path: Path) -> float:
    """Return the share of the pool that may be on loan, 0 to 1; 1 if there is no file.

    Raises:
        CorruptData: the file does not hold a number from 0 to 1.
        Unavailable: the file cannot be read, or is not a regular file of this user.
    """
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as file:
            text = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return 1.0
    except OSError as error:
        raise Unavailable(
            f"cannot read the limit of the loans in {path}: {error.strerror}"
        ) from error
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise CorruptData(
            f"{path} must hold a share of the pool from 0 to 1, as the limit of the loans: remove "
            "the file to lend without a limit"
        )
    return share


def write_limit(path: Path, share: float) -> None:
    """Write the share of the pool that may be on loan, 0 to 1. A link at `path` is replaced.

    Raises:
        Unavailable: the file cannot be written.
    """
    try:
        with replaced(path) as place:
            place.write_bytes(f"{share:g}\n".encode())
    except OSError as error:
        raise Unavailable(
            f"the limit of the loans holds until the device closes, but cannot be kept in {path}: "
            f"{error.strerror}"
        ) from error
