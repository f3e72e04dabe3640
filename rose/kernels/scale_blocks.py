"""What the functions that quantise ask of a matrix, and the tensors that they fill."""

from dataclasses import dataclass
from typing import Any, Final

import torch

from rose.errors import InvalidArgument

KINDS: Final = ("fp8", "int8")
_BITS_DTYPES: Final = (torch.bfloat16, torch.int16, torch.uint16)


@dataclass(frozen=True, slots=True)
class ScaleBlocks:
    """A matrix of weights, cut into blocks that have one scale each.

    Args:
        bits: (rows, cols) int16, a view of the weights; rows may be apart.
        codes: (rows, cols) uint8, to be filled.
        scales: (blocks down, blocks across) float32, to be filled.
        block_rows: of a block, not more than the matrix has.
        block_cols: of a block, not more than the matrix has.
    """

    bits: Any
    codes: Any
    scales: Any
    block_rows: int
    block_cols: int

    @property
    def row_stride(self) -> int:
        """Return how many elements the rows are apart; what one row says of it means nothing."""
        rows, cols = self.bits.shape
        return int(self.bits.stride(0)) if rows > 1 else int(cols)


def scale_blocks(weights: Any, *, to: str, block: tuple[int, int]) -> ScaleBlocks:
    """Cut `weights` into blocks, and make room for their codes and scales on the same device.

    Raises:
        InvalidArgument: the weights are no matrix of bf16 whose rows are contiguous and do not
            overlap, or `to` or `block` is none.
    """
    if to not in KINDS:
        raise InvalidArgument(f"to '{to}': choose fp8 or int8")
    if min(block) < 1:
        raise InvalidArgument(f"block {block}: pass rows and columns, each at least 1")
    if weights.dtype not in _BITS_DTYPES:
        raise InvalidArgument(f"weights are {weights.dtype}; they must be bfloat16 or its bits")
    if weights.dim() != 2:
        raise InvalidArgument(f"weights have the shape {tuple(weights.shape)}; give a matrix")
    rows, cols = weights.shape
    if (cols > 1 and weights.stride(1) != 1) or (rows > 1 and weights.stride(0) < cols):
        raise InvalidArgument(
            f"weights have strides {weights.stride()}; each row must be contiguous, none overlap"
        )
    # A block of more than the matrix is one of all of it: so no sum of two sizes overflows.
    height, width = min(block[0], max(rows, 1)), min(block[1], max(cols, 1))
    shape = -(-rows // height), -(-cols // width)
    return ScaleBlocks(
        bits=weights.detach().view(torch.int16),
        codes=torch.empty((rows, cols), dtype=torch.uint8, device=weights.device),
        scales=torch.empty(shape, dtype=torch.float32, device=weights.device),
        block_rows=height,
        block_cols=width,
    )
