"""What changed between two checkpoints, as a file: `docs/protocol.md`, "Deltas of checkpoints"."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np

from rose.checkpoints.checkpoint import Checkpoint, CheckpointTensor, count_units, cut
from rose.checkpoints.safetensors_file import Units
from rose.checkpoints.safetensors_header import StoredTensor
from rose.transfer.digests import Digest

FORMAT: Final = 1

Advance: TypeAlias = Callable[[int], None]
"""Is told how many bytes of tensors were looked at since the last call."""

Key: TypeAlias = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape: tensors that differ in one of them are different tensors."""


class Presence(Enum):
    """Which versions have a tensor; one that is not there counts as zeros."""

    BOTH = "both"
    OLD = "old"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a delta file.

    Args:
        offset: from the start of the body.
        nbytes: of it.
        sha256: of it, in hexadecimal.
    """

    offset: int
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TensorTile:
    """A tile of a tensor, before and after.

    Args:
        old: digest of the old bits, with index and seed 0.
        new: digest of the new bits.
        frame: of its delta; None if nothing changes.
    """

    old: Digest
    new: Digest
    frame: Piece | None

    def before(self, *, undo: bool) -> Digest:
        """Return the digest that it must have."""
        return self.new if undo else self.old

    def after(self, *, undo: bool) -> Digest:
        """Return the digest that it gets."""
        return self.old if undo else self.new


@dataclass(frozen=True, slots=True)
class TensorDelta:
    """One tensor.

    Args:
        name: of it, with `dtype` and `shape` as in the safetensors file.
        dtype: a key of `STORED_DTYPES`.
        shape: of its elements.
        presence: where it is.
        tiles: all of it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    presence: Presence
    tiles: tuple[TensorTile, ...]

    @property
    def key(self) -> Key:
        """Return what makes it this tensor."""
        return self.name, self.dtype, self.shape


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A safetensors file of one version.

    Args:
        name: in its folder.
        header: the bytes of its JSON.
        tensors: what that says.
    """

    name: str
    header: bytes
    tensors: tuple[StoredTensor, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one version lies on the disk; with the tensors it makes the files again, byte for byte.

    Args:
        is_folder: whether it is a folder of files.
        files: in the order of their names.
        index: (name, bytes) of the index beside them; None where there is none.
    """

    is_folder: bool
    files: tuple[FileLayout, ...]
    index: tuple[str, bytes] | None

    def stored(self) -> Iterator[StoredTensor]:
        """Go through its tensors in the order of files and bytes."""
        for file in self.files:
            yield from file.tensors

    @property
    def nbytes(self) -> int:
        """Return the bytes of its tensors."""
        return sum(stored.nbytes for stored in self.stored())


def layout_of(checkpoint: Checkpoint) -> Layout:
    """Return how a checkpoint lies on the disk."""
    files = (FileLayout(file.path.name, file.header, file.tensors) for file in checkpoint.files)
    return Layout(checkpoint.is_folder, tuple(files), checkpoint.index)


def key_of(stored: StoredTensor) -> Key:
    """Return what makes a tensor this one."""
    return stored.name, stored.dtype, stored.shape


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor in two checkpoints.

    Args:
        stored: the tensor where it is, in the new one rather than in the old one.
        old: it in the old checkpoint; None if it is not there.
        new: it in the new one; None if it is not there.
    """

    stored: StoredTensor
    old: CheckpointTensor | None
    new: CheckpointTensor | None

    @property
    def presence(self) -> Presence:
        """Return where it is."""
        if self.old is None:
            return Presence.NEW
        return Presence.OLD if self.new is None else Presence.BOTH

    def tiles(self, tile_units: int) -> Iterator[tuple[Units, Units]]:
        """Yield (old, new) of each tile, read-only; their memory goes when the next is asked for.

        Args:
            tile_units: of each but the last.
        """
        for first, count in cut(count_units(self.stored), tile_units):
            yield self._units(self.old, first, count), self._units(self.new, first, count)
            for one in (self.old, self.new):
                if one is not None:
                    one.forget(first, count)

    def _units(self, one: CheckpointTensor | None, first: int, count: int) -> Units:
        return np.zeros(count, self.stored.unit) if one is None else one.units(first, count)


def pairs(before: Checkpoint, after: Checkpoint) -> list[Pair]:
    """Return the tensors of both: those of `after` in its order, then what only `before` has."""
    of_old, of_new = _by_key(before), _by_key(after)
    found = [Pair(new.stored, of_old.get(key), new) for key, new in of_new.items()]
    gone = (old for key, old in of_old.items() if key not in of_new)
    return [*found, *(Pair(old.stored, old, None) for old in gone)]


def _by_key(checkpoint: Checkpoint) -> Mapping[Key, CheckpointTensor]:
    return {key_of(tensor.stored): tensor for tensor in checkpoint.tensors.values()}
