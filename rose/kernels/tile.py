"""How much of an array one program holds at a time, how it loads that, and how it is launched."""

from typing import Any, Final

import torch
import triton
import triton.language as tl

TILE = tl.constexpr(1024)  # two elements to a thread; to pack four would spill
NUM_WARPS: Final = 16
# All that one program can have, of which a multiprocessor then runs one. Unless it is told,
# NVIDIA's assembler makes room for a second one, and spills; ROCm has no such option.
REGISTERS_MAX: Final = 128
LAUNCH: Final[dict[str, Any]] = {
    "num_warps": NUM_WARPS,
    **({} if torch.version.hip else {"maxnreg": REGISTERS_MAX}),
}


@triton.jit
def carries(start: tl.tensor, steps: tl.tensor, size: tl.tensor) -> tl.tensor:
    """Return how often a coordinate that takes `steps` < 2^17 from `start` on begins anew.

    Divides in 32 bits: of a long dimension only its end matters.
    """
    short = tl.minimum(size, 1 << 20).to(tl.int32)
    steps += short - tl.minimum(size - start, 1 << 20).to(tl.int32)
    return (steps.to(tl.uint32) // short.to(tl.uint32)).to(tl.int32)


@triton.jit
def place(pointer: tl.tensor, base: tl.tensor, lane: tl.tensor, box: tl.tuple) -> tl.tensor:
    """Point to elements `base + lane` of a row, or of a box as `rose.kernels.box` describes it.

    `lane` is int32, below 2^17. What a lane adds is its steps in the last dimension, and for each
    carry the step in the dimension above less the way back.
    """
    if box is None:
        return pointer + base + lane
    else:
        size1, size2, size3, stride0, stride1, stride2, stride3 = box
        rest = base // size3
        at3 = base - rest * size3
        above = rest // size2
        at2 = rest - above * size2
        top = above // size1
        at1 = above - top * size1
        start = pointer + (top * stride0 + at1 * stride1 + at2 * stride2 + at3 * stride3)
        carry3 = carries(at3, lane, size3)
        carry2 = carries(at2, carry3, size2)
        carry1 = carries(at1, carry2, size1)
        places = start + lane * stride3
        places += carry3 * (stride2 - size3 * stride3)
        places += carry2 * (stride1 - size2 * stride2)
        return places + carry1 * (stride0 - size1 * stride1)


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
