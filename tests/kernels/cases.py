"""What the kernels are tried on, and what must hold; shared by the plain and the sanitised run."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from tests.kernels.on_cpu import BINS, KernelsOnCpu
from tests.reference import delta as reference
from tests.reference.delta import BITMAP, GAP, RAW, STRAT, Ages, Bits, Delta, entry_of

# Zeros, subnormals, the ends of binades, infinities, NaNs: all of them to all of them.
SPECIAL = [0, 1, 0x7F, 0x80, 0x81, 0x3F80, 0x7F7F, 0x7F80, 0x7F81, 0x7FFF]
SPECIAL += [0x8000 | bits for bits in SPECIAL]
SEED = 0xFEDCBA9876543210
BLOCK = 16_384


@dataclass(frozen=True)
class Case:
    block: int
    count: int
    density: float = 0.01  # of changes
    wild: float = 0.1  # of these, changes that are no step: most small, some of any size
    is_special: bool = False
    width: int = 16


@dataclass(frozen=True)
class Answer:
    old: Bits
    new: Bits
    delta: Delta

    def after(self) -> Bits:
        after = self.old.copy()
        reference.apply(self.delta, after)
        return after


@cache
def answer(case: Case, threshold: int = 0) -> Answer:
    """Make the arrays of a case, and the delta that the reference finds."""
    random = np.random.default_rng(case.count)
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


def pack_agrees(
    kernels: KernelsOnCpu, case: Case, *, threshold: int | None = None, is_flat: bool = False
) -> None:
    """The kernel's delta, shadow and digest are the reference's, to the bit."""
    want = answer(case, threshold or 0)
    shadow = want.old.copy()
    packed = kernels.pack(
        want.new,
        shadow,
        block_elements=case.block,
        threshold=threshold,
        arena_words=len(want.delta.payload) + 3,
        first_index=12,
        seed=SEED,
        is_flat=is_flat,
    )
    assert packed.entries == want.delta.entries
    assert packed.payload() == want.delta.payload
    assert (packed.ends[0], packed.ends[-1]) == (0, len(want.delta.payload))
    after = want.after()
    assert np.array_equal(shadow, after)
    assert packed.digest == reference.digest(after, first_index=12, seed=SEED)


def apply_agrees(kernels: KernelsOnCpu, case: Case) -> None:
    """A delta makes of the old array the new one, and taken back the old one again."""
    want = answer(case)
    weights = want.old.copy()
    assert kernels.apply(want.delta, weights) is None
    assert np.array_equal(weights, want.new)
    assert kernels.apply(want.delta, weights, undo=True) is None
    assert np.array_equal(weights, want.old)
    for undo, after in ((False, want.new), (True, want.old)):
        bad, digests = kernels.apply_all([want.delta], [weights], undo=undo)
        assert (bad, digests) == (None, [reference.digest(after)])
        assert np.array_equal(weights, after)


def unpack_agrees(kernels: KernelsOnCpu, case: Case) -> None:
    want = answer(case)
    positions, values, bad = kernels.unpack(want.delta, want.old)
    assert bad is None
    assert (positions, values) == reference.topk_unpack(want.delta, want.old)


def digest_agrees(kernels: KernelsOnCpu, case: Case) -> None:
    bits = answer(case).new
    got = kernels.digest(bits, first_index=8, seed=SEED, blocks=3)
    assert got == reference.digest(bits, first_index=8, seed=SEED)


def histogram_agrees(kernels: KernelsOnCpu, case: Case) -> None:
    want = answer(case)
    keys = reference.change_key(want.new, want.old)[want.new != want.old]
    assert np.array_equal(kernels.histogram(want.new, want.old), np.bincount(keys, minlength=BINS))


# ---- boxes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoxCase:
    """A part of a larger array, by how it is cut out of it."""

    name: str
    shape: tuple[int, ...]  # of the larger array
    cut: tuple[slice, ...]
    axes: tuple[int, ...] | None = None  # the order of the dimensions in the part


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


def box_agrees(kernels: KernelsOnCpu, box: BoxCase, width: int) -> None:
    """A part of an array packs, applies and digests as a copy of it does; nothing else moves."""
    size = int(np.prod(box.shape))
    want = answer(Case(16_384, size, 0.05, width=width))
    old, new = want.old.copy(), want.new.copy()
    part, target = cut_out(new, box), cut_out(old, box)
    before, after = target.ravel(), part.ravel()
    delta = reference.pack(after, before.copy(), block_elements=16_384)
    packed = kernels.pack(part, target, block_elements=16_384, seed=SEED)
    assert packed.entries == delta.entries
    assert packed.payload() == delta.payload
    assert packed.digest == reference.digest(after, seed=SEED)
    assert np.array_equal(target, part)
    assert kernels.digest(part) == reference.digest(after)
    assert kernels.apply(delta, target, undo=True) is None
    assert np.array_equal(old, want.old)
    positions, values, bad = kernels.unpack(delta, target)
    assert bad is None
    assert (positions, values) == reference.topk_unpack(delta, before)
    assert kernels.apply(delta, target) is None
    assert np.array_equal(target, part)


# ---- ages ----------------------------------------------------------------------------------------


def aged(case: Case, limit: int) -> Ages:
    random = np.random.default_rng(case.count + limit)
    return Ages(
        random.choice([0, 1, limit - 1, limit, 254, 255], case.count).astype(np.uint8), limit
    )


def ages_agree(kernels: KernelsOnCpu, case: Case, *, budget: int, limit: int = 7) -> None:
    """What is due is sent whatever its key, and the ages move with the shadow."""
    want = answer(case)
    ages = aged(case, limit)
    threshold = kernels.threshold(kernels.histogram(want.new, want.old, ages=ages), budget=budget)
    assert threshold == fast_threshold(want.new, want.old, budget, ages)
    mine, shadow = Ages(ages.counts.copy(), limit), want.old.copy()
    old = want.old.copy()
    delta = reference.pack(want.new, old, block_elements=case.block, threshold=threshold, ages=ages)
    packed = kernels.pack(
        want.new, shadow, block_elements=case.block, threshold=threshold, ages=mine
    )
    assert (packed.entries, packed.payload()) == (delta.entries, delta.payload)
    assert np.array_equal(shadow, old)
    assert np.array_equal(mine.counts, ages.counts)


def fast_threshold(new: Bits, old: Bits, budget: int, ages: Ages | None = None) -> int:
    """`reference.topk_threshold` by halving: fewer are sent by a higher threshold."""
    low, high = 1, reference.NOTHING_SENT
    while low < high:
        middle = (low + high) // 2
        if np.count_nonzero(reference.sent(new, old, middle, ages)) <= budget:
            high = middle
        else:
            low = middle + 1
    return low


# ---- corrupt deltas ------------------------------------------------------------------------------

# The middle one of three blocks, of which the first and the last are sound.
BROKEN_BLOCK = 1


@dataclass(frozen=True)
class Corruption:
    """A middle block that says what no pack writes."""

    name: str
    entry: int
    payload: tuple[int, ...] = ()


@dataclass(frozen=True)
class Written:
    """A GAP or BITMAP block of any content, and where its sections lie, in words."""

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
        add("bitmap", [int(i in positions) for i in range(BLOCK)])
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


def broken(name: str, block: Written) -> Corruption:
    return Corruption(name, block.entry, block.payload)


def tails(block: Written) -> list[Corruption]:
    """Set the last, unused bit of each section in turn."""
    found = []
    for name, (_, bits) in block.sections.items():
        if bits % 32 and not name.endswith("_high"):  # a bit more there is a number more
            last = 32 * reference.words(bits) - 1
            found.append(Corruption(f"unused_of_{name}", *flipped(block, name, last)))
    assert len(found) >= 6
    return found


def entries_that_lie() -> list[Corruption]:
    raw_words = BLOCK // 2
    raw = entry_of(RAW, 1, 0, raw_words)
    dense = (0x0001_0000, *[0] * (raw_words - 1))
    payload = block_of([5, 700, 9000]).payload
    listed = block_of([5, 700, 9000], [1])
    size = len(payload)
    wide = block_of(list(range(BLOCK)), list(range(BLOCK)), bits=15)
    return [
        Corruption("empty_with_changes", entry_of(0, 1, 0, 0)),
        Corruption("empty_with_words", entry_of(0, 0, 0, 1), (0,)),
        Corruption("kind_unknown", entry_of(5, 3, 0, size), payload),
        Corruption("kind_strat", entry_of(STRAT, 3, 0, size), payload),
        Corruption("kind_deferred", entry_of(15, 0, 0, 0)),
        Corruption("nothing_changed", entry_of(GAP, 0, 0, size), payload),
        Corruption("raw_changes_nothing", entry_of(RAW, 0, 0, raw_words), (0,) * raw_words),
        Corruption("more_changed_than_there_are", entry_of(GAP, BLOCK + 1, 0, 9), (0,) * 9),
        Corruption("raw_more_changed", entry_of(RAW, BLOCK + 1, 0, raw_words), dense),
        Corruption("more_listed_than_changes", entry_of(GAP, 3, 4, size), payload),
        Corruption("a_word_more", entry_of(GAP, 3, 0, size + 1), (*payload, 0)),
        Corruption("a_word_less", entry_of(GAP, 3, 0, size - 1), payload[:-1]),
        Corruption("without_its_shape", entry_of(GAP, 3, 1, size), payload),
        Corruption("listed_a_word_more", listed.entry + (1 << 44), (*listed.payload, 0)),
        Corruption("listed_a_word_less", listed.entry - (1 << 44), listed.payload[:-1]),
        Corruption("raw_with_listed", raw | 1 << 24, dense),
        Corruption("raw_a_word_less", entry_of(RAW, 1, 0, raw_words - 1), dense[:-1]),
        Corruption("raw_a_word_more", raw + (1 << 44), (*dense, 0)),
        Corruption("raw_counts_wrong", entry_of(RAW, 2, 0, raw_words), dense),
        broken("gap_where_raw_is_smaller", wide),
    ]


def positions_that_lie() -> list[Corruption]:
    three = block_of([5, 700, 9000])  # low 12 bits; high: 1, 2 and 2 + 4 of 3 + 3 bits
    some = block_of(list(range(0, BLOCK, 3)), kind=BITMAP)
    high = "positions_high"
    return [
        Corruption("a_position_less", *flipped(three, high, 0)),
        Corruption("a_position_more", *flipped(three, high, 3)),
        Corruption("position_past_the_end", *flipped(three, high, 4, 31)),
        broken("positions_equal", block_of([5, 9000, 9000])),
        broken("positions_descend", block_of([5, 9001, 9000])),
        broken("positions_equal_across_words", block_of([*range(32), 31])),
        Corruption("bitmap_a_position_less", *flipped(some, "bitmap", 0)),
        Corruption("bitmap_a_position_more", *flipped(some, "bitmap", 1)),
    ]


def sizes_that_lie() -> list[Corruption]:
    four = [5, 700, 9000, 9001]
    ranked = block_of(four, [0, 2])
    large = block_of([*four, 9002, 9003], [0, 2, 5], larges={1: 33})
    return [
        Corruption("the_first_rank_less", *flipped(ranked, "ranks_high", 0)),
        Corruption("the_last_rank_less", *flipped(ranked, "ranks_high", 2)),
        broken("rank_past_the_end", block_of([*four, 9002], [0, 5])),
        broken("ranks_equal", block_of(four, [2, 2])),
        broken("ranks_descend", block_of(four, [3, 2])),
        Corruption("too_wide", *flipped(block_of(four, [0, 2], bits=15), "shape", 0, 1, 2, 3, 4)),
        Corruption("more_large_than_listed", *flipped(ranked, "shape", 8, 9)),
        Corruption("large_that_are_not_there", *flipped(ranked, "shape", 8)),
        Corruption("no_large_left", *flipped(large, "larges_high", 0, 1)),
        Corruption("a_large_less", *flipped(large, "larges_high", 1)),
        broken("large_past_the_end", block_of(four, [0, 1, 2], larges={3: 33})),
        broken("large_that_is_small", block_of(four, [0, 2], larges={1: 31})),
        broken("large_with_a_field", block_of(four, [0, 2], [0, 1], larges={1: 33})),
        broken("size_past_the_largest", block_of(four, [0, 2], larges={1: 0x7FFF}, down=3)),
        broken("largest_size_upwards", block_of(four, [0, 2], larges={1: 0x7FFE})),
        broken("field_past_the_largest", block_of(four, [2], [0x7FFF], bits=15, down=3)),
        broken(
            "all_and_past_the_largest", block_of(four, [0, 1, 2, 3], larges={1: 0x8000}, down=2)
        ),
        broken("all_and_largest_upwards", block_of(four, [0, 1, 2, 3], larges={1: 0x7FFF})),
        *tails(large),
    ]


def corruptions() -> list[Corruption]:
    return entries_that_lie() + positions_that_lie() + sizes_that_lie()


def sound_blocks() -> list[Corruption]:
    """Blocks that look like some of those above, and are what a pack may write."""
    four = [5, 700, 9000, 9001]
    return [
        broken("listed", block_of(four, [0, 2], [31, 1])),
        broken("all_listed", block_of(four, [0, 1, 2, 3], [0, 1, 2, 31])),
        broken("large", block_of(four, [0, 2], larges={1: 32})),
        broken("largest_size", block_of(four, [0, 2], larges={1: 0x7FFE}, down=3)),
        broken("all_and_largest", block_of(four, [0, 1, 2, 3], larges={1: 0x7FFF}, down=2)),
        broken("bitmap", block_of(list(range(0, BLOCK, 3)), [4], [9], kind=BITMAP)),
    ]


@cache
def three_blocks() -> Answer:
    """Two blocks that change at both ends of one that does not."""
    middle = answer(Case(BLOCK, 3 * BLOCK, 0.02))
    new = middle.new.copy()
    inner = slice(BLOCK, 2 * BLOCK)
    new[inner] = middle.old[inner]
    delta = reference.pack(new, middle.old.copy(), block_elements=BLOCK)
    return Answer(middle.old, new, delta)


def with_corruption(corruption: Corruption) -> Delta:
    sound = three_blocks().delta
    first_words = sound.entries[0] >> 44
    entries = list(sound.entries)
    entries[BROKEN_BLOCK] = corruption.entry
    payload = [*sound.payload[:first_words], *corruption.payload, *sound.payload[first_words:]]
    return replace(sound, entries=entries, payload=payload)


def corruption_changes_nothing(kernels: KernelsOnCpu, corruption: Corruption) -> None:
    """The block is named and keeps its weights; the blocks beside it are applied."""
    want = three_blocks()
    delta = with_corruption(corruption)
    weights = want.old.copy()
    bad = kernels.apply(delta, weights)
    assert bad == BROKEN_BLOCK
    inner = slice(BLOCK, 2 * BLOCK)
    assert np.array_equal(weights[inner], want.old[inner])
    assert np.array_equal(weights, want.new), "the blocks beside it are sound"


def corruption_lists_nothing(kernels: KernelsOnCpu, corruption: Corruption) -> None:
    """The block is named and its places in the output keep their poison."""
    want = three_blocks()
    delta = with_corruption(corruption)
    positions, values, bad = kernels.unpack(delta, want.old)
    assert bad == BROKEN_BLOCK
    first = delta.entries[0] >> 4 & 0xFFFFF
    end = first + (corruption.entry >> 4 & 0xFFFFF)
    assert positions[first:end] == [-0x5A5A5A5A5A5A5A5B] * (end - first)
    assert values[first:end] == [0xA5A5] * (end - first)


def sound_block_is_applied(kernels: KernelsOnCpu, block: Corruption) -> None:
    """The kernels are no stricter than the format."""
    delta = with_corruption(block)
    weights, wanted = three_blocks().old.copy(), three_blocks().old.copy()
    reference.apply(delta, wanted)
    assert kernels.apply(delta, weights) is None
    assert np.array_equal(weights, wanted)
    positions, values, bad = kernels.unpack(delta, three_blocks().old)
    assert bad is None
    assert (positions, values) == reference.topk_unpack(delta, three_blocks().old)


def position_past_a_short_end() -> Delta:
    """One block of 19 elements that changes element 19, which only its low bits tell."""
    payload = [*reference.elias_fano(19, [5, 9, 19]), 0]
    return Delta(19, BLOCK, [entry_of(GAP, 3, 0, len(payload))], payload)


def raw_block_with_a_tail() -> Delta:
    """One block of a single element whose word has something in its unused half."""
    return Delta(1, BLOCK, [entry_of(RAW, 1, 0, 1)], [0x0001_0003])


def bitmap_past_a_short_end() -> Delta:
    """One block of 70 elements whose bitmap has element 70 in place of another."""
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
    """Sound but for the end of the payload, which is missing."""
    sound = three_blocks().delta
    return [replace(sound, payload=sound.payload[:-by]) for by in (1, len(sound.payload))]


def cut_delta_is_found(kernels: KernelsOnCpu, delta: Delta) -> None:
    """The blocks that lie past the end are named and keep their weights."""
    want = three_blocks()
    weights = want.old.copy()
    is_whole = bool(delta.payload)
    assert kernels.apply(delta, weights) == (2 if is_whole else 0)
    assert np.array_equal(weights[2 * BLOCK :], want.old[2 * BLOCK :])
    assert np.array_equal(weights[:BLOCK], (want.new if is_whole else want.old)[:BLOCK])
    _, _, bad = kernels.unpack(delta, want.old)
    assert bad == (2 if is_whole else 0)
