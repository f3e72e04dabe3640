"""Checks of a matrix to quantise, and the tensors for the result."""

from dataclasses import dataclass
from typing import Any, Final

import torch

from rose.errors import InvalidArgument

KINDS: Final = ("fp8", "int8")
_BITS_DTYPES: Final = (torch.bfloat16, torch.int16, torch.uint16)


@dataclass(frozen=True, slots=True)
class ScaleBlocks:
    """A matrix of weights, divided into blocks with one scale each.

    Args:
        bits: (rows, cols) int16, a view of the weights; there may be gaps between rows.
        codes: (rows, cols) uint8, to be filled.
        scales: (blocks down, blocks across) float32, to be filled.
        block_rows: rows per block, at most those of the matrix.
        block_cols: columns per block, at most those of the matrix.
    """

    bits: Any
    codes: Any
    scales: Any
    block_rows: int
    block_cols: int

    @property
    def row_stride(self) -> int:
        """Return the distance between rows in elements. A single row's own stride is ignored."""
        rows, cols = self.bits.shape
        return int(self.bits.stride(0)) if rows > 1 else int(cols)


def scale_blocks(weights: Any, *, to: str, block: tuple[int, int]) -> ScaleBlocks:
    """Divide `weights` into blocks, and allocate codes and scales on the same device.

    Raises:
        InvalidArgument: the weights are not a bf16 matrix with contiguous rows that do not overlap,
            or `to` or `block` is invalid.
    """
    if to not in KINDS:
        raise InvalidArgument(f"to '{to}': choose fp8 or int8")
    if min(block) < 1:
        raise InvalidArgument(f"block {block}: pass rows and columns, each at least 1")
    if weights.dtype not in _BITS_DTYPES:
        raise InvalidArgument(f"weights must be bfloat16 or its bits, got {weights.dtype}")
    if weights.dim() != 2:
        raise InvalidArgument(f"weights must be a matrix, got the shape {tuple(weights.shape)}")
    rows, cols = weights.shape
    if (cols > 1 and weights.stride(1) != 1) or (rows > 1 and weights.stride(0) < cols):
        raise InvalidArgument(
            "rows of weights must be contiguous and must not overlap, got strides "
            f"{weights.stride()}"
        )
    # A larger block covers the whole matrix: limiting it avoids overflow in sums of sizes.
    height, width = min(block[0], max(rows, 1)), min(block[1], max(cols, 1))
    shape = -(-rows // height), -(-cols // width)
    return ScaleBlocks(
        bits=weights.detach().view(torch.int16),
        codes=torch.empty((rows, cols), dtype=torch.uint8, device=weights.device),
        scales=torch.empty(shape, dtype=torch.float32, device=weights.device),
        block_rows=height,
        block_cols=width,
    )
