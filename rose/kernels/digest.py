"""Digests: two sums modulo 2^64 that do not depend on how a tensor is split."""

from typing import Any, Final

import torch
import triton
import triton.language as tl

from rose.kernels.tile import LAUNCH, TILE, load_bits, row_of

FIRST_STRIDE = tl.constexpr(0x9E3779B97F4A7C15)
SECOND_STRIDE = tl.constexpr(0xD1B54A32D192ED03)
_MASK64: Final = (1 << 64) - 1


@triton.jit
def mix(x: tl.tensor) -> tl.tensor:
    """Mix the bits of a uint64, so that each input bit affects all output bits."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit(do_not_specialize=["count", "first_word", "seed"])
def digest_kernel(
    bits: tl.tensor,
    sums: tl.tensor,
    count: tl.int64,
    first_word: tl.int64,
    seed: tl.int64,
    width: tl.constexpr,
) -> None:
    """One program per tile adds the tile's mixed words to both sums; the order does not matter."""
    in_word: tl.constexpr = 64 // width
    at = tl.program_id(0).to(tl.int64) * TILE
    lane = tl.arange(0, TILE)
    tile = load_bits(bits + at + lane, at + lane < count, width)
    parts = tl.reshape(tile.to(tl.uint32).to(tl.uint64), (TILE // in_word, in_word))
    word = tl.sum(parts << (tl.arange(0, in_word) * width).to(tl.uint64)[None, :], 1)
    index = at // in_word + tl.arange(0, TILE // in_word)
    number = (first_word + index + 1).to(tl.uint64)
    keyed = word + seed.to(tl.int64).to(tl.uint64)
    is_there = index * in_word < count
    nothing = tl.zeros((TILE // in_word,), tl.uint64)
    first = tl.where(is_there, mix(keyed + number * FIRST_STRIDE), nothing)
    second = tl.where(is_there, mix(keyed + number * SECOND_STRIDE), nothing)
    tl.atomic_add(sums, tl.sum(first, 0).to(tl.int64), sem="relaxed")
    tl.atomic_add(sums + 1, tl.sum(second, 0).to(tl.int64), sem="relaxed")


def digest(bits: Any, *, first_index: int = 0, seed: int = 0) -> Any:
    """Digest a tensor, without waiting for the device.

    Args:
        bits: int8, int16 or int32.
        first_index: index of the first element within its tensor; a multiple of the number
            of elements in eight bytes.
        seed: seed of the tensor, modulo 2^64.

    Returns:
        (2,) int64 with the bits of two u64.
    """
    row = row_of(bits)
    width = 8 * row.element_size()
    sums = torch.zeros(2, dtype=torch.int64, device=row.device)
    seed &= _MASK64
    if count := row.numel():
        with torch.cuda.device_of(row):
            digest_kernel[(-(-count // TILE.value),)](
                row,
                sums,
                count,
                first_index // (64 // width),
                seed - (seed >> 63 << 64),  # the same bits as a signed number
                width=width,
                **LAUNCH,
            )
    return sums
