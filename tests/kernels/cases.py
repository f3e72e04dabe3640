"""What the kernels are tried on, and what must hold; shared by the plain and the sanitised run."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from tests.kernels.on_cpu import GAP, RAW, KernelsOnCpu
from tests.reference import delta as reference
from tests.reference.delta import Bits, Delta

# Zeros, subnormals, the ends of binades, infinities, NaNs: all of them to all of them.
SPECIAL = [0, 1, 0x7F, 0x80, 0x81, 0x3F80, 0x7F7F, 0x7F80, 0x7F81, 0x7FFF]
SPECIAL += [0x8000 | bits for bits in SPECIAL]
SEED = 0xFEDCBA9876543210


@dataclass(frozen=True)
class Case:
    block: int
    count: int
    density: float = 0.01  # of changes
    wild: float = 0.1  # of these, changes that are no step
    is_special: bool = False


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
    if case.is_special:
        pairs = np.resize(np.array(list(product(SPECIAL, SPECIAL)), np.uint16), (case.count, 2))
        old, new = pairs[:, 0].copy(), pairs[:, 1].copy()
    else:
        old = random.integers(0, 1 << 16, case.count, dtype=np.uint16)
        step = random.choice(np.array([1, 0xFFFF], np.uint16), case.count)
        leap = random.integers(2, 0xFFFF, case.count, dtype=np.uint16)
        move = np.where(random.random(case.count) < case.wild, leap, step)
        new = np.where(random.random(case.count) < case.density, old + move, old)
    delta = reference.pack(new, old.copy(), block_elements=case.block, threshold=threshold)
    return Answer(old, new, delta)


EDGES = (0, 1, 3, 31, 32, 33, 127, 129)
CASES = [Case(16_384, count, 0.5) for count in EDGES]
CASES += [Case(65_536, count, 0.5, 0) for count in EDGES]
CASES += [Case(16_384, 16_384 + by) for by in (-1, 0, 1)]
CASES += [Case(65_536, 65_536 + by) for by in (-1, 0, 1)]
CASES += [
    Case(16_384, 40_961, density, wild)
    for density, wild in product((0, 0.0002, 0.03, 0.3, 1), (0, 0.2, 0.7, 1))
]
# The largest payloads that are still GAP: they go through the pack's window many times.
CASES += [Case(65_536, 131_072 + 7, density, wild) for density, wild in ((0.6, 0.1), (1, 0.6))]
CASES += [Case(16_384, 3_001, is_special=True), Case(65_536, 399, is_special=True)]


def pack_agrees(kernels: KernelsOnCpu, case: Case, *, threshold: int | None = None) -> None:
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
    )
    assert packed.entries == want.delta.entries
    assert packed.payload() == want.delta.payload
    assert packed.cursor == len(want.delta.payload)
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
    assert np.array_equal(
        kernels.histogram(want.new, want.old), np.bincount(keys, minlength=1 << 15)
    )


# ---- corrupt deltas ------------------------------------------------------------------------------

# The middle one of three blocks, of which the first and the last are sound.
BROKEN_BLOCK = 1
BLOCK = 16_384


def entry_of(kind: int, changed: int, exceptions: int, words: int) -> int:
    return kind | changed << 4 | exceptions << 24 | words << 44


@dataclass(frozen=True)
class Corruption:
    """A middle block that says what no pack writes."""

    name: str
    entry: int
    payload: tuple[int, ...] = ()


def gap_of(positions: list[int], ranks: list[int] | None = None) -> tuple[int, tuple[int, ...]]:
    """Encode a GAP block of any positions and ranks."""
    changed = len(positions)
    payload = reference.elias_fano(BLOCK, positions)
    payload += [0] * reference.words(changed)
    if ranks:
        payload += reference.elias_fano(changed, ranks)
        payload += reference.fields_to_words([0x1234] * len(ranks), 16)
    return entry_of(GAP, changed, len(ranks or []), len(payload)), tuple(payload)


def tails(block: tuple[int, tuple[int, ...]]) -> list[Corruption]:
    """Set the last, unused bit of each section of a GAP block in turn."""
    entry, _ = block
    changed, exceptions = entry >> 4 & 0xFFFFF, entry >> 24 & 0xFFFFF
    low, rank_low = reference.low_bits(BLOCK, changed), reference.low_bits(changed, exceptions)
    sections = {
        "position_lows": changed * low,
        "signs": changed,
        "rank_highs": exceptions + ((changed - 1) >> rank_low),
        "rank_lows": exceptions * rank_low,
        "values": 16 * exceptions,
    }
    end = reference.words(changed + ((BLOCK - 1) >> low))
    found = []
    for name, bits in sections.items():
        assert bits % 32
        end += reference.words(bits)
        if name != "rank_highs":  # a bit more there is a rank more
            found.append(Corruption(f"unused_{name}", *flipped(block, 32 * end - 1)))
    return found


def flipped(block: tuple[int, tuple[int, ...]], *bits: int) -> tuple[int, tuple[int, ...]]:
    entry, payload = block
    words = list(payload)
    for bit in bits:
        words[bit // 32] ^= 1 << bit % 32
    return entry, tuple(words)


def corruptions() -> list[Corruption]:
    raw = entry_of(RAW, 1, 0, BLOCK // 2)
    dense = (0x0001_0000, *[0] * (BLOCK // 2 - 1))
    three = gap_of([5, 700, 9000])  # low 12 bits; high: 1, 2 and 2 + 4 of 3 + 3 bits
    _, payload = three
    ranked = gap_of([5, 700, 9000, 9001], [0, 2])
    ranks_at = 32 * (reference.elias_fano_words(BLOCK, 4) + 1)
    values_at = len(ranked[1]) - 1
    value_bits = [32 * values_at + bit for bit in range(16) if 0x1234 >> bit & 1]
    many = list(range(BLOCK * 3 // 4))
    return [
        Corruption("empty_with_changes", entry_of(0, 1, 0, 0)),
        Corruption("empty_with_words", entry_of(0, 0, 0, 1), (0,)),
        Corruption("kind_unknown", entry_of(3, 3, 0, len(payload)), payload),
        Corruption("kind_deferred", entry_of(15, 0, 0, 0)),
        Corruption("nothing_changed", entry_of(GAP, 0, 0, len(payload)), payload),
        Corruption("raw_changes_nothing", entry_of(RAW, 0, 0, BLOCK // 2), (0,) * (BLOCK // 2)),
        Corruption("more_changed_than_there_are", entry_of(GAP, BLOCK + 1, 0, 9), (0,) * 9),
        Corruption("raw_more_changed", entry_of(RAW, BLOCK + 1, 0, BLOCK // 2), dense),
        Corruption("more_exceptions_than_changes", entry_of(GAP, 3, 4, len(payload)), payload),
        Corruption("a_word_more", entry_of(GAP, 3, 0, len(payload) + 1), (*payload, 0)),
        Corruption("a_word_less", entry_of(GAP, 3, 0, len(payload) - 1), payload[:-1]),
        Corruption("raw_with_exceptions", raw | 1 << 24, dense),
        Corruption("raw_a_word_less", entry_of(RAW, 1, 0, BLOCK // 2 - 1), dense[:-1]),
        Corruption("raw_a_word_more", raw + (1 << 44), (*dense, 0)),
        Corruption("raw_counts_wrong", entry_of(RAW, 2, 0, BLOCK // 2), dense),
        Corruption("a_position_less", *flipped(three, 0)),
        Corruption("a_position_more", *flipped(three, 3)),
        Corruption("position_past_the_end", *flipped(three, 4, 31)),
        Corruption("positions_equal", *gap_of([5, 9000, 9000])),
        Corruption("positions_descend", *gap_of([5, 9001, 9000])),
        Corruption("positions_equal_across_words", *gap_of([*range(32), 31])),
        Corruption("the_first_rank_less", *flipped(ranked, ranks_at)),
        Corruption("the_last_rank_less", *flipped(ranked, ranks_at + 2)),
        *tails(gap_of([5, 700, 9000, 9001, 9002, 9003], [0, 2, 5])),
        Corruption("exception_with_a_sign", *flipped(ranked, ranks_at - 32)),
        Corruption("exception_without_a_change", *flipped(ranked, *value_bits)),
        Corruption("exception_of_a_step", *flipped(ranked, *value_bits, 32 * values_at)),
        Corruption("gap_where_raw_is_smaller", *gap_of(list(range(BLOCK)), many)),
        Corruption("rank_past_the_end", *gap_of([5, 700, 9000, 9001, 9002], [0, 5])),
        Corruption("ranks_equal", *gap_of([5, 700, 9000, 9001], [2, 2])),
        Corruption("ranks_descend", *gap_of([5, 700, 9000, 9001], [3, 2])),
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


def position_past_a_short_end() -> Delta:
    """One block of 19 elements that changes element 19, which only its low bits tell."""
    payload = [*reference.elias_fano(19, [5, 9, 19]), 0]
    return Delta(19, BLOCK, [entry_of(GAP, 3, 0, len(payload))], payload)


def raw_block_with_a_tail() -> Delta:
    """One block of a single element whose word has something in its unused half."""
    return Delta(1, BLOCK, [entry_of(RAW, 1, 0, 1)], [0x0001_0003])


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
