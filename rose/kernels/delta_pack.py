"""Pack: encode the differences between two versions as delta blocks."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from rose.kernels.block_plan import EMPTY, RAW, BlockPlan, plan_to_write
from rose.kernels.deltas import AGE_LIMIT
from rose.kernels.tile import (
    LAUNCH,
    TILE,
    ages_of,
    four,
    load_bits,
    parts_of,
    row_of,
    set_field,
    set_positions,
)
from rose.kernels.topk import change_keys

_EMPTY, _RAW = tl.constexpr(EMPTY), tl.constexpr(RAW)


@triton.jit
def ranked(is_one: tl.tensor, found: tl.tensor) -> tuple[tl.tensor, ...]:
    """Number the set lanes from `found` on, and return their ranks and the next number."""
    ones = is_one.to(tl.int32)
    return found + tl.cumsum(ones, 0) - ones, found + tl.sum(ones, 0)


@triton.jit
def delta_pack_kernel(
    differences: tl.tensor,
    table: tl.tensor,
    offsets: tl.tensor,
    payload: tl.tensor,
    width: tl.constexpr,
    block_elements: tl.constexpr,
) -> None:
    """One program per delta block writes the block's zeroed sections, tile by tile."""
    block = tl.program_id(0).to(tl.int64)
    kind, elements, _, listed = four(table, block, 0)
    m, large, signs_at, shape_at = four(table, block, 1)
    magnitudes_at, large_at, least, _ = four(table, block, 2)
    section = payload + tl.load(offsets + block)
    if (kind != _RAW) & (listed > 0):
        tl.store(section + shape_at, m | (large << 8))
    rank_base = 0
    listed_base = 0
    large_base = 0
    for at in range(0, elements * (kind != _EMPTY).to(tl.int32), TILE):
        lane = at + tl.arange(0, TILE)
        places = differences + block * block_elements + lane
        bits = load_bits(places, lane < elements, width)
        is_sent = bits != 0
        if kind == _RAW:
            set_field(section, lane, width, bits, is_sent)
        else:
            difference = (bits << (32 - width)) >> (32 - width)
            rank, rank_base = ranked(is_sent, rank_base)
            set_positions(section, four(table, block, 3), rank, lane, is_sent)
            is_down = is_sent & (difference < 0)
            set_field(section + signs_at, rank, 1, is_down.to(tl.int32), is_down)
            # Size without overflow: the most negative difference has no positive counterpart.
            magnitude = tl.where(difference < 0, ~difference, difference - 1) + 1 - least
            is_listed = is_sent & (magnitude >= 0)
            listed_rank, listed_base = ranked(is_listed, listed_base)
            is_rank = is_listed & (least == 2)
            set_positions(section, four(table, block, 4), listed_rank, rank, is_rank)
            is_large = is_listed & ((magnitude >> m) > 0)
            is_small = is_listed & (is_large == 0)
            set_field(section + magnitudes_at, listed_rank, m, magnitude, is_small)
            large_rank, large_base = ranked(is_large, large_base)
            set_positions(section, four(table, block, 5), large_rank, listed_rank, is_large)
            set_field(section + large_at, large_rank, width, magnitude, is_large)


def _encoded(differences: Any, plan: BlockPlan, *, block_elements: int) -> Any:
    """Return the payload of a row of differences, (words,) int32. Waits for the stream."""
    words = int(plan.sizes.sum())
    payload = torch.zeros(words, dtype=torch.int32, device=differences.device)
    if words:
        with torch.cuda.device_of(differences):
            delta_pack_kernel[(len(plan.sizes),)](
                differences,
                plan.table,
                plan.sizes.cumsum(0) - plan.sizes,
                payload,
                width=8 * differences.element_size(),
                block_elements=block_elements,
                **LAUNCH,
            )
    return payload


@dataclass(frozen=True, slots=True)
class Packing:
    """A delta, and what becomes of the tensors that it was packed from.

    Args:
        entries: (blocks,) int64, the delta's table: one u64 for each block.
        payload: (words,) int32 with the bits of u32 words.
        shadow: (count,) the shadow after the sent changes.
        ages: (count,) uint8, the ages after the pack, or None.
    """

    entries: Any
    payload: Any
    shadow: Any
    ages: Any


def delta_pack(
    new: Any, shadow: Any, *, block_elements: int, threshold: int, ages: Any, age_limit: int
) -> Packing:
    """Pack the changes from `shadow` to `new`; changes neither. Waits for the stream.

    Takes as much memory as the weights.

    Args:
        new: int8, int16 or int32.
        shadow: the old elements, of the same type and number.
        block_elements: 65,536 or 16,384.
        threshold: only changes with at least this key are sent; 0 sends all.
        ages: uint8 or int8 in the shape of `new`, see `topk.change_keys`; None to ignore ages.
        age_limit: age at which a change is sent whatever its key.
    """
    fresh, moved, aged = row_of(new), row_of(shadow).clone(), ages_of(ages)
    older = None if aged is None else torch.empty_like(aged)
    entries, payload = [moved[:0].long()], [moved[:0].int()]
    keys = change_keys(fresh, moved, ages=aged, age_limit=age_limit)
    for part in parts_of(len(fresh)):
        difference = fresh[part] - moved[part]
        sent = difference
        if threshold:
            sent = difference * (next(keys) >= threshold)
        plan = plan_to_write(sent, block_elements)
        entries.append(plan.entries)
        payload.append(_encoded(sent, plan, block_elements=block_elements))
        moved[part] += sent
        if aged is not None and older is not None:
            age = aged[part].clamp(max=AGE_LIMIT - 1) + 1
            older[part] = age * (sent != difference)
    return Packing(torch.cat(entries), torch.cat(payload), moved, older)
