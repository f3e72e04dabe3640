"""What follows the positions of a GAP or BITMAP block: how long each section is, and the best m."""

import triton
import triton.language as tl

from rose.kernels.gap_code import bit_width, elias_fano_words, high_bits, low_bits, words

BINS = tl.constexpr(64)
WIDTHS = tl.constexpr(32)  # m is below the width of an element, which is at most this


@triton.jit
def layout_to_shape(
    is_bitmap: tl.tensor, elements: tl.tensor, changed: tl.tensor
) -> tuple[tl.tensor, ...]:
    """Return where low positions, signs and shape begin, in words. `changed` is at least 1."""
    lows_at = words(tl.where(is_bitmap, elements, high_bits(elements, changed)))
    lows = tl.where(is_bitmap, 0, changed * low_bits(elements, changed))
    signs_at = lows_at + words(lows)
    return lows_at, signs_at, signs_at + words(changed)


@triton.jit
def layout(
    is_bitmap: tl.tensor,
    elements: tl.tensor,
    changed: tl.tensor,
    listed: tl.tensor,
    m: tl.tensor,
    large: tl.tensor,
    width: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Return where the sections after the high positions begin, in words, and where all ends.

    Low positions, signs, shape, high ranks, low ranks, magnitudes, high large ranks, low large
    ranks, large, end. `changed` is at least 1.
    """
    lows_at, signs_at, shape_at = layout_to_shape(is_bitmap, elements, changed)
    ranks_at = shape_at + (listed > 0).to(tl.int32)
    ranked = tl.maximum(listed, 1)
    has_ranks = (listed > 0) & (listed < changed)
    rank_lows_at = ranks_at + tl.where(has_ranks, words(high_bits(changed, ranked)), 0)
    rank_lows = tl.where(has_ranks, listed * low_bits(changed, ranked), 0)
    magnitudes_at = rank_lows_at + words(rank_lows)
    large_ranks_at = magnitudes_at + words(m * listed)
    counted = tl.maximum(large, 1)
    large_highs = tl.where(large > 0, high_bits(ranked, counted), 0)
    large_lows_at = large_ranks_at + words(large_highs)
    large_at = large_lows_at + words(large * low_bits(ranked, counted))
    end = large_at + words(width * large)
    return (
        lows_at,
        signs_at,
        shape_at,
        ranks_at,
        rank_lows_at,
        magnitudes_at,
        large_ranks_at,
        large_lows_at,
        large_at,
        end,
    )


@triton.jit
def signed_difference(after: tl.tensor, before: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """Return after - before modulo 2^width as a signed number; both hold an element's bits."""
    return ((after - before) << (32 - width)) >> (32 - width)


@triton.jit
def beyond_one(difference: tl.tensor) -> tl.tensor:
    """Return by how much the size of a difference that is not 0 is above 1, below 2^31."""
    return tl.where(difference < 0, ~difference, difference - 1)


@triton.jit
def size_histogram(beyond: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Count sizes by what the best m needs to know of them.

    A bin is twice the bits of size - 1, and one less where that is a power of two: then the bits of
    size - 2 are one fewer. So one histogram is of the magnitudes of either way to list them.
    """
    is_power = (beyond > 0) & ((beyond & (beyond - 1)) == 0)
    return tl.histogram(2 * bit_width(beyond) - is_power.to(tl.int32), BINS, mask)


@triton.jit
def best_m(
    count: tl.tensor, larger: tl.tensor, width: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return m, how many magnitudes are large with it, and the words that all of them take.

    `larger` is (WIDTHS,), how many of the `count` magnitudes are 2^m or more.
    """
    m = tl.arange(0, WIDTHS)
    counted = tl.maximum(larger, 1)
    larges = elias_fano_words(tl.maximum(count, 1), counted) + words(width * larger)
    size = words(count * m) + tl.where(larger > 0, larges, 0)
    # The least m of equals, because it is the lower part of the number.
    best = tl.min(tl.where(m < width, size * WIDTHS + m, 0x7FFFFFFF), 0)
    chosen = best % WIDTHS
    return chosen, tl.sum(tl.where(m == chosen, larger, 0), 0), best // WIDTHS


@triton.jit
def best_list(histogram: tl.tensor, width: tl.constexpr) -> tuple[tl.tensor, ...]:
    """Choose which changes to list, and how; `histogram` is of all changes of a block.

    Returns changed, listed, m, large, and the words of shape to large.
    """
    pairs = tl.reshape(histogram, (WIDTHS, 2))
    changed = tl.sum(histogram, 0)
    few_larger = changed - tl.cumsum(tl.sum(pairs, 1), 0)
    # A size - 1 that is 2^m is large, and the size - 2 below it is not.
    every_larger = few_larger + tl.sum(tl.where(tl.arange(0, 2)[None, :] == 1, pairs, 0), 1)
    few = changed - tl.sum(tl.where(tl.arange(0, BINS) == 0, histogram, 0), 0)

    every_m, every_large, every_words = best_m(changed, every_larger, width)
    few_m, few_large, few_words = best_m(few, few_larger, width)
    few_words += elias_fano_words(tl.maximum(changed, 1), tl.maximum(few, 1))
    few_words = tl.where(few > 0, few_words + 1, 0)
    # Changes of which each one is listed have the magnitude size - 1, however that came to be.
    is_all = (few == changed) | (every_words + 1 < few_words)
    return (
        changed,
        tl.where(is_all, changed, few),
        tl.where(is_all, every_m, tl.where(few > 0, few_m, 0)),
        tl.where(is_all, every_large, few_large),
        tl.where(is_all, every_words + 1, few_words),
    )
