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
def load_bits(pointer: tl.tensor, lane: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Load 16-bit elements as int32 from 0 to 65,535; 0 where the mask is off."""
    return tl.load(pointer + lane, mask=mask, other=0).to(tl.int32) & 0xFFFF
