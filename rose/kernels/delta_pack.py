"""Pack what changed between new weights and the shadow into delta blocks, and move the shadow."""

from typing import Any

import torch
import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.blocks import PackedBlocks
from rose.kernels.body_code import (
    BINS,
    best_list,
    beyond_one,
    layout,
    signed_difference,
    size_histogram,
)
from rose.kernels.box import boxes_of
from rose.kernels.change_key import change_key
from rose.kernels.digest import add_to_digest, mixed_words
from rose.kernels.gap_code import (
    BITMAP,
    DEFERRED,
    EMPTY,
    GAP,
    RAW,
    clear,
    elias_fano_words,
    low_bits,
    set_field,
    set_position,
    words,
)
from rose.kernels.tile import LAUNCH, TILE, load_bits, place, store_bits

AGE_MAX = tl.constexpr(operands.AGE_MAX)


@triton.jit
def age_of(ages: tl.tensor, base: tl.tensor, lane: tl.tensor, is_inside: tl.tensor) -> tl.tensor:
    """Load the ages of a tile; None where there are none."""
    age = ages
    if ages is not None:
        age = tl.load(ages + base + lane, mask=is_inside, other=0).to(tl.int32)
    return age


@triton.jit
def is_sent_of(
    after: tl.tensor,
    before: tl.tensor,
    limit: tl.tensor,
    age: tl.tensor,
    age_limit: tl.tensor,
) -> tl.tensor:
    """Say which elements are sent.

    `limit` is None, or what a change's key must reach unless its `age`, if there are any, says that
    it is due.
    """
    is_sent = after != before
    if limit is not None:
        reaches = change_key(after, before) >= limit
        if age is not None:
            reaches = reaches | (age >= age_limit)
        is_sent = is_sent & reaches
    return is_sent


@triton.jit
def kind_of(
    changed: tl.tensor, listed_words: tl.tensor, elements: tl.tensor, width: tl.constexpr
) -> tuple[tl.tensor, ...]:
    """Return the kind that takes the fewest words, of equals RAW, GAP, BITMAP; and the words."""
    body = words(changed) + listed_words
    raw = words(width * elements)
    gap = elias_fano_words(elements, tl.maximum(changed, 1)) + body
    bitmap = words(elements) + body
    size = tl.minimum(raw, tl.minimum(gap, bitmap))
    kind = tl.where(raw == size, RAW, tl.where(gap == size, GAP, BITMAP))
    return tl.where(changed > 0, kind, EMPTY), tl.where(changed > 0, size, 0)


@triton.jit(do_not_specialize=["age_limit", "count", "arena_words", "first_word", "seed"])
def delta_pack_kernel(
    new: tl.tensor,
    shadow: tl.tensor,
    new_box: tl.tuple,
    shadow_box: tl.tuple,
    threshold: tl.tensor,
    ages: tl.tensor,
    age_limit: tl.int32,
    entries: tl.tensor,
    offsets: tl.tensor,
    arena: tl.tensor,
    dense: tl.tensor,
    cursor: tl.tensor,
    digest: tl.tensor,
    count: tl.int64,
    arena_words: tl.int64,
    first_word: tl.int64,
    seed: tl.int64,
    width: tl.constexpr,
    block_elements: tl.constexpr,
) -> None:
    """One program per delta block: measure, reserve, then write, move the shadow and digest it.

    `dense` is the arena as elements. No program reads what another one wrote.
    """
    block = tl.program_id(0).to(tl.int64)
    base = block * block_elements
    elements = tl.minimum(count - base, block_elements).to(tl.int32)
    limit = None
    if threshold is not None:
        limit = tl.load(threshold)

    histogram = tl.zeros((BINS,), tl.int32)
    for at in range(0, elements, TILE):
        lane = at + tl.arange(0, TILE)
        is_inside = lane < elements
        after = load_bits(place(new, base, lane, new_box), is_inside, width)
        before = load_bits(place(shadow, base, lane, shadow_box), is_inside, width)
        age = age_of(ages, base, lane, is_inside)
        is_sent = is_sent_of(after, before, limit, age, age_limit)
        beyond = beyond_one(signed_difference(after, before, width))
        histogram += size_histogram(tl.where(is_sent, beyond, 0), is_sent)
    changed, listed, m, large, listed_words = best_list(histogram, width)

    kind, size = kind_of(changed, listed_words, elements, width)
    is_any = size > 0
    offset = tl.atomic_add(cursor, size.to(tl.int64), mask=is_any, sem="relaxed")
    offset = tl.where(is_any, offset, 0)
    has_room = offset + size <= arena_words
    is_raw = has_room & (kind == RAW)
    is_coded = has_room & is_any & (kind != RAW)
    is_bitmap = kind == BITMAP
    fields = (
        (changed.to(tl.int64) << 4)
        | (tl.where(is_coded, listed, 0).to(tl.int64) << 24)
        | (size.to(tl.int64) << 44)
    )
    tl.store(entries + block, tl.where(has_room, fields | kind, DEFERRED))
    tl.store(offsets + block, tl.where(has_room, offset, 0))

    section = arena + offset
    (
        lows_at,
        signs_at,
        shape_at,
        ranks_at,
        rank_lows_at,
        magnitudes_at,
        large_ranks_at,
        large_lows_at,
        large_at,
        _,
    ) = layout(is_bitmap, elements, tl.maximum(changed, 1), listed, m, large, width)
    low = tl.where(is_bitmap, 0, low_bits(elements, tl.maximum(changed, 1)))
    rank_low = low_bits(changed, tl.maximum(listed, 1))
    large_low = low_bits(listed, tl.maximum(large, 1))
    is_all = listed == changed
    if is_coded:
        clear(section, size)
        if listed > 0:
            tl.store(section + (shape_at >> 5), m | (large << 8))

    rank_base = 0
    listed_base = 0
    large_base = 0
    first_sums = tl.zeros((TILE * width // 64,), tl.uint64)
    second_sums = tl.zeros((TILE * width // 64,), tl.uint64)
    for at in range(0, elements, TILE):
        lane = at + tl.arange(0, TILE)
        is_inside = lane < elements
        after = load_bits(place(new, base, lane, new_box), is_inside, width)
        held_at = place(shadow, base, lane, shadow_box)
        before = load_bits(held_at, is_inside, width)
        age = age_of(ages, base, lane, is_inside)
        is_sent = is_sent_of(after, before, limit, age, age_limit)
        difference = signed_difference(after, before, width)
        is_moved = is_sent & has_room
        kept = tl.where(is_moved, after, before)
        store_bits(held_at, after, is_moved, width)
        if ages is not None:
            older = tl.where(after != kept, tl.minimum(age + 1, AGE_MAX), 0)
            tl.store(ages + base + lane, older.to(tl.uint8), mask=is_inside)
        word = first_word + (base + at) // (64 // width)
        first, second = mixed_words(kept, elements - at, word, seed, width)
        first_sums += first
        second_sums += second
        if is_coded:
            sent = is_sent.to(tl.int32)
            rank = rank_base + tl.cumsum(sent, 0) - sent
            rank_base += tl.sum(sent, 0)
            place_bit = tl.where(is_bitmap, lane, (lane >> low) + rank)
            set_field(section, 0, place_bit, 1, sent, is_sent)
            set_field(section, lows_at, rank, low, lane & ((1 << low) - 1), is_sent)
            is_down = is_sent & (difference < 0)
            set_field(section, signs_at, rank, 1, is_down.to(tl.int32), is_down)
            if listed > 0:
                beyond = beyond_one(difference)
                is_listed = is_sent & (is_all | (beyond > 0))
                ones = is_listed.to(tl.int32)
                listed_rank = listed_base + tl.cumsum(ones, 0) - ones
                listed_base += tl.sum(ones, 0)
                set_position(
                    section,
                    ranks_at,
                    rank_lows_at,
                    listed_rank,
                    rank,
                    rank_low,
                    is_listed & (is_all == 0),
                )
                magnitude = beyond - tl.where(is_all, 0, 1)
                is_large = is_listed & ((magnitude >> m) > 0)
                is_small = is_listed & (is_large == 0)
                set_field(section, magnitudes_at, listed_rank, m, magnitude, is_small)
                if large > 0:
                    larges = is_large.to(tl.int32)
                    large_rank = large_base + tl.cumsum(larges, 0) - larges
                    large_base += tl.sum(larges, 0)
                    set_position(
                        section,
                        large_ranks_at,
                        large_lows_at,
                        large_rank,
                        listed_rank,
                        large_low,
                        is_large,
                    )
                    set_field(section, large_at, large_rank, width, magnitude, is_large)
        if is_raw:
            # The last word's unused elements must be 0 like every unused bit.
            shown = tl.where(is_sent, difference, 0)
            in_word: tl.constexpr = 32 // width
            held = lane < in_word * size
            store_bits(dense + in_word * offset + lane, shown, held, width)
    add_to_digest(digest, first_sums, second_sums)


def delta_pack(
    new: Any,
    shadow: Any | None,
    *,
    block_elements: int = 65_536,
    threshold: Any = None,
    ages: Any = None,
    age_limit: int = operands.AGE_MAX,
    first_index: int = 0,
    seed: int = 0,
    arena_words: int | None = None,
) -> PackedBlocks:
    """Pack what changed from `shadow` to `new`, and move `shadow` to what is sent.

    Nothing waits for the device: the caller looks at the results when it must.

    Args:
        new: elements of 8, 16 or 32 bits, aligned to their size; a box, see `rose.kernels.box`.
        shadow: the same number of the same, changed in place; None for zeros.
        block_elements: 65,536 or 16,384.
        threshold: int32 scalar on the device: only changes whose key reaches it are sent, see
            `topk_threshold`. None sends all.
        ages: None, or (count,) uint8, changed in place: how many packs in a row left each element
            unsent. Elements of a block that was deferred are unsent.
        age_limit: the age at which a change is sent whatever its key.
        first_index: where the elements start in their tensor, for the digest; at a border of words.
        seed: of their tensor, for the digest.
        arena_words: what the payload may take; None is enough for any change.

    Raises:
        InvalidArgument: the two do not match, or a value is not one of those above.
    """
    if shadow is None:
        shadow = torch.zeros(new.shape, dtype=new.dtype, device=new.device)
    operands.check_twins(new, shadow)
    operands.check_block_elements(block_elements)
    operands.check_ages(ages, age_limit, new)
    new_bits = operands.bits_of("new", new)
    shadow_bits = operands.bits_of("shadow", shadow)
    width = operands.width_of(new_bits)
    word = operands.first_word(first_index, width)
    if threshold is not None:
        operands.check_keys(new)
        operands.check_words("threshold", threshold, torch.int32, new)
    new_box, shadow_box = boxes_of(new=new_bits, shadow=shadow_bits)
    packed = operands.empty_blocks(new_bits, block_elements, arena_words)
    blocks = packed.entries.numel()
    if blocks:
        with operands.on_device_of(new):
            delta_pack_kernel[(blocks,)](
                new_bits,
                shadow_bits,
                new_box,
                shadow_box,
                threshold,
                ages,
                age_limit,
                packed.entries,
                packed.offsets,
                packed.arena,
                packed.arena.view(new_bits.dtype),
                packed.words,
                packed.digest,
                new.numel(),
                packed.arena.numel(),
                word,
                operands.signed64(seed),
                width=width,
                block_elements=block_elements,
                **LAUNCH,
            )
    return packed
