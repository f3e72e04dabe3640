"""A checkpoint's tensors as rows that lie in its files, to fill them and to hold calls against."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from rose.checkpoints.checkpoint import open_checkpoint


def mapped(path: Path) -> dict[str, Any]:
    """Return a row of units for each tensor; what is written there is in the file."""
    maps: dict[Path, mmap.mmap] = {}
    rows = {}
    for name, one in open_checkpoint(path).tensors.items():
        if one.file.path not in maps:
            with one.file.path.open("r+b") as file:
                maps[one.file.path] = mmap.mmap(file.fileno(), 0)
        unit = one.stored.stored.unit
        rows[name] = np.frombuffer(maps[one.file.path], unit, one.count, one.stored.begin)
    return rows
