"""The tile that one Triton program processes: size, loads, stores and launch options."""

from typing import Any, Final

import triton
import triton.language as tl

TILE = tl.constexpr(1024)
NUM_WARPS: Final = 8
LAUNCH: Final[dict[str, Any]] = {"num_warps": NUM_WARPS}


@triton.jit
def load_bits(places: tl.tensor, mask: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """Load elements as int32 with zeros above their bits; 0 where the mask is off."""
    bits = tl.load(places, mask=mask, other=0).to(tl.int32)
    if width < 32:
        bits = bits & ((1 << width) - 1)
    return bits


@triton.jit
def store_bits(places: tl.tensor, bits: tl.tensor, mask: tl.tensor, width: tl.constexpr) -> None:
    """Store the low bits of int32 as elements."""
    if width == 8:
        bits = bits.to(tl.int8)
    if width == 16:
        bits = bits.to(tl.int16)
    tl.store(places, bits, mask=mask)
