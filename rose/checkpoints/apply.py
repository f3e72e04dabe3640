"""Apply a delta file to a checkpoint, or take it back: the other version is written beside it."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rose.checkpoints.atomic_file import beside
from rose.checkpoints.checkpoint import THREADS, Checkpoint, CheckpointTensor, cut
from rose.checkpoints.contents import Advance, FileLayout, Layout, TensorDelta, key_of
from rose.checkpoints.delta_file import DeltaFile
from rose.checkpoints.delta_index import units_of
from rose.checkpoints.safetensors_file import Units, is_safetensors
from rose.checkpoints.safetensors_header import LENGTH_BYTES
from rose.checkpoints.stored_dtypes import STORED_DTYPES
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.codec.operations import delta_apply, digest

COPIED_BYTES_MAX: Final = 64 << 20
"""A file beside the tensors that is larger is hardly a configuration."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Files of the base that are no tensors and no index: a delta knows nothing of them.

    Args:
        copied: their names.
        left: names of those that are too large to be configuration, of folders, and of tensors
            that no index names.
    """

    copied: tuple[str, ...]
    left: tuple[str, ...]


def apply_beside(
    base: Checkpoint, delta: DeltaFile, path: Path, *, undo: bool, advance: Advance
) -> Beside:
    """Write the other version at `path`, where nothing may be: whole, or not at all.

    Its safetensors files and its index are byte for byte those that the delta was made from.

    Raises:
        InvalidArgument: `base` is not the version that the delta needs; or there is something at
            `path`, or it cannot be written.
        CorruptData: the delta is not sound.
    """
    if path.exists() or path.is_symlink():
        raise InvalidArgument(f"{path} exists; name a place where there is nothing")
    check_tensors(base, delta, undo=undo)
    layout = delta.after(undo=undo)
    rebuilder = _Rebuilder(base, delta, undo=undo, advance=advance)
    with beside(path, is_folder=layout.is_folder) as partial:
        rebuilder.check_leaving(layout)
        if not layout.is_folder:
            rebuilder.write_file(layout.files[0], partial)
            return Beside((), ())
        for file in layout.files:
            rebuilder.write_file(file, partial / file.name)
        if layout.index is not None:
            (partial / layout.index[0]).write_bytes(layout.index[1])
        return _copy_others(base, partial)


def check_tensors(checkpoint: Checkpoint, delta: DeltaFile, *, undo: bool) -> None:
    """Look whether a checkpoint has the tensors that the delta needs, whatever their bits.

    Raises:
        InvalidArgument: it has others.
    """
    fault = wrong_tensor(checkpoint, delta, undo=undo)
    if fault is not None:
        raise InvalidArgument(
            f"{checkpoint.path} is not the checkpoint that {delta.path} "
            f"{'leads to' if undo else 'was made from'}: {fault}"
        )


def wrong_tensor(checkpoint: Checkpoint, delta: DeltaFile, *, undo: bool) -> str | None:
    """Say how the tensors of a checkpoint differ from those of a version; None if they do not."""
    wanted = {key_of(stored) for stored in delta.before(undo=undo).stored()}
    there = {key_of(tensor.stored) for tensor in checkpoint.tensors.values()}
    for keys, what in ((wanted - there, "it lacks"), (there - wanted, "it should not have")):
        if keys:
            name, dtype, shape = min(keys)
            return f"{what} {name!r} of {dtype} {list(shape)}"
    return None


class _Rebuilder:
    """Makes tiles of the other version."""

    def __init__(self, base: Checkpoint, delta: DeltaFile, *, undo: bool, advance: Advance) -> None:
        self._base = base
        self._delta = delta
        self._undo = undo
        self._advance = advance
        self._tensors = {tensor.key: tensor for tensor in delta.tensors}

    def write_file(self, file: FileLayout, path: Path) -> None:
        """Write a file of the other version."""
        with path.open("wb") as out:
            out.write(len(file.header).to_bytes(LENGTH_BYTES, "little"))
            out.write(file.header)
            for stored in file.tensors:
                for units in self._tiles(self._tensors[key_of(stored)]):
                    out.write(units.data)

    def check_leaving(self, layout: Layout) -> None:
        """Read what the delta says of tensors that the other version, `layout`, does not have.

        Nothing of it is written, but a delta that is damaged anywhere is not applied.
        """
        staying = {key_of(stored) for stored in layout.stored()}
        for key in self._tensors.keys() - staying:
            for _ in self._tiles(self._tensors[key]):
                pass

    def _tiles(self, tensor: TensorDelta) -> Iterator[Units]:
        base = base_of(self._base, tensor)
        for number, (first, count) in enumerate(cut(units_of(tensor), self._delta.tile_units)):
            yield rebuilt(self._delta, tensor, number, base, undo=self._undo)
            if base is not None:
                base.forget(first, count)
                self._advance(count * base.stored.stored.unit_bytes)


def base_of(checkpoint: Checkpoint, tensor: TensorDelta) -> CheckpointTensor | None:
    """Return the tensor in a checkpoint; None if that has no such tensor."""
    found = checkpoint.tensors.get(tensor.name)
    return found if found is not None and key_of(found.stored) == tensor.key else None


def rebuilt(
    delta: DeltaFile, tensor: TensorDelta, number: int, base: CheckpointTensor | None, *, undo: bool
) -> Units:
    """Return one tile of the other version, a copy.

    Raises:
        InvalidArgument: the base is not what the delta needs.
        CorruptData: the delta is not sound.
    """
    first = number * delta.tile_units
    count = min(delta.tile_units, units_of(tensor) - first)
    unit = np.dtype(STORED_DTYPES[tensor.dtype].unit)
    units = np.zeros(count, unit) if base is None else base.units(first, count).copy()
    tile = tensor.tiles[number]
    if digest(units, threads=THREADS) != tile.before(undo=undo):
        where = "zeros" if base is None else str(base.file.path)
        raise InvalidArgument(
            f"{tensor.name!r} of {where} is not what {delta.path} "
            f"{'leads to' if undo else 'was made from'}; rose delta verify says what it is"
        )
    frame = delta.frame(tensor, number)
    if frame is not None:
        delta_apply(units, frame, undo=undo)
        if digest(units, threads=THREADS) != tile.after(undo=undo):
            raise CorruptData(
                f"{delta.path} cannot be used: {tensor.name!r}, tile {number}, does not become "
                f"what it says"
            )
    return units


def _copy_others(base: Checkpoint, folder: Path) -> Beside:
    """Copy what makes a folder of tensors a model: configuration, tokenizer."""
    copied, left = [], []
    of_base = {file.path.name for file in base.files}
    if base.index is not None:
        of_base.add(base.index[0])
    others = sorted(base.path.iterdir()) if base.is_folder else []
    for one in others:
        if one.name in of_base or (folder / one.name).exists():
            continue  # a file of the other version keeps its name, whatever the base calls so
        is_small = one.is_file() and one.stat().st_size <= COPIED_BYTES_MAX
        if is_small and not is_safetensors(one):
            shutil.copyfile(one, folder / one.name)
            copied.append(one.name)
        else:
            left.append(one.name)
    return Beside(tuple(copied), tuple(left))
