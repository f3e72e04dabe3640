"""The effect of view operations on a tensor, as boxes in the coordinates of the checkpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rose.transfer.plan import Region

# Most boxes of one copy. If a loader scatters more finely, running the loader again is faster.
BOXES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Look:
    """A strided view of a storage: index i of the view is element offset + sum(i * strides).

    Args:
        offset: index of the first element in the storage.
        shape: number of elements, per dimension.
        strides: elements from one index to the next, per dimension; >= 0.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def last(self) -> int:
        """Return the largest index in the storage that the view may reach."""
        steps = zip(self.shape, self.strides, strict=True)
        return self.offset + sum((size - 1) * stride for size, stride in steps)

    def may_meet(self, other: "Look") -> bool:
        """Return True if the index ranges of both views overlap, even if they share no element.

        For example, the even columns of a matrix may meet the odd columns.
        """
        return self.offset <= other.last and other.offset <= self.last


class Placed(NamedTuple):
    """A box of a tensor, and its place in a parameter's storage, as in `LocalView`."""

    region: Region
    offset: int
    strides: tuple[int, ...]


class _Axis(NamedTuple):
    """Evenly spaced elements: their number, and their distance in the tensor and in the target."""

    size: int
    step: int
    to: int


class _Part(NamedTuple):
    """A part of a copy: its first element in the tensor and in the target, and its axes."""

    first: int
    at: int
    axes: tuple[_Axis, ...]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides = [1] * len(shape)
    for at in range(len(shape) - 1, 0, -1):
        strides[at - 1] = strides[at] * shape[at]
    return tuple(strides)


def boxes_of(shape: Sequence[int], seen: Look, held: Look) -> list[Placed] | None:
    """Return the boxes that a copy from view `seen` to view `held` covers, and their places.

    The boxes are exact for any `seen`: a part that is not a box (every second row, the end of one
    row and the start of the next, a diagonal) is cut into boxes.

    Args:
        shape: shape of the tensor; `seen` is a view of its elements in row-major order.
        seen: view that was copied.
        held: target of the copy, with the same shape.

    Returns:
        The boxes; None if there are more than `BOXES_MAX`.
    """
    axes = tuple(map(_Axis, seen.shape, seen.strides, held.strides))
    if any(axis.size == 0 for axis in axes):
        return []
    canonical = _Canonical(tuple(shape))
    todo = [_Part(seen.offset, held.offset, axes)]
    boxes: list[Placed] = []
    while todo:
        part = canonical.joined(todo.pop())
        cut = canonical.cut(part)
        if cut is None:
            boxes.append(canonical.box(part))
        else:
            todo.extend(reversed(list(cut)))
        if len(boxes) + len(todo) > BOXES_MAX:
            return None
    return boxes


class _Canonical:
    """Coordinates of a tensor: an element's flat index, as a number with a digit per dimension."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._steps = row_major(shape)
        # Dimensions of size 1 have no digit, because their step equals that of another dimension.
        self._wide = [at for at, size in enumerate(shape) if size > 1]

    def joined(self, part: _Part) -> _Part:
        """Drop axes of one element, and merge two axes if one stride covers both.

        Two axes stay separate if the merged axis would extend beyond its dimension, because `cut`
        would separate them again.
        """
        axes: list[_Axis] = []
        for axis in sorted(part.axes, key=lambda one: one.step, reverse=True):
            if axis.size == 1:
                continue
            one = axes[-1] if axes else None
            if (
                one is not None
                and (one.step, one.to) == (axis.step * axis.size, axis.to * axis.size)
                and self._fits(part.first, whole := axis._replace(size=one.size * axis.size))
            ):
                axes[-1] = whole
            else:
                axes.append(axis)
        return part._replace(axes=tuple(axes))

    def cut(self, part: _Part) -> Iterator[_Part] | None:
        """Return smaller parts; None if the part is a box."""
        dimensions: set[int] = set()
        for number, axis in enumerate(part.axes):
            at = self._dimension(axis)
            if at is None or at in dimensions:
                return self._each(part, number)
            if not self._fits(part.first, axis):
                return self._carried(part, number, at)
            dimensions.add(at)
        return None

    def box(self, part: _Part) -> Placed:
        """Return the box of a part that needs no cut."""
        sizes, strides = [1] * len(self._shape), [0] * len(self._shape)
        for axis in part.axes:
            at = self._dimension(axis)
            if at is not None:
                sizes[at], strides[at] = axis.size, axis.to
        digits = tuple(self._digit(part.first, at) for at in range(len(self._shape)))
        return Placed(Region(digits, tuple(sizes)), part.at, tuple(strides))

    def _dimension(self, axis: _Axis) -> int | None:
        """Return the dimension along which an axis runs, if any."""
        return next((at for at in self._wide if self._steps[at] == axis.step), None)

    def _digit(self, element: int, at: int) -> int:
        return element // self._steps[at] % self._shape[at]

    def _fits(self, first: int, axis: _Axis) -> bool:
        """Return True if an axis stays within its dimension."""
        at = self._dimension(axis)
        return at is not None and self._digit(first, at) + axis.size <= self._shape[at]

    def _each(self, part: _Part, number: int) -> Iterator[_Part]:
        """Cut an axis into its elements; stop after `BOXES_MAX` + 1 parts, which are too many."""
        axis = part.axes[number]
        rest = part.axes[:number] + part.axes[number + 1 :]
        for index in range(min(axis.size, BOXES_MAX + 1)):
            yield _Part(part.first + index * axis.step, part.at + index * axis.to, rest)

    def _carried(self, part: _Part, number: int, at: int) -> Iterator[_Part]:
        """Cut an axis that extends beyond its dimension.

        The parts are the end of the first row, whole rows, and the start of the last row.
        """
        axis, size = part.axes[number], self._shape[at]
        rest = part.axes[:number] + part.axes[number + 1 :]
        head = (size - self._digit(part.first, at)) % size
        rows, tail = divmod(axis.size - head, size)
        row = axis._replace(size=size)
        for begin, axes in (
            (0, (axis._replace(size=head),)),
            (head, (_Axis(rows, size * axis.step, size * axis.to), row)),
            (head + rows * size, (axis._replace(size=tail),)),
        ):
            if all(one.size for one in axes):
                first, where = part.first + begin * axis.step, part.at + begin * axis.to
                yield _Part(first, where, axes + rest)
