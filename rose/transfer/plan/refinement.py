"""The common refinement of boxes: a tensor as cells that no region cuts.

All cuts are guillotine cuts: each divides one box by a plane along a face of a region, namely by
the plane that divides the fewest regions. So a shard of a flattened tensor (the end of a row, whole
rows, the start of a row) stays three boxes; a grid of all faces would have hundreds.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import TypeAlias

from rose.errors import check
from rose.transfer.plan.spec import Region
from rose.units import ceil_div

_Box: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # first indices, ends


@dataclass(frozen=True, slots=True)
class Cell:
    """A box that each region contains whole or not at all.

    Args:
        region: the box.
        held_by: indices of the regions that contain it, ascending.
    """

    region: Region
    held_by: tuple[int, ...]


def cells(shape: tuple[int, ...], regions: tuple[Region, ...]) -> tuple[Cell, ...]:
    """Divide a tensor into cells, ascending by offset; a tensor without elements has none.

    Adjacent cells that together form a box are held by different regions.
    """
    if 0 in shape:
        return ()
    boxes = [_box(region) for region in regions]
    found: dict[tuple[int, ...], list[_Box]] = {}
    pending: list[tuple[_Box, tuple[int, ...], tuple[int, ...]]] = []
    pending.append((((0,) * len(shape), shape), tuple(range(len(boxes))), ()))
    while pending:
        box, near, around = pending.pop()
        holding, partial = _sorted_out(box, near, boxes)
        around = (*around, *holding)
        if not partial:
            found.setdefault(tuple(sorted(around)), []).append(box)
            continue
        pending += [(half, partial, around) for half in _halves(box, _cut(box, partial, boxes))]
    together = ((held_by, box) for held_by, held in found.items() for box in _joined(held))
    return tuple(
        Cell(_region(box), held_by) for held_by, box in sorted(together, key=lambda c: c[1])
    )


def slabs(region: Region, most: int) -> Iterator[Region]:
    """Cut a box into parts of at most `most` elements, ascending, nearly equal in size.

    Only leading dimensions are cut, so a part has the fewest and longest contiguous runs. There are
    at most 2n + 1 parts, for a box of n * `most` elements.

    Args:
        region: the box.
        most: largest number of elements, > 0.
    """
    shape = region.shape
    dimension, inner = 0, prod(shape[1:])
    while inner > most:  # not even one index of this dimension fits
        dimension += 1
        inner = prod(shape[dimension + 1 :])
    cuts = [list(range(size + 1)) for size in shape[:dimension]]
    cuts += [_even(size, most // inner) for size in shape[dimension : dimension + 1]]
    for place in product(*([*pairwise(cut)] for cut in cuts)):
        offset = [at + first for at, (first, _) in zip(region.offset, place, strict=False)]
        sizes = (behind - first for first, behind in place)
        rest = len(place)
        yield Region((*offset, *region.offset[rest:]), (*sizes, *shape[rest:]))


def _even(size: int, most: int) -> list[int]:
    parts = ceil_div(size, most)
    return [part * size // parts for part in range(parts + 1)]


def _sorted_out(
    box: _Box, near: Iterable[int], boxes: Sequence[_Box]
) -> tuple[list[int], tuple[int, ...]]:
    """Return the indices of the boxes that contain `box`, and of those that overlap it partly."""
    holding: list[int] = []
    partial: list[int] = []
    low, high = box
    for place in near:
        first, behind = boxes[place]
        if all(map(int.__le__, first, low)) and all(map(int.__ge__, behind, high)):
            holding.append(place)
        elif all(map(int.__lt__, first, high)) and all(map(int.__gt__, behind, low)):
            partial.append(place)
    return holding, tuple(partial)


def _cut(box: _Box, partial: Iterable[int], boxes: Sequence[_Box]) -> tuple[int, int]:
    """Return (dimension, index) of the plane that divides the fewest regions.

    Among equal planes, the first dimension wins, then the plane nearest to the middle.
    """
    near = [boxes[place] for place in partial]
    planes: list[tuple[int, int, int, int]] = []
    for dimension, (low, high) in enumerate(zip(*box, strict=True)):
        firsts = sorted(first[dimension] for first, _ in near)
        behinds = sorted(behind[dimension] for _, behind in near)
        for at in {*firsts, *behinds}:
            if low < at < high:
                divided = bisect_left(firsts, at) - bisect_right(behinds, at)
                planes.append((divided, dimension, abs(2 * at - low - high), at))
    check(planes, f"a region that overlaps {box} partly has no face in it")
    _, dimension, _, at = min(planes)
    return dimension, at


def _halves(box: _Box, cut: tuple[int, int]) -> tuple[_Box, _Box]:
    (low, high), (dimension, at) = box, cut
    return (
        (low, (*high[:dimension], at, *high[dimension + 1 :])),
        ((*low[:dimension], at, *low[dimension + 1 :]), high),
    )


def _joined(boxes: list[_Box]) -> list[_Box]:
    """Merge neighbours that form one box: cuts for other regions may have separated them."""
    before = 0
    while len(boxes) not in {before, 1}:
        before = len(boxes)
        for dimension in range(len(boxes[0][0])):
            boxes = _joined_along(dimension, boxes)
    return boxes


def _joined_along(dimension: int, boxes: list[_Box]) -> list[_Box]:
    def others(box: _Box) -> list[tuple[int, ...]]:
        return [(*side[:dimension], *side[dimension + 1 :]) for side in box]

    joined: list[_Box] = []
    for low, high in sorted(boxes, key=lambda box: (others(box), box[0][dimension])):
        last = joined[-1] if joined else None
        if last and last[1][dimension] == low[dimension] and others(last) == others((low, high)):
            joined[-1] = (last[0], high)
        else:
            joined.append((low, high))
    return joined


def _box(region: Region) -> _Box:
    behind = (at + size for at, size in zip(region.offset, region.shape, strict=True))
    return region.offset, tuple(behind)


def _region(box: _Box) -> Region:
    low, high = box
    return Region(low, tuple(behind - at for at, behind in zip(low, high, strict=True)))
