"""A checkpoint on disk that is changed in place, tile by tile."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from operator import mul
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from rose.checkpoints.checkpoint import Checkpoint, written
from rose.checkpoints.safetensors_file import LENGTH_BYTES, SafetensorsFile, Units
from rose.closing import Closing
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_apply, digest
from rose.transfer.digests import Digest
from rose.transfer.plan.tiling import Tiling
from rose.transfer.tensors import STORED_DTYPES, StoredTensor

NEW_FILE: Final = "model.safetensors"


class LiveTiles(Closing):
    """The tiles of a checkpoint: a `Target` of commits that does not map the files.

    Another process may shorten a file at any time. Past the new end, access to a mapped file would
    kill this process; a system call only fails, with `Unavailable`. If the machine stops while a
    tile is written, the tile may match neither version.

    Args:
        checkpoint: checkpoint to change. Its files must not be links; they stay open until `close`.
        tiling: tiles of the checkpoint.

    Raises:
        InvalidArgument: a file cannot be written, or is a link.
    """

    def __init__(self, checkpoint: Checkpoint, tiling: Tiling) -> None:
        self._checkpoint, self._tiling = checkpoint, tiling
        self._files: dict[SafetensorsFile, BinaryIO] = {}
        with ExitStack() as stack:
            for file in checkpoint.files:
                self._files[file] = stack.enter_context(_opened(file.path))
            self._sizes = {one: os.fstat(one.fileno()).st_size for one in self._files.values()}
            self._stack = stack.pop_all()

    def bits(self, tile: int) -> Any:
        """Return a copy of a tile.

        Raises:
            Unavailable: the file was shortened, or cannot be read.
        """
        place = self._tiling.place(tile)
        unit = self._checkpoint.tensors[place.tensor].stored.stored.unit
        row: Units = np.empty(place.region.shape, unit)
        for offset, part in self._runs(tile, row):
            at = 0
            while at < len(part):
                got = self._call(tile, os.preadv, [part[at:]], offset + at)
                if got == 0:
                    raise Unavailable(_cut(self._checkpoint.tensors[place.tensor].file.path))
                at += got
        return row

    def digest(self, tile: int) -> Digest:
        """Return the digest of a tile. Raises the errors of `bits`."""
        return digest(self.bits(tile))

    def apply(self, tile: int, delta: Delta, *, undo: bool) -> None:
        """Apply or undo a delta on a tile. Raises the errors of `bits` and `delta_apply`."""
        before = self.bits(tile)
        row = before.copy()
        delta_apply(row, delta, undo=undo)
        with ExitStack() as back:
            back.callback(self._restore, tile, before)
            self._write(tile, row)
            back.pop_all()

    def write(self, tile: int, elements: Units) -> None:
        """Overwrite a tile with a row of elements. Raises the errors of `bits`."""
        self._write(tile, elements)

    def check(self) -> None:
        """Check that no file was shortened.

        Raises:
            Unavailable: another process shortened a file.
        """
        for file, opened in self._files.items():
            if os.fstat(opened.fileno()).st_size < self._sizes[opened]:
                raise Unavailable(_cut(file.path))

    def flush(self) -> None:
        """Wait until all changes are on the disk.

        Raises:
            Unavailable: the disk refused the changes.
        """
        try:
            for opened in self._files.values():
                os.fsync(opened.fileno())
        except OSError as error:
            raise Unavailable(
                f"{self._checkpoint.path} cannot be written: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def _restore(self, tile: int, row: Units) -> None:
        with suppress(Unavailable):  # Only the first failure is raised.
            self._write(tile, row)

    def _write(self, tile: int, row: Units) -> None:
        for offset, part in self._runs(tile, row):
            at = 0
            while at < len(part):
                at += self._call(tile, os.pwritev, [part[at:]], offset + at)

    def _call(self, tile: int, call: Any, parts: list[memoryview], offset: int) -> int:
        file = self._checkpoint.tensors[self._tiling.place(tile).tensor].file
        try:
            return int(call(self._files[file].fileno(), parts, offset))
        except OSError as error:
            raise Unavailable(
                f"{file.path} cannot be read or written: {error.strerror or error}"
            ) from error

    def _runs(self, tile: int, row: Units) -> Iterator[tuple[int, memoryview]]:
        """Yield the file offset of each contiguous run of a tile, and its part of `row`.

        A run spans the last dimension in which the region is cut, and all dimensions after it.
        """
        place = self._tiling.place(tile)
        box, shape, inner = place.region, place.shape, len(place.shape)
        while inner > 0 and box.shape[inner - 1] == shape[inner - 1]:
            inner -= 1
        outer = box.shape[: max(0, inner - 1)]
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        corner = sum(map(mul, box.offset, strides))
        content = row.reshape(-1).view(np.uint8).data
        size = len(content) // math.prod(outer)
        begin = self._checkpoint.tensors[place.tensor].stored.begin
        for at, index in enumerate(np.ndindex(*outer)):
            first = corner + sum(map(mul, index, strides))
            yield begin + first * row.itemsize, content[at * size : (at + 1) * size]


def _opened(path: Path) -> BinaryIO:
    """Open a file for writing unless it is a link: model caches link to shared files."""
    try:
        if path.is_symlink() or path.stat().st_nlink > 1:
            raise InvalidArgument(
                f"{path} is a link, so a change in place would also change the files linked to it: "
                f"pass a copy"
            )
        return path.open("r+b")
    except OSError as error:
        raise InvalidArgument(f"cannot write to {path}: {error.strerror or error}") from None


def _cut(path: Path) -> str:
    return (
        f"{path} was shortened by another process: remove it and start again to fetch "
        f"all of it anew"
    )


def create_checkpoint(folder: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Path:
    """Make a checkpoint of zeros, in one file that appears whole or not at all.

    The widest elements come first, so every tensor is aligned to its elements.

    Args:
        folder: folder of the file; created if missing.
        tensors: (dtype, shape) by name. Tensors of equal element width keep the mapping's order.

    Raises:
        InvalidArgument: a dtype is unknown, or the file cannot be made.
    """
    for name, (dtype, _) in tensors.items():
        if dtype not in STORED_DTYPES:
            raise InvalidArgument(
                f"{name!r} has the unknown dtype {dtype!r}; choose a dtype of safetensors"
            )
    header: dict[str, object] = {}
    end = 0
    stored = [StoredTensor(name, dtype, shape) for name, (dtype, shape) in tensors.items()]
    for one in sorted(stored, key=lambda one: -one.stored.unit_bytes):
        offsets = [end, end := end + one.nbytes]
        header[one.name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    path = folder / NEW_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"cannot make {folder}: {error.strerror or error}") from error
    with written(path) as unfinished, unfinished.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, LENGTH_BYTES + len(text) + end)
    return path
