"""Boxes: sizes and strides by which kernels read and write a strided tensor in place.

Neighbouring dimensions with a common stride are merged; up to four may remain. A box is seven
numbers: the sizes of the inner three dimensions, and the strides of all four, in elements. Elements
are numbered in row-major order. None stands for a contiguous row.
"""

from typing import Any, Final

from rose.errors import InvalidArgument

DIMENSIONS: Final = 4
Box = tuple[int, int, int, int, int, int, int]


def box_of(name: str, tensor: Any) -> Box | None:
    """Return the box of a tensor; None if it is contiguous.

    Raises:
        InvalidArgument: more than four dimensions remain after merging.
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
            f"{name} has the shape {tuple(tensor.shape)} and strides {tensor.stride()}: more than "
            f"{DIMENSIONS} dimensions are not contiguous; pass a contiguous copy"
        )
    _, *inner = [1] * missing + sizes
    return (*inner, *([0] * missing), *strides)  # type: ignore[return-value]
