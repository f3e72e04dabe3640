"""Apply a delta file to the very files of a checkpoint; on failure they get their bits back."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from typing_extensions import Self

from rose.checkpoints.apply import base_of, check_tensors, rebuilt
from rose.checkpoints.checkpoint import Checkpoint, CheckpointTensor, cut
from rose.checkpoints.contents import Advance, Layout, TensorDelta, layout_of
from rose.checkpoints.delta_file import DeltaFile
from rose.checkpoints.delta_index import units_of
from rose.checkpoints.safetensors_file import SafetensorsFile, Units
from rose.errors import InvalidArgument, RoseError, Unavailable

_Tile = tuple[TensorDelta, CheckpointTensor, int, int, int]
"""A tensor, where it is, and a tile of it: its number, its first unit, its units."""


def apply_in_place(
    checkpoint: Checkpoint, delta: DeltaFile, *, undo: bool, advance: Advance
) -> None:
    """Change the files of a checkpoint; on any failure they get back the bits that they had.

    All of the checkpoint and of the delta is looked at before a byte is written, so all of it is
    read twice. A machine that stops in the middle leaves a checkpoint that is neither version.

    Raises:
        InvalidArgument: it is not the version that the delta needs, lies otherwise on the disk than
            the other one, or cannot be written to.
        CorruptData: the delta is not sound.
        Unavailable: a write failed; the sentence says whether what was written was taken back.
    """
    check_tensors(checkpoint, delta, undo=undo)
    check_links(checkpoint)
    here = layout_of(checkpoint)
    if not all(_are_alike(here, other) for other in (delta.old, delta.new)):
        raise InvalidArgument(
            f"the files of {checkpoint.path} have other headers in the other version, so they "
            f"cannot be changed in place; write it beside with -o"
        )
    for tensor, base, number, first, count in _tiles(checkpoint, delta):
        rebuilt(delta, tensor, number, base, undo=undo)
        base.forget(first, count)
        advance(count * base.stored.stored.unit_bytes)
    try:
        with _InPlace(checkpoint, delta, undo=undo) as writer:
            for tile in _tiles(checkpoint, delta):
                writer.change(tile)
                advance(tile[4] * tile[1].stored.stored.unit_bytes)
            writer.keep()
    except OSError as error:
        raise Unavailable(
            f"a write to {checkpoint.path} failed ({error.strerror or error}); it was taken back"
        ) from None


def check_links(checkpoint: Checkpoint) -> None:
    """Refuse files that have other names: caches of models link to bits that must not change."""
    for file in checkpoint.files:
        if file.path.is_symlink() or file.path.stat().st_nlink > 1:
            raise InvalidArgument(
                f"{file.path} is a link, and what it stands for would change elsewhere too; "
                f"write beside with -o"
            )


def _are_alike(one: Layout, other: Layout) -> bool:
    if one.is_folder or other.is_folder:
        return one == other
    return one.files[0].header == other.files[0].header  # whatever the files are called


def _tiles(checkpoint: Checkpoint, delta: DeltaFile) -> Iterator[_Tile]:
    for tensor in delta.tensors:
        base = base_of(checkpoint, tensor)
        if base is None:
            continue
        for number, (first, count) in enumerate(cut(units_of(tensor), delta.tile_units)):
            yield tensor, base, number, first, count


class _InPlace:
    """Writes tiles into files; a context that takes them back unless they were kept."""

    def __init__(self, checkpoint: Checkpoint, delta: DeltaFile, *, undo: bool) -> None:
        self._path: Final = checkpoint.path
        self._delta = delta
        self._undo = undo
        self._changed: list[_Tile] = []
        self._torn: tuple[_Tile, Units] | None = None
        self._is_kept = False
        self._stack = ExitStack()
        self._descriptors: dict[SafetensorsFile, int] = {}
        try:
            for file in checkpoint.files:
                out = self._stack.enter_context(file.path.open("r+b", buffering=0))
                self._descriptors[file] = out.fileno()
        except OSError as error:
            self._stack.close()
            raise InvalidArgument(
                f"cannot write to {file.path}: {error.strerror or error}; write beside with -o"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            if not self._is_kept:
                self._take_back()

    def change(self, tile: _Tile) -> None:
        """Write the other version of a tile."""
        tensor, base, number, first, count = tile
        if tensor.tiles[number].frame is None:
            return
        after = rebuilt(self._delta, tensor, number, base, undo=self._undo)
        self._torn = tile, base.units(first, count).copy()
        self._write(tile, after)
        self._changed.append(tile)
        self._torn = None
        base.forget(first, count)

    def keep(self) -> None:
        """Wait until the disk has all of it, and let it be."""
        for descriptor in self._descriptors.values():
            os.fsync(descriptor)
        self._is_kept = True

    def _take_back(self) -> None:
        """Restore the tile that was being written, then undo the others."""
        failures: list[str] = []
        if self._torn is not None:
            self._try(failures, partial(self._write, *self._torn))
        for tile in reversed(self._changed):
            if self._torn is None or tile is not self._torn[0]:
                self._try(failures, partial(self._restore, tile))
        if failures:
            raise Unavailable(
                f"a write to {self._path} failed, and so did taking back what was written "
                f"({failures[0]}): it is neither version now"
            )

    def _try(self, failures: list[str], restore: Callable[[], None]) -> None:
        """Restore a tile; where that fails, the others are restored all the same."""
        try:
            restore()
        except OSError as error:
            failures.append(error.strerror or str(error))
        except RoseError as error:  # the delta file cannot be read any more, or the tile changed
            failures.append(str(error))

    def _restore(self, tile: _Tile) -> None:
        tensor, base, number, *_ = tile
        self._write(tile, rebuilt(self._delta, tensor, number, base, undo=not self._undo))

    def _write(self, tile: _Tile, units: Units) -> None:
        _, base, _, first, _ = tile
        content = units.view("u1").data
        at = base.file.offset(base.stored, first)
        while content:
            written = os.pwrite(self._descriptors[base.file], content, at)
            content, at = content[written:], at + written
