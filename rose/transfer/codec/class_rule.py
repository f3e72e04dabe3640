"""Chooses a class rule for STRAT: the exponents of each class, and how a class codes change sizes.

The candidate that encodes a sample of the old and new weights in the fewest bits is chosen. So the
choice adapts to learning rate, weight scale and step count without knowing them.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rose import _core
from rose.transfer.codec.delta import BLOCK_ELEMENTS, CLASSES, ClassRule
from rose.transfer.codec.strat import host_row
from rose.transfer.codec.tensor import TensorBits, bits_of, check_pair

SAMPLED_BLOCKS: Final = 64
_BLOCK: Final = BLOCK_ELEMENTS[0]
# STRAT is worth the extra time of coding only if a delta shrinks below this share of its size.
_WORTH: Final = 0.98

# Columns of the histogram (csrc/transfer/class_histogram.h): first the number of elements; then the
# number of changes by the bit length of size - 1, from 0 to 32; then the number of changes of size
# 2 or more by the bit length of size - 2, from 0 to 32.
_WIDTHS: Final = 33
_ALL: Final = slice(1, 1 + _WIDTHS)
_FEW: Final = slice(1 + _WIDTHS, 1 + 2 * _WIDTHS)

# Exponents assumed for raw bits, (lowest bit, number of bits): those of the most common float of
# that width. int8 is missing because it holds integers.
_RAW_EXPONENTS: Final = {
    "uint8": (3, 4),
    "int16": (7, 8),
    "uint16": (7, 8),
    "int32": (23, 8),
    "uint32": (23, 8),
}

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChangeHistogram:
    """Changes in a sample, counted by old exponent and by size.

    Args:
        shift: number of bits of an element below its exponent.
        width: bits of an element.
        blocks: number of delta blocks in the sample.
        rows: (2^exponent_bits, columns) float64 counts; the first index is the old exponent.
    """

    shift: int
    exponent_bits: int
    width: int
    blocks: int
    rows: Numbers


def class_rule(new: Any, shadow: Any) -> ClassRule | None:
    """Choose the rule that encodes the delta from `shadow` to `new` in the fewest bits.

    Bits are estimated on at most 64 evenly spread blocks; the same tensors give the same rule. The
    tensors are only read.

    Returns:
        The rule; None if nothing changes, if STRAT would save less than 2 %, or for int8, which has
        no exponent.

    Raises:
        InvalidArgument: shape, dtype or device of the tensors differ.
    """
    one, other = bits_of("new", new), bits_of("shadow", shadow)
    check_pair(one, other)
    histogram = sample(one, other)
    if histogram is None or not histogram.rows[:, _ALL].any():
        return None
    origins = np.arange(1 << histogram.exponent_bits)
    rules, bits = rules_at(histogram, origins)
    best = int(bits.argmin())
    return rules[best] if bits[best] < _WORTH * _plain_bits(histogram) else None


def sample(new: TensorBits, shadow: TensorBits) -> ChangeHistogram | None:
    """Count changes in a sample of blocks; None if there are no elements or no exponent."""
    exponent = new.exponent or shadow.exponent or _RAW_EXPONENTS.get(new.dtype)
    fresh, old = host_row(new), host_row(shadow)
    if exponent is None or not len(old):
        return None
    shift, exponent_bits = exponent
    rows = np.zeros(_core.HISTOGRAM_COLUMNS << exponent_bits, np.uint64)
    starts = range(0, len(old), _BLOCK)
    count = min(len(starts), SAMPLED_BLOCKS)
    for i in range(count):
        at = starts[len(starts) * i // count]
        where = slice(at, at + _BLOCK)
        _core.add_to_histogram(
            fresh[where], old[where], rows, shift=shift, exponent_bits=exponent_bits
        )
    table = rows.reshape(1 << exponent_bits, -1).astype(np.float64)
    return ChangeHistogram(shift, exponent_bits, 8 * old.itemsize, count, table)


def rules_at(
    histogram: ChangeHistogram, origins: npt.NDArray[np.int64]
) -> tuple[list[ClassRule], Numbers]:
    """Return the best rule for each origin, and the bits that each rule needs for the sample."""
    below = np.vstack([np.zeros_like(histogram.rows[:1]), histogram.rows.cumsum(0)])
    # Class 0 has all exponents up to the origin, class 7 all from origin + 7 on.
    ends = np.minimum(origins[:, None] + np.arange(CLASSES + 1), len(histogram.rows))
    ends[:, 0], ends[:, CLASSES] = 0, len(histogram.rows)
    classes = np.diff(below[ends], axis=1)
    few, few_widths = _sizes_bits(classes, histogram, is_all=False)
    every, every_widths = _sizes_bits(classes, histogram, is_all=True)
    is_all = every < few
    widths = np.where(is_all, every_widths, few_widths)
    bits = (_places_bits(classes, histogram) + np.minimum(few, every)).sum(1)
    rules = [
        ClassRule(
            histogram.shift,
            histogram.exponent_bits,
            int(origin),
            sum(1 << c for c in range(CLASSES) if mask[c]),
            tuple(width.tolist()),
        )
        for origin, mask, width in zip(origins, is_all, widths, strict=True)
    ]
    return rules, bits


def _plain_bits(histogram: ChangeHistogram) -> float:
    """Return how many bits the sample's blocks would take without STRAT."""
    whole = histogram.rows.sum(0)[None, None]
    elements, changed = whole[0, 0, 0], whole[0, 0, _ALL].sum()
    sizes = [_sizes_bits(whole, histogram, is_all=one)[0][0, 0] for one in (False, True)]
    # Each section of a block ends with half a word of padding on average. Positions and signs are
    # two sections. Listed sizes add three, and a word that describes them. STRAT pads only once.
    has_sizes = whole[0, 0, _FEW].any()
    rest = changed + min(sizes) + histogram.blocks * (32 + (3 * 16 + 32) * has_sizes)
    positions = float(_elias_fano_bits(elements, changed))
    return float(min(histogram.width * elements, rest + min(positions, elements)))


def _places_bits(classes: Numbers, histogram: ChangeHistogram) -> Numbers:
    """Return how many bits each class takes for positions, signs and the number of changes."""
    elements, changed = classes[..., 0], classes[..., _ALL].sum(-1)
    ranks = np.minimum(_elias_fano_bits(elements, changed), elements)
    bits: Numbers = ranks + changed + _gamma_bits(changed, histogram)
    return bits


def _sizes_bits(
    classes: Numbers, histogram: ChangeHistogram, *, is_all: bool
) -> tuple[Numbers, npt.NDArray[np.int64]]:
    """Return the fewest bits for the sizes of each class, and the magnitude width that gives them.

    With `is_all` a class lists every size, otherwise only sizes other than 1.
    """
    changed = classes[..., _ALL].sum(-1)
    by_width = classes[..., _ALL if is_all else _FEW]
    listed = by_width.sum(-1)
    widths = np.arange(histogram.width)
    # A size that needs more bits than the magnitude width is large.
    large = listed[..., None] - by_width.cumsum(-1)[..., : histogram.width]
    bits = listed[..., None] * widths + histogram.width * large
    bits += _elias_fano_bits(listed[..., None], large)
    bits += np.where(listed[..., None] > 0, _gamma_bits(large, histogram), 0.0)
    best = bits.argmin(-1)
    least: Numbers = np.take_along_axis(bits, best[..., None], -1)[..., 0]
    if not is_all:
        counts = np.where(changed > 0, _gamma_bits(listed, histogram), 0.0)
        least = least + _elias_fano_bits(changed, listed) + counts
    return least, best


def _elias_fano_bits(universe: Numbers, count: Numbers) -> Numbers:
    """Estimate the bits of one Elias-Fano list per block.

    `universe` and `count` are sums over the blocks, which are assumed to be alike.
    """
    some = np.maximum(count, 1)
    low = np.floor(np.log2(np.maximum(universe / some, 1)))
    bits: Numbers = np.where(count > 0, count + universe / 2**low + count * low, 0.0)
    return bits


def _gamma_bits(count: Numbers, histogram: ChangeHistogram) -> Numbers:
    """Estimate the bits of one gamma-coded number per block; `count` is the sum of the numbers."""
    bits: Numbers = histogram.blocks * (2 * np.log2(count / histogram.blocks + 1) + 1)
    return bits
