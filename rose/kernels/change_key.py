"""How large a change of bf16 is, as the number from 0 to 32,767 that top-k compares."""

import triton
import triton.language as tl

KEYS = 1 << 15  # one more than the largest key; as a threshold it sends nothing


@triton.jit
def widened(bits: tl.tensor) -> tl.tensor:
    """Return bf16 bits as fp32, subnormals as zeros, so no flush mode can make a difference."""
    is_subnormal = (bits & 0x7F80) == 0
    return (tl.where(is_subnormal, bits & 0x8000, bits) << 16).to(tl.float32, bitcast=True)


@triton.jit
def change_key(new: tl.tensor, old: tl.tensor) -> tl.tensor:
    """Return the upper half of |new - old| in fp32; both are bf16 bits in int32.

    Subnormals and NaN are told by their bits, before and after the subtraction: it is the one step
    that is done in floats.
    """
    size = (widened(new) - widened(old)).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    key = tl.where(size > 0x7F800000, 0x7FFF, size >> 16)
    return tl.where((key & 0x7F80) == 0, 0, key)
