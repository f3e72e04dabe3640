"""The slow truth of quantised weights: tables and searches where the twins compute on bits.

`docs/protocol.md`, "Quantised weights", is the rule. Every twin (C++, CUDA, Triton) must give these
codes and scales.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Codes = npt.NDArray[np.uint8]
Scales = npt.NDArray[np.float32]
Block = tuple[int, int]
LARGEST = {"fp8": np.float32(448), "int8": np.float32(127)}


def fp8_value(code: int) -> float:
    """What a byte of e4m3fn means, by the definition of the format."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        size = float("nan")
    elif exponent == 0:
        size = mantissa * 2.0**-9
    else:
        size = (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 0x80 else size


FP8_VALUES = np.array([fp8_value(code) for code in range(256)], np.float32)
_FINITE = FP8_VALUES[:0x7F].astype(np.float64)  # ascending, from 0 to 448
_HALFWAY = (_FINITE[1:] + _FINITE[:-1]) / 2


def widened(bits: Bits) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: npt.NDArray[np.float32]) -> Bits:
    """Round to bf16, half to even; a NaN becomes 0x7FC0 and loses its sign."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def fp8_codes(bits: Bits, quotients: npt.NDArray[np.float32]) -> Codes:
    size = np.abs(quotients.astype(np.float64))
    below = np.searchsorted(_HALFWAY, size, side="left")  # a tie stays with the smaller one
    at_tie = below < len(_HALFWAY)
    at_tie[at_tie] = size[at_tie] == _HALFWAY[below[at_tie]]
    codes = np.where(at_tie & (below % 2 == 1), below + 1, below)
    codes = np.where(np.isnan(size), 0x7F, codes)
    return (codes | np.where(bits >> 15, 0x80, 0)).astype(np.uint8)


def int8_codes(quotients: npt.NDArray[np.float32]) -> Codes:
    whole = np.rint(np.clip(quotients.astype(np.float64), -127, 127))
    return np.where(np.isnan(whole), 0, whole).astype(np.int8).view(np.uint8)


def blocks(shape: tuple[int, int], block: Block) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
    """Yield the place of each scale, and the box of weights it is for."""
    for row, first_row in enumerate(range(0, shape[0], block[0])):
        for col, first_col in enumerate(range(0, shape[1], block[1])):
            box = slice(first_row, first_row + block[0]), slice(first_col, first_col + block[1])
            yield row, col, box


def scales_of(shape: tuple[int, int], block: Block) -> Scales:
    return np.ones((-(-shape[0] // block[0]), -(-shape[1] // block[1])), np.float32)


def quantise(weights: Bits, *, to: str, block: Block) -> tuple[Codes, Scales]:
    """Quantise (rows, cols) bf16 bits; one scale for each block of `block` rows and columns."""
    codes, scales = np.zeros(weights.shape, np.uint8), scales_of(weights.shape, block)
    with np.errstate(all="ignore"):
        for row, col, box in blocks(weights.shape, block):
            values = widened(weights[box])
            amax = np.max(np.abs(values), initial=np.float32(0), where=np.isfinite(values))
            if amax > 0:
                scales[row, col] = amax / LARGEST[to]
            quotients = values / scales[row, col]
            is_fp8 = to == "fp8"
            codes[box] = fp8_codes(weights[box], quotients) if is_fp8 else int8_codes(quotients)
    return codes, scales


def dequantise(codes: Codes, scales: Scales, *, to: str, block: Block) -> Bits:
    """Return bf16 bits; a NaN has the sign of its code."""
    weights = np.zeros(codes.shape, np.uint16)
    with np.errstate(all="ignore"):
        for row, col, box in blocks(codes.shape, block):
            part = codes[box]
            values = FP8_VALUES[part] if to == "fp8" else part.view(np.int8).astype(np.float32)
            bits = narrowed(values * scales[row, col])
            is_negative_nan = (bits == 0x7FC0) & (part >= 0x80)
            weights[box] = np.where(is_negative_nan, 0xFFC0, bits)
    return weights
