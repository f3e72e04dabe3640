"""What a trainer needs to go on after it died, in one file that is either whole or not there.

The file is the SHA-256 of the rest, which is msgpack. Nothing in it is executed when it is read.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rose.demo.rl.trainer import TrainerState
from rose.errors import CorruptData, Unavailable
from rose.whole_file import sweep, sync_folder, write_whole

FORMAT: Final = 3
_SHA_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a trainer is, apart from its weights.

    Args:
        incarnation: of the trainer that wrote this; the next one is higher.
        next_version: the lowest number that no version has or could have got from this trainer
            before its next checkpoint; the next incarnation begins there.
        learned: numbers of the trajectories that the weights have in them or that were dropped.
        dropped_stale: how many of them were dropped.
    """

    incarnation: int
    next_version: int
    learned: frozenset[int] = frozenset()
    dropped_stale: int = 0


@dataclass(frozen=True, slots=True)
class _Content:
    format: int
    progress: Progress
    steps: int
    rows: tuple[memoryview, ...]  # fp32: masters and the two moments of AdamW


def save_checkpoint(path: Path, state: TrainerState, progress: Progress) -> None:
    """Write a checkpoint that outlives a power cut; one process at a time.

    Raises:
        Unavailable: the disk does not take it. The old file is as it was; or, where only the last
            sync failed, the new one is there, and a power cut may bring the old one back.
    """
    rows = tuple(row.data.cast("B") for row in (state.masters, state.exp_avg, state.exp_avg_sq))
    content = msgspec.msgpack.encode(_Content(FORMAT, progress, state.steps, rows))
    try:
        sweep(path)  # A trainer that was killed as it wrote leaves a file of this size.
        write_whole(path, hashlib.sha256(content).digest(), content)
        sync_folder(path.parent)
    except OSError as error:
        raise Unavailable(f"the checkpoint '{path}' cannot be written: {error.strerror}") from error


def load_checkpoint(path: Path) -> tuple[TrainerState, Progress] | None:
    """Read a checkpoint, or return None if there is none yet.

    Raises:
        CorruptData: the file is not what was written.
        Unavailable: it cannot be read.
    """
    try:
        file = memoryview(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"the checkpoint '{path}' cannot be read: {error.strerror}") from error
    if hashlib.sha256(file[_SHA_BYTES:]).digest() != file[:_SHA_BYTES]:
        raise CorruptData(f"'{path}' is not a checkpoint of rose, or damaged")
    try:
        content = msgspec.msgpack.decode(file[_SHA_BYTES:], type=_Content)
    except msgspec.DecodeError as error:
        raise CorruptData(f"the checkpoint '{path}' cannot be read: {error}") from error
    if content.format != FORMAT:
        raise CorruptData(f"'{path}' has format {content.format}, this rose reads {FORMAT}")
    rows = [np.frombuffer(row, np.float32) for row in content.rows]
    return TrainerState(content.steps, *rows), content.progress
