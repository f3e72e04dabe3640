"""How much of an array one program holds at a time, how it loads that, and how it is launched."""

from typing import Any, Final

import torch
import triton
import triton.language as tl

TILE = tl.constexpr(1024)  # four elements to a thread; many more would spill
NUM_WARPS: Final = 8
# For two programs of 8 warps to a multiprocessor. Unless it is told, NVIDIA's assembler makes room
# for a third one, and spills; ROCm has no such option.
REGISTERS_MAX: Final = 128
LAUNCH: Final[dict[str, Any]] = {
    "num_warps": NUM_WARPS,
    **({} if torch.version.hip else {"maxnreg": REGISTERS_MAX}),
}


@triton.jit
def place(pointer: tl.tensor, base: tl.tensor, lane: tl.tensor, box: tl.tuple) -> tl.tensor:
    """Point to elements `base + lane` of a row, or of a box as `rose.kernels.box` describes it."""
    if box is None:
        return pointer + base + lane
    else:
        index = base + lane
        rest = index // box[2]
        offset = (index - rest * box[2]) * box[6]
        above = rest // box[1]
        offset += (rest - above * box[1]) * box[5]
        top = above // box[0]
        return pointer + offset + (above - top * box[0]) * box[4] + top * box[3]


@triton.jit
def load_bits(places: tl.tensor, mask: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """Load elements as int32 that holds their bits and zeros above; 0 where the mask is off."""
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
