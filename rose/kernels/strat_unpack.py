"""Make of what crossed a link the delta that was recoded for it."""

from typing import Any

import torch
import triton
import triton.language as tl

from rose.kernels import operands
from rose.kernels.block_body import changes_at, fields_of
from rose.kernels.block_changes import PROGRAMS
from rose.kernels.block_check import are_sections_sound, are_sizes_sound, is_tail_clear
from rose.kernels.blocks import PackedBlocks
from rose.kernels.class_code import (
    CLASSES,
    STRAT,
    is_in_bitmap,
    layout_of_class,
    of_class,
    position_bits,
    rule_of,
    take_gamma,
)
from rose.kernels.classes import ClassRule, class_order, packed_widths
from rose.kernels.delta_pack import delta_pack
from rose.kernels.gap_code import words
from rose.kernels.tile import LAUNCH, TILE, store_bits


@triton.jit
def read_counts(
    section: tl.tensor, end: tl.tensor, members: tl.tensor, is_all: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Read what the stream says of each class before bit `end`.

    Returns changed, listed and large of all classes, where the sections begin, and 0 if each count
    is possible.
    """
    lane = tl.arange(0, CLASSES)
    changed = tl.zeros((CLASSES,), tl.int32)
    listed = tl.zeros((CLASSES,), tl.int32)
    large = tl.zeros((CLASSES,), tl.int32)
    at = tl.min(tl.zeros((CLASSES,), tl.int32), 0)
    faults = 0
    for c in range(CLASSES):
        k, at = take_gamma(section, at, end, end >= 0)
        every = of_class(c, is_all) > 0
        e, at = take_gamma(section, at, end, (k > 0) & (every == 0))
        e = tl.where(every, k, e)
        f, at = take_gamma(section, at, end, e > 0)
        is_fault = (k > of_class(c, members)) | (e > k) | (f > e) | (at > end)
        faults += is_fault.to(tl.int32)
        is_this = lane == c
        changed += tl.where(is_this, k, 0)
        listed += tl.where(is_this, e, 0)
        large += tl.where(is_this, f, 0)
    return changed, listed, large, at, faults


@triton.jit
def read_class(
    section: tl.tensor,
    start: tl.tensor,
    marks: tl.tensor,
    large_marks: tl.tensor,
    differences: tl.tensor,
    members: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    m: tl.tensor,
    large: tl.tensor,
    is_all: tl.tensor,
    width: tl.constexpr,
) -> tl.tensor:
    """Write the differences of a class that changes, whose sections are inside the payload.

    Returns whether the class is sound; of one that is not nothing is written.
    """
    sections = layout_of_class(start, members, changed, listed, m, large, is_all, width)
    least = tl.where(is_all > 0, 1, 2)
    has_ranks = is_all == 0
    is_bitmap = is_in_bitmap(members, changed)
    is_good = are_sections_sound(
        section,
        start,
        sections,
        is_bitmap,
        members,
        changed,
        listed,
        m,
        large,
        has_ranks,
        width,
        False,
    )
    # Marks are written by sections that are sound only: within their bounds.
    if is_good:
        is_good = are_sizes_sound(
            section,
            start,
            sections,
            marks,
            large_marks,
            is_bitmap,
            members,
            changed,
            listed,
            m,
            large,
            least,
            width,
        )
    if is_good:
        rank_base = 0
        listed_base = 0
        large_base = 0
        for at in range(0, position_bits(members, changed), TILE):
            is_set, _, position, is_down, is_listed, is_large, _, magnitude = changes_at(
                section,
                start,
                sections,
                marks,
                large_marks,
                at,
                (rank_base, listed_base, large_base),
                is_bitmap,
                members,
                changed,
                listed,
                m,
                large,
                width,
            )
            change = tl.where(is_listed, magnitude + least, 1)
            change = tl.where(is_down, -change, change)
            store_bits(differences + position, change, is_set, width)
            rank_base += tl.sum(is_set.to(tl.int32), 0)
            listed_base += tl.sum(is_listed.to(tl.int32), 0)
            large_base += tl.sum(is_large.to(tl.int32), 0)
    return is_good


@triton.jit
def read_block(
    section: tl.tensor,
    size: tl.tensor,
    changed_in_all: tl.tensor,
    marks: tl.tensor,
    large_marks: tl.tensor,
    differences: tl.tensor,
    members: tl.tensor,
    m: tl.tensor,
    is_all: tl.tensor,
    width: tl.constexpr,
) -> tl.tensor:
    """Read a STRAT block of `size` words; returns 0 if it is sound."""
    changed, listed, large, at, faults = read_counts(section, 32 * size, members, is_all)
    if faults == 0:
        zeros = tl.zeros((CLASSES,), tl.int32)
        _, _, _, _, _, _, _, _, _, bits = layout_of_class(
            zeros, members, changed, listed, m, large, is_all, width
        )
        bits = tl.where(changed > 0, bits, 0)
        starts = at + tl.cumsum(bits, 0) - bits
        end = at + tl.sum(bits, 0)
        is_whole = (words(end) == size) & (tl.sum(changed, 0) == changed_in_all)
        faults += (is_whole == 0).to(tl.int32)
        if is_whole:
            faults += (is_tail_clear(section, 0, end) == 0).to(tl.int32)
            first = 0
            for c in range(CLASSES):
                n, k = of_class(c, members), of_class(c, changed)
                if k > 0:
                    is_good = read_class(
                        section,
                        of_class(c, starts),
                        marks,
                        large_marks,
                        differences + first,
                        n,
                        k,
                        of_class(c, listed),
                        of_class(c, m),
                        of_class(c, large),
                        of_class(c, is_all),
                        width,
                    )
                    faults += (is_good == 0).to(tl.int32)
                first += n
    return faults


@triton.jit(do_not_specialize=["widths", "all_mask", "count", "payload_words", "blocks"])
def strat_unpack_kernel(
    entries: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    sizes: tl.tensor,
    differences: tl.tensor,
    marks: tl.tensor,
    errors: tl.tensor,
    widths: tl.int64,
    all_mask: tl.int32,
    count: tl.int64,
    payload_words: tl.int64,
    blocks: tl.int64,
    width: tl.constexpr,
    block_elements: tl.constexpr,
) -> None:
    """One program per delta block at a time; those of other kinds are passed by.

    `differences` are in the order of the classes, and 0 before. `errors` is unsigned, so that -1,
    for none, is more than any block.
    """
    program = tl.program_id(0).to(tl.int64)
    marks += program * (block_elements // 16)
    m, is_all = rule_of(widths, all_mask)
    for block in range(program, blocks, tl.num_programs(0)):
        base = block * block_elements
        elements = tl.minimum(count - base, block_elements).to(tl.int32)
        kind, changed, listed, size = fields_of(tl.load(entries + block))
        offset = tl.load(offsets + block)
        if kind == STRAT:
            is_counted = (changed > 0) & (changed <= elements) & (listed == 0)
            is_inside = (offset >= 0) & (offset <= payload_words - size)
            faults = 1
            if is_counted & is_inside & (size < words(width * elements)):
                members = tl.load(sizes + block * CLASSES + tl.arange(0, CLASSES))
                faults = read_block(
                    payload + offset,
                    size,
                    changed,
                    marks,
                    marks + block_elements // 32,
                    differences + base,
                    members,
                    m,
                    is_all,
                    width,
                )
            tl.atomic_min(errors, block, mask=faults > 0, sem="relaxed")


def strat_unpack(
    base: Any, entries: Any, offsets: Any, payload: Any, *, block_elements: int, rule: ClassRule
) -> tuple[PackedBlocks, Any]:
    """Make of what crossed a link the delta that `strat_pack` was given; nothing waits.

    Args:
        base: what the delta was made from; a box, see `rose.kernels.box`.
        entries: of the link's delta, as for `delta_apply`, like `offsets` and `payload`.
        offsets: as above.
        payload: as above.
        block_elements: 65,536 or 16,384.
        rule: of the link.

    Returns:
        The blocks, with a digest of zeros and an arena that may hold words of no block; and the
        lowest STRAT block that is bad, or -1. Blocks of other kinds are as they were, unchecked.

    Raises:
        InvalidArgument: the tensors do not go together, or one is of another type.
    """
    bits = operands.bits_of("base", base)
    operands.check_table(entries, offsets, payload, bits, block_elements)
    order = class_order(bits, rule, block_elements)
    placed = torch.zeros(bits.numel(), dtype=bits.dtype, device=bits.device)
    errors = torch.full((), -1, dtype=torch.int32, device=bits.device)
    blocks = entries.numel()
    if blocks:
        programs = min(blocks, PROGRAMS)
        room = programs * (block_elements // 16)
        with operands.on_device_of(bits):
            strat_unpack_kernel[(programs,)](
                entries,
                offsets,
                payload,
                order.sizes,
                placed,
                torch.empty(room, dtype=torch.int32, device=bits.device),
                errors.view(torch.uint32),
                packed_widths(rule),
                rule.all_mask,
                bits.numel(),
                payload.numel(),
                blocks,
                width=operands.width_of(bits),
                block_elements=block_elements,
                **LAUNCH,
            )
    differences = torch.empty_like(placed)
    differences[order.index] = placed
    again = delta_pack(differences, None, block_elements=block_elements)
    is_strat = (entries & 15) == STRAT.value
    unpacked = PackedBlocks(
        entries=torch.where(is_strat, again.entries, entries),
        offsets=torch.where(is_strat, again.offsets + payload.numel(), offsets),
        arena=torch.cat([payload, again.arena]),
        words=again.words + payload.numel(),
        digest=torch.zeros_like(again.digest),
    )
    return unpacked, errors
