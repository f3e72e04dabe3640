"""A checkpoint on disk that is changed where it lies, tile by tile, as live weights are."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from rose.checkpoints.atomic_file import beside
from rose.checkpoints.checkpoint import Checkpoint
from rose.checkpoints.in_place import check_links
from rose.checkpoints.safetensors_file import SafetensorsFile
from rose.checkpoints.safetensors_header import written_header
from rose.closing import Closing
from rose.errors import InvalidArgument, Unavailable

NEW_FILE: Final = "model.safetensors"


class LiveCheckpoint(Closing):
    """The files of a checkpoint, open for reading and writing until it is closed.

    A machine that stops while a tile is written leaves a tile of neither version, which its digest
    tells; nothing else is touched.

    Args:
        checkpoint: whose files have no other names.

    Raises:
        InvalidArgument: a file cannot be written to, is a link, or has a tensor that is not at a
            border of its elements.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        check_links(checkpoint)
        self._path = checkpoint.path
        self._tensors = checkpoint.tensors
        self._stack = ExitStack()
        self._files: dict[SafetensorsFile, BinaryIO] = {}
        try:
            for file in checkpoint.files:
                self._files[file] = self._stack.enter_context(file.path.open("r+b"))
            self._sizes = {one: os.fstat(one.fileno()).st_size for one in self._files.values()}
        except OSError as error:
            self._stack.close()
            raise InvalidArgument(
                f"cannot write to {file.path}: {error.strerror or error}"
            ) from None
        for name in self._tensors:
            if self.offset(name) % self.unit(name).itemsize:
                self._stack.close()
                raise InvalidArgument(
                    f"{name!r} of {self.path(name)} is not at a border of its elements, and cannot "
                    f"be changed in place; write the file anew"
                )

    def unit(self, tensor: str) -> Any:
        """Return what the codec takes the elements of a tensor for."""
        return np.dtype(self._tensors[tensor].stored.unit)

    def path(self, tensor: str) -> Path:
        """Return the file that a tensor is in."""
        return self._tensors[tensor].file.path

    def fileno(self, tensor: str) -> int:
        """Return the descriptor of the file that a tensor is in."""
        return self._files[self._tensors[tensor].file].fileno()

    def offset(self, tensor: str) -> int:
        """Return where in its file a tensor begins."""
        one = self._tensors[tensor]
        return one.file.offset(one.stored, 0)

    def cut(self, tensor: str) -> str:
        """Return the sentence that says that a tensor's file was cut."""
        return _cut(self.path(tensor))

    def check(self) -> None:
        """Look whether the files are as long as they were.

        Raises:
            Unavailable: another process cut one.
        """
        for file, opened in self._files.items():
            if os.fstat(opened.fileno()).st_size < self._sizes[opened]:
                raise Unavailable(_cut(file.path))

    def flush(self) -> None:
        """Wait until the disk has what was changed.

        Raises:
            Unavailable: it does not take it.
        """
        try:
            for opened in self._files.values():
                os.fsync(opened.fileno())
        except OSError as error:
            raise Unavailable(
                f"{self._path} cannot be written: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Close the files."""
        self._files.clear()
        self._stack.close()


def _cut(path: Path) -> str:
    return (
        f"{path} was cut by another process: remove it and start again, "
        f"and all of it is fetched anew"
    )


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
