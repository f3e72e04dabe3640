"""Weights, boxes and damaged deltas on which every twin of the codec is tested."""

from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product

import numpy as np

from tests.reference import delta as reference
from tests.reference.delta import BITMAP, GAP, RAW, STRAT, Ages, Bits, Delta, entry_of

# Zeros, subnormals, the ends of binades, infinities, NaNs. Each becomes each other one.
SPECIAL = [0, 1, 0x7F, 0x80, 0x81, 0x3F80, 0x7F7F, 0x7F80, 0x7F81, 0x7FFF]
SPECIAL += [0x8000 | bits for bits in SPECIAL]
SEED = 0xFEDCBA9876543210
BLOCK = 16_384


@dataclass(frozen=True)
class Case:
    """Two versions of an array.

    Args:
        block: elements of a delta block.
        count: elements of the array.
        density: share of elements that change.
        wild: share of the changes that are larger than one step: most small, some of any size.
        is_special: whether the elements are `SPECIAL` bits.
        width: bits of an element.
        seed: seed of the random bits.
    """

    block: int
    count: int
    density: float = 0.01
    wild: float = 0.1
    is_special: bool = False
    width: int = 16
    seed: int = field(default=0, repr=False)


@dataclass(frozen=True, eq=False)
class Answer:
    """Both versions of a case, and their delta by the reference."""

    old: Bits
    new: Bits
    delta: Delta

    @cached_property
    def after(self) -> Bits:
        """The shadow after the pack."""
        after = self.old.copy()
        reference.apply(self.delta, after)
        after.setflags(write=False)
        return after

    @cached_property
    def unpacked(self) -> tuple[list[int], list[int]]:
        """Positions and new bits of the changes."""
        return reference.topk_unpack(self.delta, self.old)

    @cache  # noqa: B019 - answers are kept anyway
    def digest(self, first_index: int, seed: int) -> tuple[int, int]:
        """Return the digest of the shadow after the pack."""
        return reference.digest(self.after, first_index=first_index, seed=seed)


@cache
def answer(case: Case, threshold: int = 0) -> Answer:
    """Return the arrays of a case, and their delta by the reference."""
    random = np.random.default_rng((case.count, case.seed))
    dtype = np.dtype(f"u{case.width // 8}")
    if case.is_special:
        pairs = np.resize(np.array(list(product(SPECIAL, SPECIAL)), np.uint16), (case.count, 2))
        old, new = pairs[:, 0].astype(dtype), pairs[:, 1].astype(dtype)
    else:
        span = 1 << case.width
        old = random.integers(0, span, case.count, dtype=dtype)
        small = random.integers(2, 20, case.count)
        leap = np.where(random.random(case.count) < 0.9, small, random.integers(2, span // 2 + 1))
        size = np.where(random.random(case.count) < case.wild, leap, 1)
        move = np.where(random.random(case.count) < 0.5, size, span - size).astype(dtype)
        new = np.where(random.random(case.count) < case.density, old + move, old)
    delta = reference.pack(new, old.copy(), block_elements=case.block, threshold=threshold)
    return Answer(old, new, delta)


WIDTHS = (8, 16, 32)
# Around a word of masks, and around what one thread has.
EDGES = (0, 1, 31, 32, 33, 127, 129)
CASES = [Case(16_384, count, 0.5, 0.3, width=width) for count in EDGES for width in WIDTHS]
CASES += [Case(16_384, 16_384 + by, width=width) for by in (-1, 0, 1) for width in WIDTHS]
# The larger blocks have more threads, all else is as above.
CASES += [Case(65_536, count, 0.5, 0) for count in (1, 33, 129)]
CASES += [Case(65_536, 65_536 + by) for by in (-1, 1)]
CASES += [Case(65_536, 65_537, 0.02, 0.3, width=width) for width in (8, 32)]
# From no change to all, of which none, some or all are listed.
CASES += [
    Case(16_384, 40_961, density, wild)
    for density, wild in ((0, 0), (0.0002, 0.2), (0.03, 0), (0.03, 1), (0.3, 0.7), (1, 0), (1, 1))
]
CASES += [
    Case(16_384, count, density, wild, width=width)
    for width in (8, 32)
    for count, density, wild in ((33_001, 0.3, 0.6), (20_011, 0.5, 0), (16_384, 1, 1))
]
# The largest payload that is no RAW: it goes through the pack's window many times.
CASES += [Case(65_536, 131_072 + 7, 1, 0.6)]
CASES += [Case(16_384, 3_001, is_special=True), Case(65_536, 399, is_special=True)]
CASES += [Case(16_384, 401, is_special=True, width=32)]
# Where BITMAP is the shortest: many changes of few sizes.
CASES += [Case(65_536, 65_536 + 33, 0.45, 0.02), Case(16_384, 5_001, 0.9, 0)]
KEYED = [case for case in CASES if case.width == 16]
# For the flat kernels: lists from empty to full, words of one to four changes, none,
# some or all changes listed. 30 % and more do not fit into the lists.
FLAT = [
    Case(16_384, 3 * 16_384, density, wild)
    for density, wild in ((0, 0), (0.0002, 0.2), (0.03, 0), (0.11, 0.6), (0.11, 1), (0.3, 0.7))
]
FLAT += [Case(65_536, 65_536, density, 0.3) for density in (0.01, 0.04, 0.5)]
FLAT += [Case(65_536, 131_072, 0.001, 1), Case(16_384, 16_384, 1, 1)]
FLAT += [Case(16_384, 16_384, is_special=True)]
# Arrays whose last block is shorter.
FLAT += [Case(16_384, count, 0.05, 0.4) for count in (1, 7, 100, 4_096, 16_385, 40_957)]
FLAT += [Case(65_536, 65_536 + 8, 0.02)]


# ---- boxes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BoxCase:
    """A box: part of a larger array."""

    name: str
    shape: tuple[int, ...]  # shape of the larger array
    cut: tuple[slice, ...]
    axes: tuple[int, ...] | None = None  # order of the dimensions in the box


BOXES = [
    BoxCase("rows", (40, 700), (slice(2, 39), slice(0, 512))),
    BoxCase("rows_at_odd_places", (40, 701), (slice(None), slice(3, 640))),
    BoxCase("rows_of_five", (4_000, 9), (slice(1, None), slice(2, 7))),
    BoxCase("every_other", (40_001,), (slice(1, None, 2),)),
    BoxCase("transposed", (130, 150), (slice(None), slice(None)), (1, 0)),
    BoxCase("four_dimensions", (7, 9, 11, 48), (slice(1, 6), slice(2, 9), slice(10), slice(8, 47))),
    BoxCase(
        "four_permuted",
        (5, 6, 7, 101),
        (slice(None), slice(1, 6), slice(7), slice(100)),
        (2, 0, 3, 1),
    ),
]


def cut_out(array: Bits, box: BoxCase) -> Bits:
    part = array.reshape(box.shape)[box.cut]
    return part if box.axes is None else part.transpose(box.axes)


@cache
def box_answer(box: BoxCase, width: int) -> tuple[Answer, Answer]:
    """Return the larger array, and the elements of the box in row-major order."""
    whole = answer(Case(BLOCK, int(np.prod(box.shape)), 0.05, width=width))
    new, old = (
        np.ascontiguousarray(cut_out(one, box)).reshape(-1) for one in (whole.new, whole.old)
    )
    return whole, Answer(old, new, reference.pack(new, old.copy(), block_elements=BLOCK))


# ---- ages ----------------------------------------------------------------------------------------


def aged(case: Case, limit: int) -> Ages:
    random = np.random.default_rng(case.count + limit)
    return Ages(
        random.choice([0, 1, limit - 1, limit, 254, 255], case.count).astype(np.uint8), limit
    )


def fast_threshold(new: Bits, old: Bits, budget: int, ages: Ages | None = None) -> int:
    """Return `reference.topk_threshold`, found by halving: a higher threshold sends fewer."""
    low, high = 1, reference.NOTHING_SENT
    while low < high:
        middle = (low + high) // 2
        if np.count_nonzero(reference.sent(new, old, middle, ages)) <= budget:
            high = middle
        else:
            low = middle + 1
    return low


# ---- damaged deltas ------------------------------------------------------------------------------

# The middle one of three blocks; the first and the last are sound.
DAMAGED_BLOCK = 1


@dataclass(frozen=True)
class Damage:
    """A middle block that no pack writes."""

    name: str
    entry: int
    payload: tuple[int, ...] = ()


@dataclass(frozen=True)
class Written:
    """A GAP or BITMAP block, and the place of its sections."""

    entry: int
    payload: tuple[int, ...]
    sections: dict[str, tuple[int, int]]  # the first word, and the bits


def block_of(
    positions: list[int],
    ranks: list[int] | None = None,
    magnitudes: list[int] | None = None,
    *,
    bits: int = 5,
    larges: dict[int, int] | None = None,
    down: int = 0,
    kind: int = GAP,
) -> Written:
    """Write a block; `larges` are ranks of magnitudes and these, `down` the rank of a change."""
    ranks, larges = ranks or [], larges or {}
    changed, listed = len(positions), len(ranks)
    payload: list[int] = []
    sections: dict[str, tuple[int, int]] = {}

    def add(name: str, section: list[int]) -> None:
        sections[name] = len(payload), len(section)
        payload.extend(reference.to_words(section))

    def add_elias_fano(name: str, universe: int, numbers: list[int]) -> None:
        high, low = reference.elias_fano_bits(universe, numbers)
        add(f"{name}_high", high)
        add(f"{name}_low", low)

    if kind == BITMAP:
        bitmap = [0] * BLOCK
        for position in positions:
            bitmap[position] = 1
        add("bitmap", bitmap)
    else:
        add_elias_fano("positions", BLOCK, positions)
    add("signs", [int(i == down - 1) for i in range(changed)])
    if ranks:
        add("shape", reference.fields([bits | len(larges) << 8], 32))
        if listed < changed:
            add_elias_fano("ranks", changed, ranks)
        fields = [0] * listed if magnitudes is None else magnitudes
        add("magnitudes", reference.fields(fields, bits))
        if larges:
            add_elias_fano("larges", listed, list(larges))
            add("values", reference.fields(list(larges.values()), 16))
    return Written(entry_of(kind, changed, listed, len(payload)), tuple(payload), sections)


def flipped(block: Written, section: str, *bits: int) -> tuple[int, tuple[int, ...]]:
    words = list(block.payload)
    for bit in bits:
        at = 32 * block.sections[section][0] + bit
        words[at // 32] ^= 1 << at % 32
    return block.entry, tuple(words)


def damage_of(name: str, block: Written) -> Damage:
    return Damage(name, block.entry, block.payload)


def tails(block: Written) -> list[Damage]:
    """Return a damage for each section: its last, unused bit is set."""
    found = []
    for name, (_, bits) in block.sections.items():
        if bits % 32 and not name.endswith("_high"):  # one bit more there is one number more
            last = 32 * reference.words(bits) - 1
            found.append(Damage(f"unused_of_{name}", *flipped(block, name, last)))
    assert len(found) >= 6
    return found


def damaged_entries() -> list[Damage]:
    raw_words = BLOCK // 2
    raw = entry_of(RAW, 1, 0, raw_words)
    dense = (0x0001_0000, *[0] * (raw_words - 1))
    payload = block_of([5, 700, 9000]).payload
    listed = block_of([5, 700, 9000], [1])
    size = len(payload)
    wide = block_of(list(range(BLOCK)), list(range(BLOCK)), bits=15)
    return [
        Damage("empty_with_changes", entry_of(0, 1, 0, 0)),
        Damage("empty_with_words", entry_of(0, 0, 0, 1), (0,)),
        Damage("kind_unknown", entry_of(5, 3, 0, size), payload),
        Damage("kind_strat", entry_of(STRAT, 3, 0, size), payload),
        Damage("kind_deferred", entry_of(15, 0, 0, 0)),
        Damage("nothing_changed", entry_of(GAP, 0, 0, size), payload),
        Damage("raw_changes_nothing", entry_of(RAW, 0, 0, raw_words), (0,) * raw_words),
        Damage("more_changed_than_there_are", entry_of(GAP, BLOCK + 1, 0, 9), (0,) * 9),
        Damage("raw_more_changed", entry_of(RAW, BLOCK + 1, 0, raw_words), dense),
        Damage("far_too_many_changed", entry_of(GAP, 0xFFFFF, 0, size), payload),
        Damage("more_listed_than_changes", entry_of(GAP, 3, 4, size), payload),
        Damage("far_too_many_listed", entry_of(GAP, 3, 0xFFFFF, size), payload),
        Damage("no_words", entry_of(GAP, 3, 0, 0)),
        Damage("far_too_many_words", entry_of(GAP, 3, 0, 0xFFFFF), (0,) * 0xFFFFF),
        Damage("a_word_more", entry_of(GAP, 3, 0, size + 1), (*payload, 0)),
        Damage("a_word_less", entry_of(GAP, 3, 0, size - 1), payload[:-1]),
        Damage("without_its_shape", entry_of(GAP, 3, 1, size), payload),
        Damage("listed_a_word_more", listed.entry + (1 << 44), (*listed.payload, 0)),
        Damage("listed_a_word_less", listed.entry - (1 << 44), listed.payload[:-1]),
        Damage("raw_with_listed", raw | 1 << 24, dense),
        Damage("raw_a_word_less", entry_of(RAW, 1, 0, raw_words - 1), dense[:-1]),
        Damage("raw_a_word_more", raw + (1 << 44), (*dense, 0)),
        Damage("raw_counts_wrong", entry_of(RAW, 2, 0, raw_words), dense),
        damage_of("gap_where_raw_is_smaller", wide),
    ]


def damaged_positions() -> list[Damage]:
    three = block_of([5, 700, 9000])  # low 12 bits; high: 1, 2 and 2 + 4 of 3 + 3 bits
    some = block_of(list(range(0, BLOCK, 3)), kind=BITMAP)
    high = "positions_high"
    return [
        Damage("a_position_less", *flipped(three, high, 0)),
        Damage("a_position_more", *flipped(three, high, 3)),
        Damage("position_past_the_end", *flipped(three, high, 4, 31)),
        damage_of("positions_equal", block_of([5, 9000, 9000])),
        damage_of("positions_descend", block_of([5, 9001, 9000])),
        damage_of("positions_equal_across_words", block_of([*range(32), 31])),
        Damage("bitmap_a_position_less", *flipped(some, "bitmap", 0)),
        Damage("bitmap_a_position_more", *flipped(some, "bitmap", 1)),
    ]


def damaged_sizes() -> list[Damage]:
    four = [5, 700, 9000, 9001]
    ranked = block_of(four, [0, 2])
    large = block_of([*four, 9002, 9003], [0, 2, 5], larges={1: 33})
    return [
        Damage("the_first_rank_less", *flipped(ranked, "ranks_high", 0)),
        Damage("the_last_rank_less", *flipped(ranked, "ranks_high", 2)),
        damage_of("rank_past_the_end", block_of([*four, 9002], [0, 5])),
        damage_of("ranks_equal", block_of(four, [2, 2])),
        damage_of("ranks_descend", block_of(four, [3, 2])),
        Damage("too_wide", *flipped(block_of(four, [0, 2], bits=15), "shape", 0, 1, 2, 3, 4)),
        Damage("more_large_than_listed", *flipped(ranked, "shape", 8, 9)),
        Damage("large_that_are_not_there", *flipped(ranked, "shape", 8)),
        Damage("no_large_left", *flipped(large, "larges_high", 0, 1)),
        Damage("a_large_less", *flipped(large, "larges_high", 1)),
        damage_of("large_past_the_end", block_of(four, [0, 1, 2], larges={3: 33})),
        damage_of("large_that_is_small", block_of(four, [0, 2], larges={1: 31})),
        damage_of("large_with_a_field", block_of(four, [0, 2], [0, 1], larges={1: 33})),
        damage_of("size_past_the_largest", block_of(four, [0, 2], larges={1: 0x7FFF}, down=3)),
        damage_of("largest_size_upwards", block_of(four, [0, 2], larges={1: 0x7FFE})),
        damage_of("field_past_the_largest", block_of(four, [2], [0x7FFF], bits=15, down=3)),
        damage_of(
            "all_and_past_the_largest", block_of(four, [0, 1, 2, 3], larges={1: 0x8000}, down=2)
        ),
        damage_of("all_and_largest_upwards", block_of(four, [0, 1, 2, 3], larges={1: 0x7FFF})),
        *tails(large),
    ]


@cache
def damages() -> tuple[Damage, ...]:
    return (*damaged_entries(), *damaged_positions(), *damaged_sizes())


@cache
def sound_blocks() -> tuple[Damage, ...]:
    """Return blocks that a pack may write, although they resemble damaged ones."""
    four = [5, 700, 9000, 9001]
    return (
        damage_of("listed", block_of(four, [0, 2], [31, 1])),
        damage_of("all_listed", block_of(four, [0, 1, 2, 3], [0, 1, 2, 31])),
        damage_of("large", block_of(four, [0, 2], larges={1: 32})),
        damage_of("largest_size", block_of(four, [0, 2], larges={1: 0x7FFE}, down=3)),
        damage_of("all_and_largest", block_of(four, [0, 1, 2, 3], larges={1: 0x7FFF}, down=2)),
        damage_of("bitmap", block_of(list(range(0, BLOCK, 3)), [4], [9], kind=BITMAP)),
    )


@cache
def three_blocks() -> Answer:
    """Return three blocks, of which the first and the last have changes."""
    middle = answer(Case(BLOCK, 3 * BLOCK, 0.02))
    new = middle.new.copy()
    inner = slice(BLOCK, 2 * BLOCK)
    new[inner] = middle.old[inner]
    delta = reference.pack(new, middle.old.copy(), block_elements=BLOCK)
    return Answer(middle.old, new, delta)


def with_damage(damage: Damage) -> Delta:
    sound = three_blocks().delta
    first_words = sound.entries[0] >> 44
    entries = list(sound.entries)
    entries[DAMAGED_BLOCK] = damage.entry
    payload = [*sound.payload[:first_words], *damage.payload, *sound.payload[first_words:]]
    return replace(sound, entries=entries, payload=payload)


@cache
def sound_answer(block: Damage) -> Answer:
    """Return three blocks of which the middle one is sound; `new` has no meaning."""
    return Answer(three_blocks().old, three_blocks().new, with_damage(block))


def position_past_a_short_end() -> Delta:
    """Return a block of 19 elements that changes element 19, as only its low bits show."""
    payload = [*reference.elias_fano(19, [5, 9, 19]), 0]
    return Delta(19, BLOCK, [entry_of(GAP, 3, 0, len(payload))], payload)


def raw_block_with_a_tail() -> Delta:
    """Return a block of one element whose word has bits in its unused half."""
    return Delta(1, BLOCK, [entry_of(RAW, 1, 0, 1)], [0x0001_0003])


def bitmap_past_a_short_end() -> Delta:
    """Return a block of 70 elements whose bitmap has element 70 in place of another one."""
    positions = [*range(0, 66, 2), 70]
    bits = [int(i in positions) for i in range(96)]
    payload = [*reference.to_words(bits), *[0] * reference.words(len(positions))]
    return Delta(70, BLOCK, [entry_of(BITMAP, len(positions), 0, len(payload))], payload)


SHORT = {
    "position_past_it": position_past_a_short_end(),
    "raw_with_a_tail": raw_block_with_a_tail(),
    "bitmap_past_it": bitmap_past_a_short_end(),
}


def cut_deltas() -> list[Delta]:
    """Return sound deltas without the end of their payload."""
    sound = three_blocks().delta
    return [replace(sound, payload=sound.payload[:-by]) for by in (1, len(sound.payload))]
