"""Recode a delta for a link, class by class of the old exponents."""

from typing import Any

import torch
import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.blocks import PackedBlocks
from rose.kernels.body_code import beyond_one
from rose.kernels.class_code import (
    CLASSES,
    STRAT,
    gamma_bits,
    is_in_bitmap,
    layout_of_class,
    of_class,
    position_low_bits,
    put_gamma,
    rule_of,
)
from rose.kernels.classes import ClassRule, class_order, packed_widths
from rose.kernels.delta_merge import differences_of
from rose.kernels.gap_code import DEFERRED, clear, low_bits, set_field, set_position, words
from rose.kernels.tile import LAUNCH, TILE


@triton.jit
def count_class(
    differences: tl.tensor, members: tl.tensor, m: tl.tensor, is_all: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Return how many of a class's members change, are listed, and have a large magnitude."""
    changed = tl.zeros((TILE,), tl.int32)
    listed = tl.zeros((TILE,), tl.int32)
    large = tl.zeros((TILE,), tl.int32)
    for at in range(0, members, TILE):
        lane = at + tl.arange(0, TILE)
        difference = tl.load(differences + lane, mask=lane < members, other=0).to(tl.int32)
        beyond = beyond_one(difference)
        is_listed = (difference != 0) & ((is_all > 0) | (beyond > 0))
        changed += (difference != 0).to(tl.int32)
        listed += is_listed.to(tl.int32)
        magnitude = beyond - tl.where(is_all > 0, 0, 1)
        large += (is_listed & ((magnitude >> m) > 0)).to(tl.int32)
    return tl.sum(changed, 0), tl.sum(listed, 0), tl.sum(large, 0)


@triton.jit
def write_class(
    section: tl.tensor,
    start: tl.tensor,
    differences: tl.tensor,
    members: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    m: tl.tensor,
    large: tl.tensor,
    is_all: tl.tensor,
    width: tl.constexpr,
) -> None:
    """Write the sections of a class that changes, from bit `start` on, into zeroed words."""
    lows_at, signs_at, _, ranks_at, rank_lows_at, magnitudes_at, large_ranks_at, _, _, _ = (
        layout_of_class(start, members, changed, listed, m, large, is_all, width)
    )
    _, _, _, _, _, _, _, large_lows_at, large_at, _ = layout_of_class(
        start, members, changed, listed, m, large, is_all, width
    )
    low = position_low_bits(members, changed)
    rank_low = low_bits(changed, tl.maximum(listed, 1))
    large_low = low_bits(tl.maximum(listed, 1), tl.maximum(large, 1))
    rank_base = 0
    listed_base = 0
    large_base = 0
    for at in range(0, members, TILE):
        lane = at + tl.arange(0, TILE)
        difference = tl.load(differences + lane, mask=lane < members, other=0).to(tl.int32)
        is_sent = difference != 0
        sent = is_sent.to(tl.int32)
        rank = rank_base + tl.cumsum(sent, 0) - sent
        ones_before = tl.where(is_in_bitmap(members, changed), 0, rank)
        set_position(section, start, lows_at, ones_before, lane, low, is_sent)
        is_down = difference < 0
        set_field(section, signs_at, rank, 1, is_down.to(tl.int32), is_down)
        beyond = beyond_one(difference)
        is_listed = is_sent & ((is_all > 0) | (beyond > 0))
        ones = is_listed.to(tl.int32)
        listed_rank = listed_base + tl.cumsum(ones, 0) - ones
        is_ranked = is_listed & (is_all == 0)
        set_position(section, ranks_at, rank_lows_at, listed_rank, rank, rank_low, is_ranked)
        magnitude = beyond - tl.where(is_all > 0, 0, 1)
        is_large = is_listed & ((magnitude >> m) > 0)
        is_small = is_listed & (is_large == 0)
        set_field(section, magnitudes_at, listed_rank, m, magnitude, is_small)
        larges = is_large.to(tl.int32)
        large_rank = large_base + tl.cumsum(larges, 0) - larges
        set_position(
            section, large_ranks_at, large_lows_at, large_rank, listed_rank, large_low, is_large
        )
        set_field(section, large_at, large_rank, width, magnitude, is_large)
        rank_base += tl.sum(sent, 0)
        listed_base += tl.sum(ones, 0)
        large_base += tl.sum(larges, 0)


@triton.jit
def write_stream(
    section: tl.tensor,
    differences: tl.tensor,
    members: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    m: tl.tensor,
    large: tl.tensor,
    is_all: tl.tensor,
    starts: tl.tensor,
    width: tl.constexpr,
) -> None:
    """Write the counts of all classes, then their sections, which begin at `starts`."""
    at = 0
    first = 0
    for c in range(CLASSES):
        k, e, f = of_class(c, changed), of_class(c, listed), of_class(c, large)
        all_listed = of_class(c, is_all)
        n = of_class(c, members)
        at = put_gamma(section, at, k, k >= 0)
        at = put_gamma(section, at, e, (k > 0) & (all_listed == 0))
        at = put_gamma(section, at, f, e > 0)
        if k > 0:
            start = of_class(c, starts)
            bits = of_class(c, m)
            write_class(section, start, differences + first, n, k, e, bits, f, all_listed, width)
        first += n


@triton.jit(do_not_specialize=["widths", "all_mask", "arena_words"])
def strat_pack_kernel(
    entries: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    differences: tl.tensor,
    sizes: tl.tensor,
    link_entries: tl.tensor,
    link_offsets: tl.tensor,
    arena: tl.tensor,
    cursor: tl.tensor,
    widths: tl.int64,
    all_mask: tl.int32,
    arena_words: tl.int64,
    width: tl.constexpr,
    block_elements: tl.constexpr,
) -> None:
    """One program per delta block: count its classes, reserve, then write them or copy the block.

    `differences` are in the order of the classes.
    """
    block = tl.program_id(0).to(tl.int64)
    entry = tl.load(entries + block)
    from_words = ((entry >> 44) & 0xFFFFF).to(tl.int32)
    differences += block * block_elements
    lane = tl.arange(0, CLASSES)
    members = tl.load(sizes + block * CLASSES + lane)
    m, is_all = rule_of(widths, all_mask)
    changed = tl.zeros((CLASSES,), tl.int32)
    listed = tl.zeros((CLASSES,), tl.int32)
    large = tl.zeros((CLASSES,), tl.int32)
    first = 0
    for c in range(CLASSES):
        n = of_class(c, members)
        k, e, f = count_class(differences + first, n, of_class(c, m), of_class(c, is_all))
        is_this = lane == c
        changed += tl.where(is_this, k, 0)
        listed += tl.where(is_this, e, 0)
        large += tl.where(is_this, f, 0)
        first += n

    counts = gamma_bits(changed) + tl.where(listed > 0, gamma_bits(large), 0)
    counts += tl.where((changed > 0) & (is_all == 0), gamma_bits(listed), 0)
    zeros = tl.zeros((CLASSES,), tl.int32)
    _, _, _, _, _, _, _, _, _, bits = layout_of_class(
        zeros, members, changed, listed, m, large, is_all, width
    )
    bits = tl.where(changed > 0, bits, 0)
    starts = tl.sum(counts, 0) + tl.cumsum(bits, 0) - bits
    strat_words = words(tl.sum(counts + bits, 0))

    is_strat = strat_words < from_words
    size = tl.where(is_strat, strat_words, from_words)
    is_any = size > 0
    offset = tl.atomic_add(cursor, size.to(tl.int64), mask=is_any, sem="relaxed")
    offset = tl.where(is_any, offset, 0)
    has_room = offset + size <= arena_words
    recoded = (entry & (0xFFFFF << 4)) | (size.to(tl.int64) << 44) | STRAT
    tl.store(link_entries + block, tl.where(has_room, tl.where(is_strat, recoded, entry), DEFERRED))
    tl.store(link_offsets + block, tl.where(has_room, offset, 0))
    section = arena + offset
    if is_strat & has_room:
        clear(section, size)
        write_stream(
            section, differences, members, changed, listed, m, large, is_all, starts, width
        )
    if is_any & has_room & (is_strat == 0):
        plain = payload + tl.load(offsets + block)
        for at in range(0, size, TILE):
            word = at + tl.arange(0, TILE)
            tl.store(section + word, tl.load(plain + word, mask=word < size), mask=word < size)


def strat_pack(
    base: Any, entries: Any, offsets: Any, payload: Any, *, block_elements: int, rule: ClassRule
) -> tuple[PackedBlocks, Any]:
    """Recode the blocks of a delta that get smaller by it for a link; nothing waits.

    Args:
        base: what the delta was made from; a box, see `rose.kernels.box`.
        entries: of the delta, as for `delta_apply`, like `offsets` and `payload`.
        offsets: as above.
        payload: as above.
        block_elements: 65,536 or 16,384.
        rule: of the link.

    Returns:
        The blocks, with a digest of zeros, and the lowest bad block of the delta or -1; with a bad
        one, what was packed says nothing.

    Raises:
        InvalidArgument: the tensors do not go together, or one is of another type.
    """
    bits = operands.bits_of("base", base)
    delta = (entries, offsets, payload)
    differences, errors = differences_of(bits, delta, block_elements=block_elements)
    # Of a bad delta no block is read again: its table may say anything.
    sound = torch.where(errors < 0, entries, 0)
    order = class_order(bits, rule, block_elements)
    link = operands.empty_blocks(bits, block_elements, payload.numel())
    blocks = entries.numel()
    if blocks:
        with operands.on_device_of(bits):
            strat_pack_kernel[(blocks,)](
                sound,
                offsets,
                payload,
                differences[order.index],
                order.sizes,
                link.entries,
                link.offsets,
                link.arena,
                link.words,
                packed_widths(rule),
                rule.all_mask,
                link.arena.numel(),
                width=operands.width_of(bits),
                block_elements=block_elements,
                **LAUNCH,
            )
    return link, errors
