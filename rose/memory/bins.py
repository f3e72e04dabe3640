"""Packing of a model's tensors into bins; a bin is a run of slabs with consecutive ids.

A tensor is contiguous, and slabs are adjacent in the address space only if their ids are
consecutive. So a tensor larger than a slab needs a run of slabs.
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
        tensor: index of the tensor in the list that was packed.
        offset: offset in bytes of the tensor in its bin, a multiple of `ALIGN_BYTES`.
    """

    tensor: int
    offset: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Tensors side by side in a run of `slabs` slabs."""

    slabs: int
    places: tuple[TensorPlace, ...]


def pack_bins(sizes: Sequence[int], slab_bytes: int) -> tuple[Bin, ...]:
    """Put tensors of `sizes` bytes into bins of whole slabs, the largest tensor first.

    A tensor larger than a slab opens its own bin, and small tensors fill the rest of that bin's
    last slab. So no bin has more slabs than its largest tensor needs: short runs are easier to
    find.

    Returns:
        Bins that hold every tensor once, the bins with the most slabs first.
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
    """Choose a run of consecutive slabs for each of `lengths`.

    Longer runs are placed first, each in the shortest free run that is long enough. This always
    succeeds if `slabs` is one run of the total length, or if all lengths are 1 and there are enough
    slabs.

    Args:
        lengths: number of slabs of each run.
        slabs: ids of the slabs to choose from.

    Returns:
        Disjoint runs of slab ids in the order of `lengths`; None if some do not fit.
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
    """Return the maximal runs of consecutive slab ids."""
    runs: list[range] = []
    for slab in sorted(slabs):
        if runs and runs[-1].stop == slab:
            runs[-1] = range(runs[-1].start, slab + 1)
        else:
            runs.append(range(slab, slab + 1))
    return runs
