"""Pack what changed between new weights and the shadow into delta blocks, and move the shadow."""

from typing import Any

import torch
import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.blocks import PackedBlocks
from rose.kernels.change_key import change_key
from rose.kernels.digest import add_to_digest, mixed_words
from rose.kernels.gap_code import (
    DEFERRED,
    EMPTY,
    GAP,
    RAW,
    clear,
    layout,
    low_bits,
    set_field,
    set_position,
)
from rose.kernels.tile import LAUNCH, TILE, load_bits


@triton.jit
def compare(
    new: tl.tensor,
    shadow: tl.tensor,
    at: tl.tensor,
    elements: tl.tensor,
    limit: tl.tensor,
) -> tuple[tl.tensor, ...]:
    """Return of a tile: new bits, old bits, which are sent, and which of those are exceptions.

    `limit` is None, or what a change's key must reach.
    """
    lane = at + tl.arange(0, TILE)
    is_inside = lane < elements
    after = load_bits(new, lane, is_inside)
    before = load_bits(shadow, lane, is_inside)
    is_sent = after != before
    if limit is not None:
        is_sent = is_sent & (change_key(after, before) >= limit)
    step = (after - before) & 0xFFFF
    return after, before, is_sent, is_sent & (step != 1) & (step != 0xFFFF)


@triton.jit
def write_gap(
    section: tl.tensor,
    elements: tl.tensor,
    changed: tl.tensor,
    exceptions: tl.tensor,
    position: tl.tensor,
    rank: tl.tensor,
    exception_rank: tl.tensor,
    after: tl.tensor,
    before: tl.tensor,
    is_sent: tl.tensor,
    is_exception: tl.tensor,
) -> None:
    """Write a tile of a GAP block, of which every lane knows its ranks, into zeroed words."""
    lows_at, signs_at, ranks_at, rank_lows_at, values_at, _ = layout(elements, changed, exceptions)
    low = low_bits(elements, changed)
    set_position(section, section + lows_at, rank, position, low, is_sent)
    is_down = is_sent & (((after - before) & 0xFFFF) == 0xFFFF)
    set_field(section + signs_at, rank, 1, is_down.to(tl.int32), is_down)
    if exceptions > 0:
        ranks, rank_lows = section + ranks_at, section + rank_lows_at
        low = low_bits(changed, exceptions)
        set_position(ranks, rank_lows, exception_rank, rank, low, is_exception)
        set_field(section + values_at, exception_rank, 16, after ^ before, is_exception)


@triton.jit(do_not_specialize=["count", "arena_words", "first_word", "seed"])
def delta_pack_kernel(
    new: tl.tensor,
    shadow: tl.tensor,
    threshold: tl.tensor,
    entries: tl.tensor,
    offsets: tl.tensor,
    arena: tl.tensor,
    halves: tl.tensor,
    cursor: tl.tensor,
    digest: tl.tensor,
    count: tl.int64,
    arena_words: tl.int64,
    first_word: tl.int64,
    seed: tl.int64,
    block_elements: tl.constexpr,
) -> None:
    """One program per delta block: count, reserve, then write, move the shadow and digest it.

    `halves` is the arena as 16-bit elements. No program reads what another one wrote.
    """
    block = tl.program_id(0).to(tl.int64)
    new += block * block_elements
    shadow += block * block_elements
    elements = tl.minimum(count - block * block_elements, block_elements).to(tl.int32)
    limit = None
    if threshold is not None:
        limit = tl.load(threshold)

    sent_lanes = tl.zeros((TILE,), tl.int32)
    exception_lanes = tl.zeros((TILE,), tl.int32)
    for at in range(0, elements, TILE):
        after, before, is_sent, is_exception = compare(new, shadow, at, elements, limit)
        sent_lanes += is_sent.to(tl.int32)
        exception_lanes += is_exception.to(tl.int32)
    changed = tl.sum(sent_lanes, 0)
    exceptions = tl.sum(exception_lanes, 0)

    _, _, _, _, _, gap_words = layout(elements, tl.maximum(changed, 1), exceptions)
    raw_words = (elements + 1) // 2
    size = tl.where(changed > 0, tl.minimum(gap_words, raw_words), 0)
    is_any = size > 0
    offset = tl.atomic_add(cursor, size.to(tl.int64), mask=is_any, sem="relaxed")
    offset = tl.where(is_any, offset, 0)
    has_room = offset + size <= arena_words
    is_gap = is_any & has_room & (gap_words < raw_words)
    is_raw = is_any & has_room & (gap_words >= raw_words)
    kind = tl.where(is_gap, GAP, tl.where(is_raw, RAW, tl.where(is_any, DEFERRED, EMPTY)))
    fields = (
        (changed.to(tl.int64) << 4)
        | (tl.where(is_gap, exceptions, 0).to(tl.int64) << 24)
        | (size.to(tl.int64) << 44)
    )
    tl.store(entries + block, tl.where(has_room, fields, 0) | kind)
    tl.store(offsets + block, tl.where(has_room, offset, 0))
    if is_gap:
        clear(arena + offset, size)

    rank_base = 0
    exception_base = 0
    first_sums = tl.zeros((TILE // 4,), tl.uint64)
    second_sums = tl.zeros((TILE // 4,), tl.uint64)
    for at in range(0, elements, TILE):
        after, before, is_sent, is_exception = compare(new, shadow, at, elements, limit)
        lane = at + tl.arange(0, TILE)
        if is_gap:
            sent = is_sent.to(tl.int32)
            exception = is_exception.to(tl.int32)
            rank = rank_base + tl.cumsum(sent, 0) - sent
            exception_rank = exception_base + tl.cumsum(exception, 0) - exception
            write_gap(
                arena + offset,
                elements,
                changed,
                exceptions,
                lane,
                rank,
                exception_rank,
                after,
                before,
                is_sent,
                is_exception,
            )
            rank_base += tl.sum(sent, 0)
            exception_base += tl.sum(exception, 0)
        if is_raw:
            # An odd block's last half word is unused, and must be 0 like every unused bit.
            xor = tl.where(is_sent, after ^ before, 0).to(tl.int16)
            tl.store(halves + 2 * offset + lane, xor, mask=lane < 2 * size)
        is_sent = is_sent & has_room
        tl.store(shadow + lane, after.to(tl.int16), mask=is_sent)
        word = first_word + (block * block_elements + at) // 4
        kept = tl.where(is_sent, after, before)
        first, second = mixed_words(kept, elements - at, word, seed)
        first_sums += first
        second_sums += second
    add_to_digest(digest, first_sums, second_sums)


def delta_pack(
    new: Any,
    shadow: Any,
    *,
    block_elements: int = 65_536,
    threshold: Any = None,
    first_index: int = 0,
    seed: int = 0,
    arena_words: int | None = None,
) -> PackedBlocks:
    """Pack what changed from `shadow` to `new`, and move `shadow` to what is sent.

    Nothing waits for the device: the caller looks at the results when it must.

    Args:
        new: contiguous 16-bit elements at any 2-byte aligned address.
        shadow: the same number of the same; changed in place.
        block_elements: 65,536 or 16,384.
        threshold: int32 scalar on the device: only changes whose key reaches it are sent, see
            `topk_threshold`. None sends all.
        first_index: where the elements start in their tensor, for the digest; a multiple of 4.
        seed: of their tensor, for the digest.
        arena_words: what the payload may take; None is enough for any change.

    Raises:
        InvalidArgument: the two do not match, or a value is not one of those above.
    """
    operands.check_twins(new, shadow)
    operands.check_block_elements(block_elements)
    new_bits = operands.bits_of("new", new)
    shadow_bits = operands.bits_of("shadow", shadow)
    word = operands.first_word(first_index)
    if threshold is not None:
        operands.check_keys(new)
        operands.check_words("threshold", threshold, torch.int32, new)
    packed = operands.empty_blocks(new, block_elements, arena_words)
    blocks = packed.entries.numel()
    if blocks:
        with operands.on_device_of(new):
            delta_pack_kernel[(blocks,)](
                new_bits,
                shadow_bits,
                threshold,
                packed.entries,
                packed.offsets,
                packed.arena,
                packed.arena.view(torch.int16),
                packed.words,
                packed.digest,
                new.numel(),
                packed.arena.numel(),
                word,
                operands.signed64(seed),
                block_elements=block_elements,
                **LAUNCH,
            )
    return packed


@triton.jit
def gather_kernel(
    entries: tl.tensor,
    offsets: tl.tensor,
    arena: tl.tensor,
    ends: tl.tensor,
    payload: tl.tensor,
) -> None:
    """One program per delta block copies its words to where the table's order puts them."""
    block = tl.program_id(0).to(tl.int64)
    size = ((tl.load(entries + block) >> 44) & 0xFFFFF).to(tl.int32)
    arena += tl.load(offsets + block)
    payload += tl.load(ends + block) - size
    for at in range(0, size, TILE):
        word = at + tl.arange(0, TILE)
        tl.store(payload + word, tl.load(arena + word, mask=word < size), mask=word < size)


def gather(packed: PackedBlocks) -> PackedBlocks:
    """Put the payload into the order of the table: the first `words` words are the delta's.

    The arena of the result is as long as the one before, because its length is not known until the
    device is waited for; what lies after `words` is not written.
    """
    blocks = packed.entries.numel()
    if not blocks:
        return packed
    payload = torch.empty_like(packed.arena)
    ends = ((packed.entries >> 44) & 0xFFFFF).cumsum(0)
    with operands.on_device_of(payload):
        gather_kernel[(blocks,)](
            packed.entries, packed.offsets, packed.arena, ends, payload, **LAUNCH
        )
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    return PackedBlocks(packed.entries, starts, payload, ends[-1], packed.digest)
