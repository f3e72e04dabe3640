"""The slow truth of the delta codec: one element at a time where that is readable, NumPy elsewhere.

`docs/protocol.md`, "Deltas", is the format. Every twin (C++, CUDA, Triton) must give these bits.
What is packed here is read by `delta_reader`, which knows only the page.
An array of uint8, uint16 or uint32 says by its dtype how wide the elements are.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.reference import delta_reader

Bits = npt.NDArray[Any]
EMPTY, GAP, RAW, BITMAP, STRAT = range(5)
NOTHING_SENT = 1 << 15  # a threshold that no key reaches
MASK64 = (1 << 64) - 1


def words(bits: int) -> int:
    return -(-bits // 32)


# ---- sections of a payload ----------------------------------------------------------------------


def low_bits(universe: int, count: int) -> int:
    """Elias-Fano's split: the low bits that are stored plainly."""
    return (universe // count).bit_length() - 1


def elias_fano_words(universe: int, count: int) -> int:
    low = low_bits(universe, count)
    return words(count + ((universe - 1) >> low)) + words(count * low)


def to_words(bits: list[int]) -> list[int]:
    """Lay bits out, the first one lowest in the first word."""
    padded = bits + [0] * (-len(bits) % 32)
    return [
        sum(bit << i for i, bit in enumerate(padded[at : at + 32]))
        for at in range(0, len(padded), 32)
    ]


def fields(values: list[int], width: int) -> list[int]:
    """The bits of numbers of `width` bits each."""
    return [value >> i & 1 for value in values for i in range(width)]


def elias_fano_bits(universe: int, positions: list[int]) -> tuple[list[int], list[int]]:
    """The high and the low section of ascending positions."""
    low = low_bits(universe, len(positions))
    high = [0] * (len(positions) + ((universe - 1) >> low))
    for i, position in enumerate(positions):
        high[(position >> low) + i] = 1
    return high, fields([p & ((1 << low) - 1) for p in positions], low)


def elias_fano(universe: int, positions: list[int]) -> list[int]:
    high, low = elias_fano_bits(universe, positions)
    return to_words(high) + to_words(low)


# ---- differences --------------------------------------------------------------------------------


def signed(difference: int, width: int) -> tuple[int, int]:
    """(1 if it goes down, how far) of a difference modulo 2^width that is not 0."""
    if difference >> (width - 1):
        return 1, (1 << width) - difference
    return 0, difference


def magnitude_words(count: int, large: int, magnitude_bits: int, width: int) -> int:
    size = words(count * magnitude_bits)
    if large:
        size += elias_fano_words(count, large) + words(width * large)
    return size


def magnitude_bits(magnitudes: list[int], width: int) -> int:
    """The least of the widths from 0 to width - 1 for which the magnitudes take fewest words."""

    def size(m: int) -> int:
        large = sum(one >> m != 0 for one in magnitudes)
        return magnitude_words(len(magnitudes), large, m, width)

    return min(range(width), key=size)


@dataclass
class Listed:
    """Which changes have their size listed, and how."""

    ranks: list[int]
    magnitudes: list[int]
    bits: int
    words: int

    @staticmethod
    def of(ranks: list[int], sizes: list[int], width: int) -> "Listed":
        """Of the changes whose sizes are `sizes`, list those at `ranks`."""
        if not ranks:
            return Listed([], [], 0, 0)
        are_all = len(ranks) == len(sizes)
        magnitudes = [sizes[rank] - (1 if are_all else 2) for rank in ranks]
        m = magnitude_bits(magnitudes, width)
        large = sum(one >> m != 0 for one in magnitudes)
        size = 1 + magnitude_words(len(ranks), large, m, width)
        if not are_all:
            size += elias_fano_words(len(sizes), len(ranks))
        return Listed(ranks, magnitudes, m, size)


def listed_of(sizes: list[int], width: int) -> Listed:
    """List the changes that are no step of one; or all, where that takes fewer words."""
    few = Listed.of([rank for rank, size in enumerate(sizes) if size > 1], sizes, width)
    every = Listed.of(list(range(len(sizes))), sizes, width)
    return every if every.words < few.words else few


def body(signs: list[int], listed: Listed, width: int) -> list[int]:
    """What follows the positions in a GAP or BITMAP block."""
    payload = to_words(signs)
    if not listed.ranks:
        return payload
    m = listed.bits
    larges = [i for i, one in enumerate(listed.magnitudes) if one >> m]
    payload.append(m | len(larges) << 8)
    if len(listed.ranks) < len(signs):
        payload += elias_fano(len(signs), listed.ranks)
    payload += to_words(fields([0 if one >> m else one for one in listed.magnitudes], m))
    if larges:
        payload += elias_fano(len(listed.ranks), larges)
        payload += to_words(fields([listed.magnitudes[i] for i in larges], width))
    return payload


# ---- top-k --------------------------------------------------------------------------------------


def change_key(new: Bits, old: Bits) -> npt.NDArray[np.int64]:
    """How large a change of bf16 is: the top 15 bits of |new - old| as fp32, subnormals as zero."""

    def widened(bits: Bits) -> npt.NDArray[np.float32]:
        is_subnormal = (bits & 0x7F80) == 0
        wide = np.where(is_subnormal, bits & 0x8000, bits).astype(np.uint32) << 16
        return wide.view(np.float32)

    with np.errstate(all="ignore"):
        size = np.abs(widened(new) - widened(old))
    key = (size.view(np.uint32) >> 16).astype(np.int64) & 0x7FFF
    key[(key & 0x7F80) == 0] = 0
    key[np.isnan(size)] = 0x7FFF
    return key


@dataclass
class Ages:
    """For each element how many packs in a row left it unsent; at `limit` it is sent."""

    counts: npt.NDArray[np.uint8]
    limit: int


def sent(new: Bits, shadow: Bits, threshold: int, ages: Ages | None = None) -> npt.NDArray[Any]:
    is_sent = new != shadow
    if threshold > 0:
        reaches = change_key(new, shadow) >= threshold
        if ages is not None:
            reaches |= ages.counts >= ages.limit
        is_sent &= reaches
    return is_sent


def topk_threshold(new: Bits, shadow: Bits, budget: int, ages: Ages | None = None) -> int:
    """The smallest threshold >= 1 with which at most `budget` elements are sent."""
    keys = change_key(new, shadow)
    if ages is not None:
        keys[ages.counts >= ages.limit] = NOTHING_SENT
    keys = np.sort(keys[new != shadow])
    thresholds = np.arange(1, NOTHING_SENT)
    fits = len(keys) - np.searchsorted(keys, thresholds) <= budget
    return int(thresholds[fits][0]) if fits.any() else NOTHING_SENT


# ---- pack, apply, merge -------------------------------------------------------------------------


@dataclass
class Delta:
    count: int
    block_elements: int
    entries: list[int]
    payload: list[int]
    width: int = 16


def pack_block(differences: list[int], width: int) -> tuple[int, list[int]]:
    """One block: its entry and its payload. 0 is an element that is not sent."""
    elements = len(differences)
    positions = [i for i in range(elements) if differences[i]]
    if not positions:
        return 0, []
    moves = [signed(differences[i], width) for i in positions]
    signs, sizes = [sign for sign, _ in moves], [size for _, size in moves]
    listed = listed_of(sizes, width)
    rest = words(len(positions)) + listed.words
    cost = {
        RAW: words(width * elements),
        GAP: elias_fano_words(elements, len(positions)) + rest,
        BITMAP: words(elements) + rest,
    }
    kind = min(cost, key=lambda one: cost[one])  # the first of equals
    if kind == RAW:
        return entry_of(RAW, len(positions), 0, cost[RAW]), to_words(fields(differences, width))
    if kind == GAP:
        payload = elias_fano(elements, positions)
    else:
        payload = to_words([int(one != 0) for one in differences])
    payload += body(signs, listed, width)
    assert len(payload) == cost[kind]
    return entry_of(kind, len(positions), len(listed.ranks), cost[kind]), payload


def entry_of(kind: int, changed: int, listed: int, size: int) -> int:
    return kind | changed << 4 | listed << 24 | size << 44


def split_entry(entry: int) -> tuple[int, int, int, int]:
    """Kind, changed, listed, words."""
    return entry & 15, entry >> 4 & 0xFFFFF, entry >> 24 & 0xFFFFF, entry >> 44


def width_of(bits: Bits) -> int:
    return bits.dtype.itemsize * 8


def pack_differences(differences: Bits, block_elements: int) -> Delta:
    delta = Delta(len(differences), block_elements, [], [], width_of(differences))
    for at in range(0, len(differences), block_elements):
        entry, payload = pack_block(differences[at : at + block_elements].tolist(), delta.width)
        delta.entries.append(entry)
        delta.payload += payload
    return delta


def pack(
    new: Bits,
    shadow: Bits,
    *,
    block_elements: int,
    threshold: int = 0,
    ages: Ages | None = None,
) -> Delta:
    """Pack what changed, or of that what reaches `threshold`; moves `shadow` to what was sent."""
    is_sent = sent(new, shadow, threshold, ages)
    differences = np.where(is_sent, new - shadow, 0).astype(new.dtype)
    shadow[is_sent] = new[is_sent]
    if ages is not None:
        is_due = new != shadow
        ages.counts[:] = np.where(is_due, np.minimum(ages.counts, 254) + 1, 0)
    return pack_differences(differences, block_elements)


def changes(delta: Delta) -> list[tuple[int, int]]:
    """List what a delta says: position, and the difference modulo 2^width."""
    frame = delta_reader.Frame(
        delta.width, delta.block_elements, delta.count, delta.entries, delta.payload, None
    )
    return delta_reader.changes_of(frame)


def apply(delta: Delta, weights: Bits, *, undo: bool = False) -> None:
    """Change `weights` in place, or change them back."""
    modulus = 1 << delta.width
    for position, difference in changes(delta):
        step = -difference if undo else difference
        weights[position] = (int(weights[position]) + step) % modulus


def merge(first: Delta, second: Delta) -> Delta:
    """The delta that does what `first` and then `second` do."""
    assert (first.count, first.width) == (second.count, second.width)
    differences = np.zeros(first.count, np.dtype(f"u{first.width // 8}"))
    apply(first, differences)
    apply(second, differences)
    return pack_differences(differences, first.block_elements)


def topk_unpack(delta: Delta, base: Bits) -> tuple[list[int], list[int]]:
    """The positions that change and the values they get, in ascending order."""
    after = base.copy()
    apply(delta, after)
    positions = [position for position, _ in changes(delta)]
    return positions, [int(after[position]) for position in positions]


# ---- digest -------------------------------------------------------------------------------------

STRIDES = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)


def mix(word: int, index: int, stride: int, seed: int) -> int:
    x = (word + (index + 1) * stride + seed) & MASK64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK64
    return x ^ x >> 31


def digest(bits: Bits, *, first_index: int = 0, seed: int = 0) -> tuple[int, int]:
    """Digest elements that start at element `first_index` of their tensor, at a border of words."""
    in_word = 8 // bits.dtype.itemsize
    padded = np.concatenate([bits, np.zeros(-len(bits) % in_word, bits.dtype)])
    sums = [0, 0]
    for i, word in enumerate(padded.view(np.uint64).tolist()):
        for which, stride in enumerate(STRIDES):
            index = first_index // in_word + i
            sums[which] = (sums[which] + mix(word, index, stride, seed)) & MASK64
    return sums[0], sums[1]
