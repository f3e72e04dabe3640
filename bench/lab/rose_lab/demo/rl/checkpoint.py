"""The trainer's checkpoint, one file that is written atomically.

The file is a SHA-256 followed by msgpack. Reading it executes nothing.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rose.errors import CorruptData, Unavailable
from rose.whole_file import sweep, sync_folder, write_whole
from rose_lab.demo.rl.trainer import TrainerState

FORMAT: Final = 3
_SHA_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """A trainer's progress, apart from its weights.

    Args:
        incarnation: number of the trainer process that wrote the checkpoint.
        next_version: lowest version number that needs another checkpoint before its use; the next
            incarnation starts with this number.
        learned: numbers of all learned or dropped trajectories.
        dropped_stale: number of these trajectories that were dropped as too old.
    """

    incarnation: int
    next_version: int
    learned: frozenset[int] = frozenset()
    dropped_stale: int = 0


@dataclass(frozen=True, slots=True)
class _Content:
    format: int
    progress: TrainingProgress
    steps: int
    rows: tuple[memoryview, ...]  # fp32: masters and the two moments of AdamW


def save_checkpoint(path: Path, state: TrainerState, progress: TrainingProgress) -> None:
    """Write a checkpoint that survives a power cut. Only one process may write at a time.

    Raises:
        Unavailable: the write failed, and the old file is unchanged. If only the last sync failed,
            the new file is in place, but a power cut may restore the old file.
    """
    rows = tuple(row.data.cast("B") for row in (state.masters, state.exp_avg, state.exp_avg_sq))
    content = msgspec.msgpack.encode(_Content(FORMAT, progress, state.steps, rows))
    try:
        sweep(path)  # Removes the temporary file of a trainer that was killed while writing.
        write_whole(path, hashlib.sha256(content).digest(), content)
        sync_folder(path.parent)
    except OSError as error:
        raise Unavailable(f"the checkpoint '{path}' cannot be written: {error.strerror}") from error


def load_checkpoint(path: Path) -> tuple[TrainerState, TrainingProgress] | None:
    """Read a checkpoint; None if the file does not exist.

    Raises:
        CorruptData: the file is damaged or has another format.
        Unavailable: the file cannot be read.
    """
    try:
        file = memoryview(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"the checkpoint '{path}' cannot be read: {error.strerror}") from error
    if hashlib.sha256(file[_SHA_BYTES:]).digest() != file[:_SHA_BYTES]:
        raise CorruptData(f"'{path}' is not a checkpoint of rose, or it is damaged")
    try:
        content = msgspec.msgpack.decode(file[_SHA_BYTES:], type=_Content)
    except msgspec.DecodeError as error:
        raise CorruptData(f"the checkpoint '{path}' cannot be read: {error}") from error
    if content.format != FORMAT:
        raise CorruptData(f"'{path}' has format {content.format}, this rose reads {FORMAT}")
    rows = [np.frombuffer(row, np.float32) for row in content.rows]
    return TrainerState(content.steps, *rows), content.progress
