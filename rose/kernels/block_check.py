"""Whether the blocks of a delta are sound, which is judged before anything is changed.

A block that passes is the only one that says what it says, but for what only the weights can tell.
Nothing is read outside the payload, whatever the table and the payload hold.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.gap_code import EMPTY, GAP, RAW, field, high_words, layout, low_bits, positions
from rose.kernels.tile import LAUNCH, TILE


@triton.jit
def fields_of(entry: tl.tensor) -> tuple[tl.tensor, ...]:
    """Return kind, changed, exceptions and words of an entry, in int32."""
    kind = (entry & 15).to(tl.int32)
    changed = ((entry >> 4) & 0xFFFFF).to(tl.int32)
    exceptions = ((entry >> 24) & 0xFFFFF).to(tl.int32)
    return kind, changed, exceptions, ((entry >> 44) & 0xFFFFF).to(tl.int32)


@triton.jit
def is_tail_clear(section: tl.tensor, bits: tl.tensor) -> tl.tensor:
    """Say whether what follows `bits` bits in their last word is 0."""
    used = bits & 31
    last = tl.load(section + (bits >> 5), mask=used > 0, other=0).to(tl.uint32)
    return (last >> used.to(tl.uint32)) == 0


@triton.jit
def is_elias_fano(
    high: tl.tensor, lows: tl.tensor, universe: tl.tensor, count: tl.tensor
) -> tl.tensor:
    """Say whether a section holds `count` positions, ascending and below `universe`, and no more.

    A bit that is set behind the high section is a position that is too large.
    """
    low = low_bits(universe, count)
    found = 0
    faults = 0
    for at in range(0, 32 * high_words(universe, count), TILE):
        is_set, rank, position = positions(high, lows, at, found, universe, count)
        # Neighbours in the high section share their high bits, so their low bits must ascend.
        bit = at + tl.arange(0, TILE)
        has_twin = (is_set & (bit > 0) & (rank < count)) & (
            field(high, bit - 1, 1, is_set & (bit > 0)) > 0
        )
        twin_low = field(lows, rank - 1, low, has_twin)
        is_fault = (is_set & (position >= universe)) | (
            has_twin & (twin_low >= (position & ((1 << low) - 1)))
        )
        faults += tl.sum(is_fault.to(tl.int32), 0)
        found += tl.sum(is_set.to(tl.int32), 0)
    return (found == count) & (faults == 0) & is_tail_clear(lows, count * low)


@triton.jit
def are_exceptions_plain(
    signs: tl.tensor,
    ranks: tl.tensor,
    lows: tl.tensor,
    values: tl.tensor,
    changed: tl.tensor,
    exceptions: tl.tensor,
) -> tl.tensor:
    """Say whether no exception has a sign, and each is a change, and a step of no element."""
    found = 0
    faults = 0
    for at in range(0, 32 * high_words(changed, exceptions), TILE):
        is_set, exception_rank, rank = positions(ranks, lows, at, found, changed, exceptions)
        has_sign = field(signs, rank, 1, is_set & (rank < changed)) > 0
        xor = field(values, exception_rank, 16, is_set & (exception_rank < exceptions))
        faults += tl.sum((has_sign | (is_set & (xor <= 1))).to(tl.int32), 0)
        found += tl.sum(is_set.to(tl.int32), 0)
    return faults == 0


@triton.jit
def is_gap_sound(
    section: tl.tensor, elements: tl.tensor, changed: tl.tensor, exceptions: tl.tensor
) -> tl.tensor:
    """Judge the sections of a GAP block, whose counts and size are sound."""
    lows_at, signs_at, ranks_at, rank_lows_at, values_at, _ = layout(elements, changed, exceptions)
    signs = section + signs_at
    is_good = is_elias_fano(section, section + lows_at, elements, changed)
    is_good = is_good & is_tail_clear(signs, changed)
    if exceptions > 0:
        ranks, lows, values = section + ranks_at, section + rank_lows_at, section + values_at
        is_good = is_good & is_elias_fano(ranks, lows, changed, exceptions)
        is_good = is_good & are_exceptions_plain(signs, ranks, lows, values, changed, exceptions)
        is_good = is_good & is_tail_clear(values, 16 * exceptions)
    return is_good


@triton.jit
def is_raw_sound(section: tl.tensor, elements: tl.tensor, changed: tl.tensor) -> tl.tensor:
    """Judge the elements of a RAW block, whose counts and size are sound."""
    changes = tl.zeros((TILE,), tl.int32)
    for at in range(0, elements, TILE):
        lane = at + tl.arange(0, TILE)
        changes += (field(section, lane, 16, lane < elements) != 0).to(tl.int32)
    return (tl.sum(changes, 0) == changed) & is_tail_clear(section, 16 * elements)


@triton.jit
def is_sound(
    entry: tl.tensor,
    offset: tl.tensor,
    payload: tl.tensor,
    payload_words: tl.tensor,
    elements: tl.tensor,
) -> tl.tensor:
    """Judge a block by its entry and by its payload, which starts at `offset`."""
    kind, changed, exceptions, size = fields_of(entry)
    raw_words = (elements + 1) // 2
    is_good = entry == EMPTY
    is_counted = (changed > 0) & (changed <= elements) & (exceptions <= changed)
    if is_counted & (offset >= 0) & (offset <= payload_words - size):
        section = payload + offset
        _, _, _, _, _, gap_words = layout(elements, changed, exceptions)
        if (kind == GAP) & (size == gap_words) & (size < raw_words):
            is_good = is_gap_sound(section, elements, changed, exceptions)
        if (kind == RAW) & (size == raw_words) & (exceptions == 0):
            is_good = is_raw_sound(section, elements, changed)
    return is_good


@triton.jit(do_not_specialize=["count", "payload_words"])
def check_blocks_kernel(
    entries: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    verdicts: tl.tensor,
    errors: tl.tensor,
    count: tl.int64,
    payload_words: tl.int64,
    block_elements: tl.constexpr,
) -> None:
    """One program per delta block writes whether it is sound.

    `errors` is unsigned, so that -1, for none, is more than any block.
    """
    block = tl.program_id(0).to(tl.int64)
    elements = tl.minimum(count - block * block_elements, block_elements).to(tl.int32)
    entry = tl.load(entries + block)
    offset = tl.load(offsets + block)
    is_good = is_sound(entry, offset, payload, payload_words, elements)
    tl.store(verdicts + block, is_good.to(tl.int8))
    tl.atomic_min(errors, block.to(tl.uint32), mask=is_good == 0, sem="relaxed")


def check_blocks(
    entries: Any, offsets: Any, payload: Any, *, count: int, block_elements: int
) -> tuple[Any, Any]:
    """Judge the blocks of a table that was checked against `count` elements.

    Returns:
        (blocks,) int8, 1 for each block that is sound; and the lowest other one as int32, or -1.
    """
    verdicts = torch.empty(entries.numel(), dtype=torch.int8, device=entries.device)
    errors = torch.full((), -1, dtype=torch.int32, device=entries.device)
    if entries.numel():
        with operands.on_device_of(entries):
            check_blocks_kernel[(entries.numel(),)](
                entries,
                offsets,
                payload,
                verdicts,
                errors.view(torch.uint32),
                count,
                payload.numel(),
                block_elements=block_elements,
                **LAUNCH,
            )
    return verdicts, errors
