"""A kernel whose blocks stay on the device for a given time, like a persistent kernel's."""

import triton
import triton.language as tl


@triton.jit
def spin(out: tl.tensor, rounds: int, block: tl.constexpr) -> None:
    """Each thread loops on its own number; one block per program."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = at.to(tl.float32)
    for _ in range(rounds):
        value = value * 1.0001 + 0.5
    tl.store(out + at, value)
