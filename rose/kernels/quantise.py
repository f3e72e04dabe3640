"""Quantise bf16 weights to FP8 or INT8 codes with block scales."""

from typing import Any, Final

import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.scale_blocks import scale_blocks
from rose.kernels.tile import LAUNCH, TILE

PROGRAMS: Final = 65_536  # of a launch; each takes every so-many-th block

INFINITY = tl.constexpr(0x7F80)  # of a magnitude; what is above it is a NaN


@triton.jit
def load_weights(places: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Load bf16 bits as int32 from 0 to 65,535; 0 where the mask is off."""
    return tl.load(places, mask=mask, other=0).to(tl.int32) & 0xFFFF


@triton.jit
def quotients(bits: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """Return |w| / scale in fp32, rounded once; that of a NaN means nothing."""
    sizes = ((bits & 0x7FFF) << 16).to(tl.float32, bitcast=True)
    return tl.div_rn(sizes, tl.zeros_like(sizes) + scale)


@triton.jit
def fp8_codes(bits: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """Return e4m3fn as int32: half to even, at most 448, a NaN as 0x7F with its sign."""
    quotient = quotients(bits, scale)
    raw = quotient.to(tl.int32, bitcast=True)
    # 20 bits of the mantissa are dropped, and the exponent's bias goes from 127 to 7.
    normal = ((raw + 0x7FFFF + ((raw >> 20) & 1)) >> 20) - 120 * 8
    # The last bit of 2^14 is 2^-9, the unit of e4m3fn's subnormals.
    subnormal = (quotient + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(raw < 0x3C800000, subnormal, tl.minimum(normal, 0x7E))
    code = tl.where((bits & 0x7FFF) > INFINITY, 0x7F, code)
    return code | ((bits >> 8) & 0x80)


@triton.jit
def int8_codes(bits: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """Return two's complement as int32, from 0 to 255: half to even, at most 127, 0 for a NaN."""
    quotient = quotients(bits, scale)
    kept = tl.where(quotient < 127.0, quotient, 127.0)
    size = (kept + 8388608.0).to(tl.int32, bitcast=True) - 0x4B000000  # the last bit of 2^23 is 1
    code = tl.where(bits > 0x7FFF, -size, size)
    return tl.where((bits & 0x7FFF) > INFINITY, 0, code) & 0xFF


@triton.jit
def tile_at(
    row: tl.tensor, col: tl.tensor, height: tl.tensor, width: tl.tensor, tile_cols: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """Return rows and columns of a tile from `row`, `col` on, and which are inside the block."""
    tile_rows: tl.constexpr = TILE // tile_cols
    rows = (row + tl.arange(0, tile_rows).to(tl.int64))[:, None]
    cols = (col + tl.arange(0, tile_cols).to(tl.int64))[None, :]
    return rows, cols, (rows < height) & (cols < width)


@triton.jit(do_not_specialize=["rows", "cols", "row_stride", "block_rows", "block_cols"])
def quantise_kernel(
    weights: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    rows: tl.int64,
    cols: tl.int64,
    row_stride: tl.int64,
    block_rows: tl.int64,
    block_cols: tl.int64,
    is_fp8: tl.constexpr,
    tile_cols: tl.constexpr,
) -> None:
    """One program per scale block at a time; it looks at each weight twice."""
    tile_rows: tl.constexpr = TILE // tile_cols
    down = (rows + block_rows - 1) // block_rows
    across = (cols + block_cols - 1) // block_cols
    for block in range(tl.program_id(0).to(tl.int64), down * across, tl.num_programs(0)):
        first_row = block // across * block_rows
        first_col = block % across * block_cols
        height = tl.minimum(rows - first_row, block_rows)
        width = tl.minimum(cols - first_col, block_cols)
        held = weights + first_row * row_stride + first_col
        largest = tl.zeros((tile_rows, tile_cols), tl.int32)
        for row in range(0, height, tile_rows):
            for col in range(0, width, tile_cols):
                down_by, right_by, is_inside = tile_at(row, col, height, width, tile_cols)
                bits = load_weights(held + down_by * row_stride + right_by, is_inside)
                size = bits & 0x7FFF
                largest = tl.maximum(largest, tl.where(size < INFINITY, size, 0))
        amax = tl.max(tl.max(largest, 1), 0)
        size = (amax << 16).to(tl.float32, bitcast=True)
        scale = tl.div_rn(size, tl.zeros_like(size) + (448.0 if is_fp8 else 127.0))
        scale = tl.where(amax == 0, 1.0, scale)
        tl.store(scales + block, scale)
        made = codes + first_row * cols + first_col
        for row in range(0, height, tile_rows):
            for col in range(0, width, tile_cols):
                down_by, right_by, is_inside = tile_at(row, col, height, width, tile_cols)
                bits = load_weights(held + down_by * row_stride + right_by, is_inside)
                code = fp8_codes(bits, scale) if is_fp8 else int8_codes(bits, scale)
                tl.store(made + down_by * cols + right_by, code.to(tl.uint8), mask=is_inside)


def quantise(weights: Any, *, to: str, block: tuple[int, int]) -> tuple[Any, Any]:
    """Quantise a matrix; nothing waits for the device.

    Args:
        weights: (rows, cols) bfloat16, or its bits; each row contiguous, rows may be apart.
        to: "fp8" for e4m3fn, or "int8".
        block: rows and columns of weights that share a scale.

    Returns:
        (rows, cols) uint8 codes, and (blocks down, blocks across) float32 scales.

    Raises:
        InvalidArgument: as `scale_blocks`.
    """
    cut = scale_blocks(weights, to=to, block=block)
    if not weights.numel():
        return cut.codes, cut.scales
    rows, cols = weights.shape
    with operands.on_device_of(weights):
        quantise_kernel[(min(cut.scales.numel(), PROGRAMS),)](
            cut.bits,
            cut.codes,
            cut.scales,
            rows,
            cols,
            cut.row_stride,
            cut.block_rows,
            cut.block_cols,
            is_fp8=to == "fp8",
            tile_cols=min(triton.next_power_of_2(cut.block_cols), TILE.value),
            **LAUNCH,
        )
    return cut.codes, cut.scales
