"""What a trainer needs to go on after it died, in one file that is either whole or not there.

The file: a magic word, the length of a JSON header as 8 bytes, the header, then three rows of fp32
(masters and the two moments of AdamW). The header holds the SHA-256 of the rows; its own is in the
32 bytes after it. Nothing in the file is executed when it is read.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np

from rose.demo.rl.trainer import TrainerState
from rose.errors import CorruptData, InvalidArgument, Unavailable
from rose.whole_file import sweep, sync_folder, write_whole

FORMAT: Final = 1
_MAGIC: Final = b"rose-rl\n"
_HEADER_MAX: Final = 64 << 20
_LENGTH: Final = struct.Struct("<Q")
_SHA_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a trainer is, apart from its weights.

    Args:
        run: names the training run.
        incarnation: of the trainer that wrote this; the next one is higher.
        next_version: the lowest number that no version has or could have got from this trainer
            before its next checkpoint; the next incarnation begins there.
        learned: numbers of the trajectories that the weights have in them or that were dropped, as
            ranges (first, last), ascending.
        dropped_stale: how many of them were dropped.
    """

    run: str
    incarnation: int
    next_version: int
    learned: tuple[tuple[int, int], ...] = ()
    dropped_stale: int = 0


@dataclass(frozen=True, slots=True)
class _Header:
    format: int
    progress: Progress
    steps: int
    count: int
    sha256: str


def save_checkpoint(path: Path, state: TrainerState, progress: Progress) -> None:
    """Write a checkpoint that outlives a power cut; one process at a time.

    Raises:
        Unavailable: the disk does not take it. The old file is as it was; or, where only the last
            sync failed, the new one is there, and a power cut may bring the old one back.
    """
    rows = (state.masters, state.exp_avg, state.exp_avg_sq)
    sha = hashlib.sha256()
    for row in rows:
        sha.update(row.data)
    header = msgspec.json.encode(
        _Header(FORMAT, progress, state.steps, state.masters.size, sha.hexdigest())
    )
    start = _MAGIC + _LENGTH.pack(len(header)) + header + hashlib.sha256(header).digest()
    try:
        sweep(path)  # A trainer that was killed as it wrote leaves a file of this size.
        write_whole(path, start, *(row.data for row in rows))
        sync_folder(path.parent)
    except OSError as error:
        raise Unavailable(f"the checkpoint '{path}' cannot be written: {error.strerror}") from error


def load_checkpoint(path: Path, *, count: int) -> tuple[TrainerState, Progress] | None:
    """Read a checkpoint, or return None if there is none yet.

    Args:
        path: of the file.
        count: of the model's weights.

    Raises:
        CorruptData: the file is not what was written.
        InvalidArgument: it is of another model.
        Unavailable: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            header = _read_header(file, path)
            if header.count != count:
                raise InvalidArgument(
                    f"the checkpoint '{path}' has {header.count} weights, the model {count}: "
                    "give the model it was written for"
                )
            rows = np.fromfile(file, np.float32, 3 * count)
            has_more = bool(file.read(1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"the checkpoint '{path}' cannot be read: {error.strerror}") from error
    if rows.size != 3 * count or has_more:
        raise CorruptData(f"the checkpoint '{path}' is damaged: its length is wrong")
    if hashlib.sha256(rows.data).hexdigest() != header.sha256:
        raise CorruptData(f"the checkpoint '{path}' is damaged: its weights were changed")
    masters, exp_avg, exp_avg_sq = np.split(rows, 3)
    return TrainerState(header.steps, masters, exp_avg, exp_avg_sq), header.progress


def to_ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return numbers as ranges (first, last): trajectories are nearly all of those up to one."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def from_ranges(ranges: Iterable[tuple[int, int]]) -> set[int]:
    """Return the numbers in ranges."""
    return {number for first, last in ranges for number in range(first, last + 1)}


def _read_header(file: BinaryIO, path: Path) -> _Header:
    start = file.read(len(_MAGIC) + _LENGTH.size)
    if len(start) < len(_MAGIC) + _LENGTH.size or not start.startswith(_MAGIC):
        raise CorruptData(f"'{path}' is not a checkpoint of rose")
    (length,) = _LENGTH.unpack(start[len(_MAGIC) :])
    if length > _HEADER_MAX:
        raise CorruptData(f"the checkpoint '{path}' is damaged: its header is too long")
    text = file.read(length)
    if hashlib.sha256(text).digest() != file.read(_SHA_BYTES):
        raise CorruptData(f"the checkpoint '{path}' is damaged: its header was changed")
    try:
        header = msgspec.json.decode(text, type=_Header)
    except msgspec.DecodeError as error:
        raise CorruptData(f"the header of '{path}' cannot be read: {error}") from error
    if header.format != FORMAT:
        raise CorruptData(f"'{path}' has format {header.format}, this rose reads {FORMAT}")
    return header
