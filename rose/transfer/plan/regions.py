"""Arithmetic of boxes: which lie in which, and where a part of one is in memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from rose.transfer.plan.spec import LocalView, Region


def contains(outer: Region, inner: Region) -> bool:
    """Whether every element of `inner` is one of `outer`; both of one tensor."""
    return all(
        first <= at and at + count <= first + size
        for first, size, at, count in zip(
            outer.offset, outer.shape, inner.offset, inner.shape, strict=True
        )
    )


def whole(shape: tuple[int, ...]) -> Region:
    """Return the box of a tensor that has elements."""
    return Region((0,) * len(shape), shape)


def moved(view: LocalView, held: Region, part: Region) -> LocalView:
    """Return where a part of a region lies, given where the region does."""
    steps = zip(view.strides, held.offset, part.offset, strict=True)
    ahead = sum(stride * (at - first) for stride, first, at in steps)
    return LocalView(view.parameter, view.offset + ahead, view.strides)


def described(region: Region) -> str:
    """Return a box as a slice, for sentences."""
    ranges = zip(region.offset, region.shape, strict=True)
    return f"[{', '.join(f'{at}:{at + size}' for at, size in ranges)}]"


class RegionIndex:
    """Boxes of one tensor, found by the first dimension without a look at each of them.

    Args:
        regions: in any order; they may meet.
    """

    __slots__ = ("_by_first", "_firsts", "_longest", "_regions")

    def __init__(self, regions: Sequence[Region]) -> None:
        self._regions = regions
        firsts = ((region.offset[:1], place) for place, region in enumerate(regions))
        self._by_first = [place for _, place in sorted(firsts)]
        self._firsts = [regions[place].offset[:1] for place in self._by_first]
        self._longest = max((region.shape[0] for region in regions if region.shape), default=0)

    def around(self, part: Region) -> Iterator[int]:
        """Yield the places of the boxes that have all of `part`, ascending by first index."""
        near = self._by_first
        if part.offset:
            at = part.offset[0]
            start = bisect_right(self._firsts, (at - self._longest,))
            near = near[start : bisect_left(self._firsts, (at + part.shape[0],))]
        return (place for place in near if contains(self._regions[place], part))
