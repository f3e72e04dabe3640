"""The file beside a device's socket that keeps an operator's limit across restarts."""

from pathlib import Path

from rose.errors import CorruptData
from rose.whole_file import write_whole


def read_limit(path: Path) -> float:
    """Return the share of the pool that may be on loan, 0 to 1; 1 if there is no file.

    Raises:
        CorruptData: the file cannot be read, or does not hold a number from 0 to 1.
    """
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return 1.0
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptData(
            f"cannot read the limit of the loans in {path}: remove the file"
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
    """Write the share of the pool that may be on loan, 0 to 1."""
    write_whole(path, f"{share:g}\n".encode())
