"""How the tensors of a model lie in slabs: bins of neighbouring slabs, filled tensor by tensor.

Slabs are neighbours in the address space only when their ids are, and a tensor is one piece. So a
tensor that is larger than a slab needs a run of neighbouring ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rose.units import ceil_div

ALIGN_BYTES: Final = 256  # what a GPU's own allocator promises, which its kernels rely on


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor lies.

    Args:
        tensor: its index in the list that was packed.
        offset: of its first byte in the bin, a multiple of `ALIGN_BYTES`.
    """

    tensor: int
    offset: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Tensors that lie side by side in `slabs` neighbouring slabs."""

    slabs: int
    places: tuple[Place, ...]


def pack_bins(sizes: Sequence[int], slab_bytes: int) -> tuple[Bin, ...]:
    """Put tensors of `sizes` bytes into bins of whole slabs, the largest first.

    Small ones fill what large ones leave of their last slab. A tensor larger than a slab opens a
    bin of its own, so a bin is never longer than its largest tensor needs: short runs are easier to
    find than long ones.

    Returns:
        Bins in which each tensor has one place; bins with the most slabs first.
    """
    room: list[int] = []  # what is left of each bin
    slabs: list[int] = []
    places: list[list[Place]] = []
    for tensor in sorted(range(len(sizes)), key=lambda one: -sizes[one]):
        size = ceil_div(sizes[tensor], ALIGN_BYTES) * ALIGN_BYTES
        at = next((at for at, left in enumerate(room) if left >= size), len(room))
        if at == len(room):
            slabs.append(max(1, ceil_div(size, slab_bytes)))
            room.append(slabs[at] * slab_bytes)
            places.append([])
        places[at].append(Place(tensor, slabs[at] * slab_bytes - room[at]))
        room[at] -= size
    return tuple(Bin(count, tuple(inside)) for count, inside in zip(slabs, places, strict=True))


def find_runs(lengths: Sequence[int], slabs: Iterable[int]) -> list[range] | None:
    """Choose for each of `lengths` a run of that many neighbouring slabs out of `slabs`.

    The longest are placed first, each into the shortest run that is long enough. It always succeeds
    in one run that is as long as all together, and when all lengths are 1.

    Returns:
        Disjoint runs in the order of `lengths`; None when they are not found.
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
    """Return the longest runs of neighbours that `slabs` consist of."""
    runs: list[range] = []
    for slab in sorted(slabs):
        if runs and runs[-1].stop == slab:
            runs[-1] = range(runs[-1].start, slab + 1)
        else:
            runs.append(range(slab, slab + 1))
    return runs
