"""For each delta block, chooses the encoding with the fewest words and places its sections.

All blocks are planned at once, as torch vectors. The format is in `docs/protocol.md`, "Deltas".
"""

from dataclasses import dataclass
from typing import Any, Final

import torch

EMPTY, GAP, RAW, BITMAP = range(4)
_WIDTHS: Final = 32  # largest width of an element, in bits; m, bits per magnitude, is smaller
_BINS: Final = 2 * _WIDTHS


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Input of the encode and decode kernels, for each block.

    Args:
        entries: (blocks,) int64, the delta's table: one u64 for each block.
        sizes: (blocks,) int64, payload words of each block.
        table: (blocks, 24) int32, six groups of four columns. 0: kind, number of elements, number
            of changes, number of listed sizes. 1: m, the bits per magnitude; number of large
            magnitudes; starts of signs and of the shape. 2: starts of magnitudes and of large
            magnitudes; least listed size; the constant 1. 3 to 5: positions, ranks and large ranks,
            each as in `tile.set_positions`. A start counts words from the start of the block's
            payload.
    """

    entries: Any
    sizes: Any
    table: Any


def _words(bits: Any) -> Any:
    return (bits + 31) >> 5


def _bit_width(number: Any) -> Any:
    """Return the bit length of numbers below 2^53.

    The length is read from the exponent of fp64, because ROCm has no `torch.frexp`.
    """
    return ((number.double().view(torch.int64) >> 52) - 1022).clamp(min=0)


def _low_bits(universe: Any, count: Any) -> Any:
    """Return floor(log2(floor(universe / count))); 0 where undefined."""
    return _bit_width((universe // count.clamp(min=1)).clamp(min=1)) - 1


def _elias_fano(universe: Any, count: Any) -> tuple[Any, Any]:
    """Return the sizes of the high and the low section, in words; 0 where `count` is 0."""
    low = _low_bits(universe, count)
    high = count + ((universe - 1) >> low)
    return _words(high) * (count > 0), _words(count * low)


def elements_of(count: int, block_elements: int, device: Any) -> Any:
    """Return the number of elements of each block."""
    starts = torch.arange(0, count, block_elements, device=device)
    return (count - starts).clamp(max=block_elements)


def _table(
    kind: Any, elements: Any, changed: Any, listed: Any, m: Any, large: Any, width: int
) -> Any:
    is_bitmap, is_all = kind == BITMAP, listed == changed
    ranked = listed * ~is_all
    highs, lows = _elias_fano(elements, changed)
    sections = [
        torch.where(is_bitmap, _words(elements), highs),
        lows * ~is_bitmap,
        _words(changed),
        (listed > 0).long(),
        *_elias_fano(changed, ranked),
        _words(m * listed),
        *_elias_fano(listed, large),
        _words(width * large),
    ]
    sizes = torch.stack(sections)
    at = sizes.cumsum(0) - sizes
    one = torch.ones_like(m)
    columns = [
        *(kind, elements, changed, listed),
        *(m, large, at[2], at[3]),
        *(at[6], at[9], 2 - is_all.long(), one),
        *(at[0], at[1], _low_bits(elements, changed) * ~is_bitmap, 1 - is_bitmap.long()),
        *(at[4], at[5], _low_bits(changed, ranked), one),
        *(at[7], at[8], _low_bits(listed, large), one),
    ]
    return torch.stack(columns, 1).int()


def _best_m(count: Any, larger: Any, width: int) -> tuple[Any, Any, Any]:
    """Return the best m, its number of large magnitudes, and the words for all magnitudes.

    Args:
        count: (blocks,) number of magnitudes.
        larger: (blocks, widths) number of magnitudes that are 2^m or more.
        width: bits of an element.
    """
    m = torch.arange(width, device=larger.device)
    larger = larger[:, :width]
    highs, lows = _elias_fano(count[:, None], larger)
    sizes = _words(count[:, None] * m) + highs + lows + _words(width * larger)
    # The lower part of each number is m, so among equal sizes the least m is chosen.
    best = (sizes * _WIDTHS + m).amin(1)
    chosen = best % _WIDTHS
    return chosen, larger.gather(1, chosen[:, None])[:, 0], best // _WIDTHS


def _histogram(differences: Any, block_elements: int, blocks: int) -> Any:
    """Count the sizes of each block's changes, as needed to choose m.

    The bin of a size is twice the bit length of size - 1, minus 1 if size - 1 is a power of two,
    because size - 2 then has one bit fewer. So one histogram serves both kinds of magnitudes,
    size - 1 and size - 2.

    Returns:
        (blocks, 2 * 32) int64.
    """
    places = differences.nonzero()[:, 0]
    difference = differences[places].long()
    beyond = torch.where(difference < 0, ~difference, difference - 1)
    is_power = (beyond > 0) & ((beyond & (beyond - 1)) == 0)
    bins = places // block_elements * _BINS + 2 * _bit_width(beyond) - is_power.long()
    return torch.bincount(bins, minlength=blocks * _BINS).view(blocks, _BINS)


def plan_to_write(differences: Any, block_elements: int) -> BlockPlan:
    """Choose the encoding of each block of a row of differences, (count,) int8, int16 or int32."""
    width = 8 * differences.element_size()
    elements = elements_of(len(differences), block_elements, differences.device)
    histogram = _histogram(differences, block_elements, len(elements))
    pairs = histogram.view(-1, _WIDTHS, 2)
    changed = histogram.sum(1)
    few_larger = changed[:, None] - pairs.sum(2).cumsum(1)
    # A size - 1 of 2^m is large, but the size - 2 of the same change is not.
    every_larger = few_larger + pairs[:, :, 1]
    few = changed - histogram[:, 0]
    every_m, every_large, every_words = _best_m(changed, every_larger, width)
    few_m, few_large, few_words = _best_m(few, few_larger, width)
    few_words = (few_words + sum(_elias_fano(changed, few)) + 1) * (few > 0)
    # All changes are listed if none has size 1, or if listing all takes fewer words. A magnitude is
    # then size - 1.
    is_all = (few == changed) | (every_words + 1 < few_words)
    body = _words(changed) + torch.where(is_all, every_words + 1, few_words)

    gap = sum(_elias_fano(elements, changed)) + body
    kinds = torch.stack([_words(width * elements), gap, _words(elements) + body])
    order = torch.arange(3, device=kinds.device)[:, None]
    best = (kinds * 4 + order).amin(0)  # the first among equals
    kind = torch.tensor([RAW, GAP, BITMAP], device=kinds.device)[best & 3] * (changed > 0)
    size = (best >> 2) * (changed > 0)
    listed = torch.where(is_all, changed, few) * (kind != RAW)
    m, large = torch.where(is_all, every_m, few_m), torch.where(is_all, every_large, few_large)
    entries = kind | (changed << 4) | (listed << 24) | (size << 44)
    return BlockPlan(entries, size, _table(kind, elements, changed, listed, m, large, width))


def plan_to_read(entries: Any, offsets: Any, payload: Any, elements: Any, width: int) -> BlockPlan:
    """Find the sections of sound blocks whose payloads start at `offsets`.

    Does not wait for the device.
    """
    kind, changed = entries & 15, (entries >> 4) & 0xFFFFF
    listed, sizes = (entries >> 24) & 0xFFFFF, (entries >> 44) & 0xFFFFF
    none = torch.zeros_like(entries)
    shape_at = _table(kind, elements, changed, listed, none, none, width)[:, 7]
    has_shape = listed > 0
    # Blocks without a shape read word 0: selecting those with a shape would wait for the device.
    shape = payload[(offsets + shape_at) * has_shape].long() * has_shape if len(payload) else none
    m, large = shape & 0xFF, (shape >> 8) & 0xFFFFFF
    return BlockPlan(entries, sizes, _table(kind, elements, changed, listed, m, large, width))
