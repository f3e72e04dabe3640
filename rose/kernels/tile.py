"""How much of an array one program holds at a time, and how it loads that."""

from typing import Final

import triton
import triton.language as tl

# Four elements to a thread: with eight, the pack kernel takes every register there is.
TILE = tl.constexpr(1024)
NUM_WARPS: Final = 8


@triton.jit
def load_bits(pointer: tl.tensor, lane: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Load 16-bit elements as int32 from 0 to 65,535; 0 where the mask is off."""
    return tl.load(pointer + lane, mask=mask, other=0).to(tl.int32) & 0xFFFF
