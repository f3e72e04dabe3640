"""Digest tensors: two sums modulo 2^64 that do not depend on how the tensor is split."""

from typing import Any

import torch
import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.box import boxes_of
from rose.kernels.tile import LAUNCH, TILE, load_bits, place

FIRST_STRIDE = tl.constexpr(0x9E3779B97F4A7C15)
SECOND_STRIDE = tl.constexpr(0xD1B54A32D192ED03)


@triton.jit
def mix(x: tl.tensor) -> tl.tensor:
    """Spread each bit of 64 over all of them; x is uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def mixed_words(
    bits: tl.tensor,
    elements: tl.tensor,
    first_word: tl.tensor,
    seed: tl.tensor,
    width: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Return what each word of a tile adds to the two sums.

    `bits` is (TILE,) int32, zero from `elements` on; words that begin there add nothing.
    """
    in_word: tl.constexpr = 64 // width
    parts = tl.reshape(bits.to(tl.uint32).to(tl.uint64), (TILE // in_word, in_word))
    word = tl.sum(parts << (tl.arange(0, in_word) * width).to(tl.uint64)[None, :], 1)
    lane = tl.arange(0, TILE // in_word)
    number = (first_word + lane + 1).to(tl.uint64)  # (i + 1)
    keyed = word + seed.to(tl.int64).to(tl.uint64)
    first = mix(keyed + number * FIRST_STRIDE)
    second = mix(keyed + number * SECOND_STRIDE)
    is_there = lane * in_word < elements
    nothing = tl.zeros((TILE // in_word,), tl.uint64)
    return tl.where(is_there, first, nothing), tl.where(is_there, second, nothing)


@triton.jit
def add_to_digest(digest: tl.tensor, first: tl.tensor, second: tl.tensor) -> None:
    """Add a program's share to the pair; sums modulo 2^64 come out the same in any order."""
    tl.atomic_add(digest, tl.sum(first, 0).to(tl.int64), sem="relaxed")
    tl.atomic_add(digest + 1, tl.sum(second, 0).to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["count", "first_word", "seed"])
def digest_kernel(
    bits: tl.tensor,
    box: tl.tuple,
    digest: tl.tensor,
    count: tl.int64,
    first_word: tl.int64,
    seed: tl.int64,
    width: tl.constexpr,
) -> None:
    """One program per tile."""
    at = tl.program_id(0).to(tl.int64) * TILE
    lane = tl.arange(0, TILE)
    elements = tl.minimum(count - at, TILE).to(tl.int32)
    tile = load_bits(place(bits, at, lane, box), lane < elements, width)
    first, second = mixed_words(tile, elements, first_word + at // (64 // width), seed, width)
    add_to_digest(digest, first, second)


def digest(bits: Any, *, first_index: int = 0, seed: int = 0) -> Any:
    """Digest a tensor; nothing waits for the device.

    Args:
        bits: elements of 8, 16 or 32 bits, aligned to their size; a box, see `rose.kernels.box`.
        first_index: where they start in their tensor, at a border of words of eight bytes.
        seed: of their tensor, modulo 2^64.

    Returns:
        (2,) int64 that holds the bits of two u64.

    Raises:
        InvalidArgument: `bits` is of another type, or `first_index` is inside a word.
    """
    part = operands.bits_of("bits", bits)
    width = operands.width_of(part)
    word = operands.first_word(first_index, width)
    (box,) = boxes_of(bits=part)
    sums = torch.zeros(2, dtype=torch.int64, device=part.device)
    count = part.numel()
    if count:
        with operands.on_device_of(part):
            digest_kernel[(-(-count // TILE.value),)](
                part, box, sums, count, word, operands.signed64(seed), width=width, **LAUNCH
            )
    return sums
