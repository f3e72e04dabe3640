"""Write a file whole or not at all."""

import os
import secrets
from pathlib import Path


def write_whole(path: Path, *pieces: bytes) -> None:
    """Write beside `path`, then rename: a reader sees the old file or the new one.

    Args:
        path: of the file.
        pieces: what it holds, one behind the other.

    Raises:
        OSError: the directory cannot be written, or `path` is one; nothing is left behind.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as file:  # with the permissions that the user asks for
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())  # or the name could outlive a power cut, and the bytes not
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
