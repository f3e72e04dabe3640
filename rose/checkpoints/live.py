"""A checkpoint on disk that is changed where it lies, tile by tile, as live weights are."""

import mmap
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from rose.checkpoints.atomic_file import beside
from rose.checkpoints.checkpoint import Checkpoint, count_units, open_checkpoint
from rose.checkpoints.in_place import check_links
from rose.checkpoints.safetensors_file import SafetensorsFile
from rose.checkpoints.safetensors_header import StoredTensor, written_header
from rose.closing import Closing
from rose.errors import InvalidArgument, Unavailable

NEW_FILE: Final = "model.safetensors"


class LiveCheckpoint(Closing):
    """The files of a checkpoint, mapped for writing until it is closed.

    A machine that stops while a tile is written leaves a tile of neither version, which its digest
    tells; nothing else is touched.

    Args:
        checkpoint: whose files have no other names.

    Raises:
        InvalidArgument: a file cannot be written to, or is a link.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        check_links(checkpoint)
        self._path = checkpoint.path
        self._stack = ExitStack()
        self._maps: dict[SafetensorsFile, mmap.mmap] = {}
        try:
            for file in checkpoint.files:
                self._maps[file] = self._mapped(file.path)
        except OSError as error:
            self._stack.close()
            raise InvalidArgument(
                f"cannot write to {file.path}: {error.strerror or error}"
            ) from None
        self.units: Mapping[str, Any] = {
            name: self._row(one.file, one.stored) for name, one in checkpoint.tensors.items()
        }

    def flush(self) -> None:
        """Wait until the disk has what was changed.

        Raises:
            Unavailable: it does not take it.
        """
        try:
            for content in self._maps.values():
                content.flush()
        except OSError as error:
            raise Unavailable(
                f"{self._path} cannot be written: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Forget the files; views of them stay valid as long as they live."""
        self.units = {}
        self._maps.clear()
        self._stack.close()

    def _mapped(self, path: Path) -> mmap.mmap:
        file = self._stack.enter_context(path.open("r+b"))
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE)

    def _row(self, file: SafetensorsFile, tensor: StoredTensor) -> Any:
        unit, at = np.dtype(tensor.unit), file.offset(tensor, 0)
        if at % unit.itemsize:
            raise InvalidArgument(
                f"{tensor.name!r} of {file.path} is not at a border of its elements, and cannot be "
                f"changed in place; write the file anew"
            )
        return np.frombuffer(self._maps[file], unit, count_units(tensor), at)


def create_checkpoint(folder: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Path:
    """Make a checkpoint of zeros, in one file that appears whole or not at all.

    Args:
        folder: made where it is not there.
        tensors: (dtype, shape) by name, in the order in which they will lie.

    Raises:
        InvalidArgument: a dtype is unknown, or the file cannot be made.
    """
    header, data_bytes = written_header(tensors)
    path = folder / NEW_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"cannot make {folder}: {error.strerror or error}") from error
    with beside(path) as unfinished, unfinished.open("wb") as file:
        file.write(header)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, len(header) + data_bytes)
    return path


def open_live(path: Path) -> tuple[Checkpoint, LiveCheckpoint]:
    """Open a checkpoint for reading and for being changed."""
    checkpoint = open_checkpoint(path)
    return checkpoint, LiveCheckpoint(checkpoint)
