"""Which version of a delta file a checkpoint is, told by the digests of its tiles."""

from dataclasses import dataclass
from enum import Enum

from rose.checkpoints.apply import base_of, wrong_tensor
from rose.checkpoints.checkpoint import THREADS, Checkpoint, CheckpointTensor, cut
from rose.checkpoints.contents import Advance, Presence, TensorDelta
from rose.checkpoints.delta_file import DeltaFile
from rose.checkpoints.delta_index import units_of
from rose.transfer.codec.operations import digest


class Standing(Enum):
    """What a checkpoint is to a delta."""

    BASE = "the base"
    TARGET = "the target"
    BOTH = "the base and the target, which are equal"
    NEITHER = "neither the base nor the target"


@dataclass(frozen=True, slots=True)
class Identity:
    """What was found.

    Args:
        standing: the answer.
        not_base: why it is not the base; None if it is.
        not_target: why it is not the target; None if it is.
        base_tiles: tiles that change, and are those of the base.
        target_tiles: tiles that change, and are those of the target.
        other_tiles: tiles that are of no version.
    """

    standing: Standing
    not_base: str | None
    not_target: str | None
    base_tiles: int
    target_tiles: int
    other_tiles: int


def identify(checkpoint: Checkpoint, delta: DeltaFile, *, advance: Advance) -> Identity:
    """Compare every tile of a checkpoint with both versions.

    Raises:
        CorruptData: the delta is not sound; all of its frames are read too.
    """
    delta.check_frames()
    not_base = wrong_tensor(checkpoint, delta, undo=False)
    not_target = wrong_tensor(checkpoint, delta, undo=True)
    counts = [0, 0, 0]
    for tensor in delta.tensors:
        base = base_of(checkpoint, tensor)
        if base is None:
            continue
        is_old, is_new = _compare(tensor, base, delta.tile_units, counts, advance)
        if not is_old and tensor.presence is not Presence.NEW:
            not_base = not_base or f"{tensor.name!r} differs"
        if not is_new and tensor.presence is not Presence.OLD:
            not_target = not_target or f"{tensor.name!r} differs"
    standing = {
        (True, True): Standing.BOTH,
        (True, False): Standing.BASE,
        (False, True): Standing.TARGET,
        (False, False): Standing.NEITHER,
    }[not_base is None, not_target is None]
    return Identity(standing, not_base, not_target, *counts)


def _compare(
    tensor: TensorDelta,
    base: CheckpointTensor,
    tile_units: int,
    counts: list[int],
    advance: Advance,
) -> tuple[bool, bool]:
    """Say whether a tensor is the old one, and whether it is the new one; count its tiles."""
    is_old = is_new = True
    for tile, (first, count) in zip(tensor.tiles, cut(units_of(tensor), tile_units), strict=True):
        found = digest(base.units(first, count), threads=THREADS)
        base.forget(first, count)
        advance(count * base.stored.stored.unit_bytes)
        is_old &= found == tile.old
        is_new &= found == tile.new
        if found not in {tile.old, tile.new}:
            counts[2] += 1
        elif tile.frame is not None:
            counts[int(found == tile.new)] += 1
    return is_old, is_new
