"""Packing of a model's tensors into slabs: bins of neighbouring slabs, filled tensor by tensor.

A tensor is contiguous, and slabs are adjacent in the address space only if their ids are. So a
tensor larger than a slab needs a run of neighbouring ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rose.units import ceil_div

ALIGN_BYTES: Final = 256  # alignment of CUDA's allocator, which kernels rely on


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Position of one tensor.

    Args:
        tensor: index in the packed list.
        offset: offset of its first byte in the bin, a multiple of `ALIGN_BYTES`.
    """

    tensor: int
    offset: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Tensors side by side in `slabs` neighbouring slabs."""

    slabs: int
    places: tuple[TensorPlace, ...]


def pack_bins(sizes: Sequence[int], slab_bytes: int) -> tuple[Bin, ...]:
    """Put tensors of `sizes` bytes into bins of whole slabs, the largest first.

    Small tensors fill the last slab of large ones. A tensor larger than a slab opens its own bin,
    so a bin is never longer than its largest tensor: short runs are easier to find.

    Returns:
        Bins with one place for each tensor; those with the most slabs first.
    """
    room: list[int] = []  # free bytes of each bin
    slabs: list[int] = []
    places: list[list[TensorPlace]] = []
    for tensor in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        size = ceil_div(sizes[tensor], ALIGN_BYTES) * ALIGN_BYTES
        at = next((at for at, left in enumerate(room) if left >= size), len(room))
        if at == len(room):
            slabs.append(max(1, ceil_div(size, slab_bytes)))
            room.append(slabs[at] * slab_bytes)
            places.append([])
        places[at].append(TensorPlace(tensor, slabs[at] * slab_bytes - room[at]))
        room[at] -= size
    return tuple(Bin(count, tuple(inside)) for count, inside in zip(slabs, places, strict=True))


def find_runs(lengths: Sequence[int], slabs: Iterable[int]) -> list[range] | None:
    """Choose for each of `lengths` a run of that many neighbouring slabs of `slabs`.

    The longest is placed first, each in the shortest free run that fits. It always succeeds if the
    slabs form one run of the total length, or if all lengths are 1.
    in one run that is as long as all together, and when all lengths are 1.

    Returns:
        Disjoint runs in the order of `lengths`; None if some do not fit.
    """
    free = _runs_of(slabs)
    found: dict[int, range] = {}
    for at in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        fitting = [run for run in free if len(run) >= lengths[at]]
        if not fitting:
            return None
        run = min(fitting, key=len)
        free.remove(run)
        found[at] = run[: lengths[at]]
        if len(run) > lengths[at]:
            free.append(run[lengths[at] :])
    return [found[at] for at in range(len(lengths))]


def _runs_of(slabs: Iterable[int]) -> list[range]:
    """Return the maximal runs of neighbouring slabs."""
    runs: list[range] = []
    for slab in sorted(slabs):
        if runs and runs[-1].stop == slab:
            runs[-1] = range(runs[-1].start, slab + 1)
        else:
            runs.append(range(slab, slab + 1))
    return runs
