"""Tensors that are no row: a view of a larger one is read and written where it lies.

A kernel gets a box as seven numbers, of the four dimensions that are left once neighbours that lie
like one are made one: the sizes of the inner three, and the strides of all four, in elements. Its
elements are numbered in row-major order. None stands for a row.
"""

from typing import Any, Final

from rose.errors import InvalidArgument

DIMENSIONS: Final = 4
Box = tuple[int, int, int, int, int, int, int]


def box_of(name: str, tensor: Any) -> Box | None:
    """Describe how the elements of a tensor lie.

    Raises:
        InvalidArgument: more than four dimensions are left.
    """
    if tensor.is_contiguous():
        return None
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size == 1:
            continue
        if strides and strides[-1] == size * stride:
            sizes[-1], strides[-1] = sizes[-1] * size, stride
        else:
            sizes.append(size)
            strides.append(stride)
    missing = DIMENSIONS - len(sizes)
    if missing < 0:
        raise InvalidArgument(
            f"{name} has the shape {tuple(tensor.shape)} and strides {tensor.stride()}: at most "
            f"{DIMENSIONS} dimensions may lie apart"
        )
    _, *inner = [1] * missing + sizes
    return (*inner, *([0] * missing), *strides)  # type: ignore[return-value]


def boxes_of(**tensors: Any) -> tuple[Box | None, ...]:
    """Describe several tensors: all as rows, or none, so that kernels have one variant of each."""
    boxes = tuple(box_of(name, tensor) for name, tensor in tensors.items())
    if all(box is None for box in boxes):
        return boxes
    count = next(iter(tensors.values())).numel()
    row: Box = (1, 1, max(count, 1), 0, 0, 0, 1)
    return tuple(box or row for box in boxes)
