"""A checkpoint: one safetensors file, or a folder of such files with or without an index."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from rose import whole_file
from rose.checkpoints.safetensors_file import SafetensorsFile, Units
from rose.errors import CorruptData, InvalidArgument
from rose.transfer.plan.plan import Plan
from rose.transfer.plan.tiling import TilePlace, Tiling, plain_tiling, planned_tiling
from rose.transfer.tensors import StoredTensor

ENDING: Final = ".safetensors"
THREADS: Final = 2
"""Threads that pack or digest a tile; with more, reading the files is the bottleneck."""
OTHER_BYTES_MAX: Final = 64 << 20
"""Largest size of an index or configuration file, in bytes.

A larger index is refused, and other larger files are not copied with a checkpoint.
"""
_INDEX: Final = "*.safetensors.index.json"

Advance: TypeAlias = Callable[[int], None]
"""Callback that takes the number of tensor bytes read since its last call."""


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """A tensor, and the file that contains it."""

    file: SafetensorsFile
    stored: StoredTensor

    @property
    def count(self) -> int:
        """Return the size of the tensor in units, see `StoredDtype.unit`."""
        return self.stored.count

    def units(self, first: int, count: int) -> Units:
        """Return units `first` to `first + count`, read-only."""
        return self.file.units(self.stored, first, count)

    def forget(self, first: int, count: int) -> None:
        """Release the memory of these units."""
        self.file.forget(self.stored, first, count)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk, open for reading.

    Args:
        path: path of the file or of the folder.
        files: all files of the checkpoint, sorted by name.
        tensors: tensors by name, ordered by file and offset.
    """

    path: Path
    files: tuple[SafetensorsFile, ...]
    tensors: Mapping[str, CheckpointTensor]

    @property
    def is_folder(self) -> bool:
        """True if the checkpoint was opened as a folder."""
        return len(self.files) != 1 or self.files[0].path != self.path

    @property
    def nbytes(self) -> int:
        """Return the size of all tensors, in bytes."""
        return sum(tensor.stored.nbytes for tensor in self.tensors.values())

    def tiling(self, plan: Plan | None = None) -> Tiling:
        """Return the tiling of a plan, or without a plan the plain tiling."""
        stored = [one.stored for one in self.tensors.values()]
        return plain_tiling(stored) if plan is None else planned_tiling(plan, stored)


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a safetensors file, or a folder of them.

    In a folder with an index, only the files that the index names are opened.

    Raises:
        InvalidArgument: the path does not exist, or cannot be read.
        CorruptData: a file is damaged, or two files hold a tensor of the same name.
    """
    try:
        if not path.exists():
            raise InvalidArgument(
                f"{path} does not exist; name a safetensors file or a folder of them"
            )
        index, weight_map = _read_index(path)
        paths = [path]
        if weight_map:
            paths = [path / name for name in sorted(set(weight_map.values()))]
        elif path.is_dir():
            paths = sorted(one for one in path.glob(f"*{ENDING}") if one.is_file())
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from None
    if not paths:
        raise InvalidArgument(f"{path} has no file whose name ends in {ENDING}")
    files = tuple(SafetensorsFile(one) for one in paths)
    tensors: dict[str, CheckpointTensor] = {}
    for file in files:
        for stored in file.tensors:
            if stored.name in tensors:
                other = tensors[stored.name].file.path.name
                raise CorruptData(f"{stored.name!r} is in both {other} and {file.path.name}")
            tensors[stored.name] = CheckpointTensor(file, stored)
    for name, where in weight_map.items():
        if name not in tensors or tensors[name].file.path.name != where:
            raise CorruptData(f"{index} places {name!r} in {where}, which does not contain it")
    return Checkpoint(path, files, tensors)


def tiles_of(tiling: Tiling, *checkpoints: Checkpoint) -> Iterator[tuple[TilePlace, list[Units]]]:
    """Yield each tile's place, and its units in each checkpoint.

    Works only for a plain tiling. The units are read-only; their memory is released when the next
    tile is requested.
    """
    for tile in range(len(tiling.tiles)):
        place = tiling.place(tile)
        (first,), (count,) = place.region.offset, place.region.shape
        tensors = [one.tensors[place.tensor] for one in checkpoints]
        yield place, [one.units(first, count) for one in tensors]
        for one in tensors:
            one.forget(first, count)


@contextmanager
def written(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds.

    Raises:
        InvalidArgument: the file cannot be written; nothing is left behind.
    """
    try:
        with whole_file.beside(path, is_folder=is_folder) as place:
            yield place
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {path}: {error.strerror or error}; name a path that can be written"
        ) from None


def _read_index(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Return the index of a folder, if any, and the file name of each tensor."""
    found = sorted(folder.glob(_INDEX))
    if not found:
        return None, {}
    index = found[0]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InvalidArgument(
            f"{folder} has several indexes ({names}): keep one of them in the folder, or name a "
            "single safetensors file"
        )
    if index.stat().st_size > OTHER_BYTES_MAX:
        raise CorruptData(f"{index} has more than {OTHER_BYTES_MAX} bytes, too many for an index")
    try:
        content: Any = json.loads(index.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{index} is not JSON: {error}") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptData(f"{index} has no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or file in {"", ".", ".."}:
            raise CorruptData(
                f"{index} places {name!r} in {file!r}, which does not name a file of the folder"
            )
    return index, weight_map
