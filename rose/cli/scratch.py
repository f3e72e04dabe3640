"""Temporary folders that do not stay behind for good, even when a run is killed."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rose.whole_file import lock

_LOCK: Final = ".lock"


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Give an empty folder, and remove it; those that killed runs left are removed first.

    Raises:
        OSError: the system's temporary folder cannot be written.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # Held by a living run, or of another user, or without a lock: it stays.
        with suppress(OSError):
            there = left.lstat()
            is_ours = stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid()
            if is_ours and (left / _LOCK).is_file():
                with lock(left / _LOCK):
                    shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        folder = Path(name)
        # Under another name first: a lock that nobody holds yet would be taken for an old one.
        with lock(folder / "lock"):
            (folder / "lock").rename(folder / _LOCK)
            yield folder
