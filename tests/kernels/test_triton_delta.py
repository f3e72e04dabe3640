"""Packing and applying in Triton: the bits of the reference, and no change by what is corrupt."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from tests.kernels import interpreter as triton
from tests.kernels.interpreter import Bits, Child
from tests.reference import delta as reference

BLOCK = 16_384
DEFERRED = 15


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with triton.child(interpret=True) as running:
        yield running


def changed_from(old: Bits, density: float, *, exceptions: float = 0.2, seed: int = 0) -> Bits:
    """Change a share of the elements, a share of those by more than one step."""
    rng = np.random.default_rng(seed)
    new = old.copy()
    is_changed = rng.random(len(old)) < density
    new[is_changed] += rng.choice(np.array([1, 0xFFFF], np.uint16), is_changed.sum())
    is_exception = is_changed & (rng.random(len(old)) < exceptions)
    new[is_exception] = rng.integers(0, 1 << 16, is_exception.sum(), dtype=np.uint16)
    return new


def random_bits(count: int, *, seed: int = 1) -> Bits:
    return np.random.default_rng(seed).integers(0, 1 << 16, count, dtype=np.uint16)


def offsets_of(entries: list[int]) -> list[int]:
    return [sum(entry >> 44 for entry in entries[:block]) for block in range(len(entries))]


def check_twins(child: Child, new: Bits, old: Bits, *, block: int = BLOCK, skip: int = 0) -> None:
    """Pack, apply and undo; all bits are those of the reference."""
    shadow = old.copy()
    want = reference.pack(new, shadow, block_elements=block)
    offsets = offsets_of(want.entries)
    packed = child.run(triton.delta_pack, new, old, skip=(skip, 0), block_elements=block)
    assert packed.entries == want.entries
    assert packed.arena == want.payload
    assert packed.offsets == offsets
    assert packed.words == len(want.payload)
    assert packed.digest == reference.digest(shadow)
    assert (packed.shadow == shadow).all()
    delta = (want.entries, offsets, want.payload)
    error, after = child.run(triton.delta_apply, old, *delta, block_elements=block, skip=skip)
    assert error == -1
    assert (after == new).all()
    error, before = child.run(triton.delta_apply, new, *delta, block_elements=block, undo=True)
    assert error == -1
    assert (before == old).all()


# ---- the bits of the reference -------------------------------------------------------------------


@pytest.mark.parametrize("density", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("count", [0, 1, 3, 31, 32, 33, 1023, 1025])
def test_small_arrays_have_the_bits_of_the_reference(
    child: Child, count: int, density: float
) -> None:
    old = random_bits(count)
    check_twins(child, changed_from(old, density), old)


@pytest.mark.parametrize(
    ("count", "density", "exceptions"),
    [(BLOCK - 1, 0.01, 0.2), (BLOCK, 0.3, 0.02), (BLOCK + 1, 1, 0), (BLOCK, 0.1, 0.6)],
)
def test_whole_blocks_have_the_bits_of_the_reference(
    child: Child, count: int, density: float, exceptions: float
) -> None:
    old = random_bits(count)
    check_twins(child, changed_from(old, density, exceptions=exceptions), old)


def test_blocks_of_all_kinds_have_the_bits_of_the_reference(child: Child) -> None:
    old = random_bits(3 * BLOCK + 77)
    new = old.copy()
    for block, density in enumerate([0.02, 0, 1, 0.05]):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        new[part] = changed_from(old[part], density, exceptions=density or 0.3, seed=block)
    kinds = [entry & 15 for entry in reference.pack(new, old.copy(), block_elements=BLOCK).entries]
    assert kinds == [reference.GAP, reference.EMPTY, reference.RAW, reference.GAP]
    check_twins(child, new, old)


def test_large_blocks_have_the_bits_of_the_reference(child: Child) -> None:
    old = random_bits(65_536 + 5)
    check_twins(child, changed_from(old, 0.004), old, block=65_536)


@settings(max_examples=30)
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 0xFFFF), st.sampled_from([0, 0, 0, 1, 0xFFFF, 2, 0x8000])),
        max_size=130,
    )
)
def test_any_bits_come_back(child: Child, pairs: list[tuple[int, int]]) -> None:
    old = np.array([bits for bits, _ in pairs], np.uint16)
    new = old + np.array([step for _, step in pairs], np.uint16)
    check_twins(child, new, old)


SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x7FFF]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int16", "uint16"])
def test_zeros_infinities_and_nans_are_bits_like_others(child: Child, dtype: str) -> None:
    # Every pair: among them 0xFFFF to 0 and back, which are steps, and 0 to -0, which is none.
    old, new = (grid.astype(np.uint16).ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    shadow = old.copy()
    want = reference.pack(new, shadow, block_elements=BLOCK)
    packed = child.run(triton.delta_pack, new, old, block_elements=BLOCK, dtype=dtype)
    assert (packed.entries, packed.arena) == (want.entries, want.payload)
    error, after = child.run(
        triton.delta_apply,
        old,
        want.entries,
        [0],
        want.payload,
        block_elements=BLOCK,
        dtype=dtype,
    )
    assert error == -1
    assert (after == new).all()


def test_arrays_at_odd_addresses_have_the_same_bits(child: Child) -> None:
    old = random_bits(BLOCK + 700)
    check_twins(child, changed_from(old, 0.01), old, skip=1)


def test_an_odd_last_raw_block_ends_in_zero_bits(child: Child) -> None:
    old = random_bits(7)
    packed = child.run(triton.delta_pack, ~old, old, block_elements=BLOCK)
    assert packed.entries[0] & 15 == reference.RAW
    assert packed.arena[-1] >> 16 == 0


def test_the_digest_is_that_of_the_shadow_after_packing(child: Child) -> None:
    old = random_bits(BLOCK + 5)
    new = changed_from(old, 0.001)
    seed = 0xFEDCBA9876543210
    packed = child.run(
        triton.delta_pack, new, old, block_elements=BLOCK, first_index=1 << 34, seed=seed
    )
    assert packed.digest == reference.digest(new, first_index=1 << 34, seed=seed)


# ---- any order, any number of programs -----------------------------------------------------------


def test_blocks_may_lie_in_any_order(child: Child) -> None:
    old = random_bits(2 * BLOCK + 100)
    new = changed_from(old, 0.002)
    want = reference.pack(new, old.copy(), block_elements=BLOCK)
    ends = [*offsets_of(want.entries), len(want.payload)]
    blocks = [want.payload[at:end] for at, end in pairwise(ends)]
    arena = [word for block in reversed(blocks) for word in block]
    offsets = [len(arena) - end for end in ends[1:]]
    error, after = child.run(
        triton.delta_apply, old, want.entries, offsets, arena, block_elements=BLOCK
    )
    assert error == -1
    assert (after == new).all()
    gathered = child.run(triton.gather, want.entries, offsets, arena)
    assert gathered == (ends[:-1], want.payload)


def test_one_program_applies_block_after_block(child: Child) -> None:
    old = random_bits(3 * BLOCK)
    new = changed_from(old, 0.002, exceptions=0.9)
    want = reference.pack(new, old.copy(), block_elements=BLOCK)
    error, after = child.run(
        triton.delta_apply,
        old,
        want.entries,
        offsets_of(want.entries),
        want.payload,
        block_elements=BLOCK,
        programs=2,
    )
    assert error == -1
    assert (after == new).all()


# ---- an arena that is too small ------------------------------------------------------------------


def test_a_block_without_room_is_deferred_and_its_shadow_stays(child: Child) -> None:
    old = random_bits(3 * BLOCK)
    new = changed_from(old, 0.002)
    want = reference.pack(new, old.copy(), block_elements=BLOCK)
    room = sum(entry >> 44 for entry in want.entries[:2])
    packed = child.run(triton.delta_pack, new, old, block_elements=BLOCK, arena_words=room)
    assert packed.entries == [*want.entries[:2], DEFERRED]
    assert packed.arena == want.payload[:room]
    assert packed.words == len(want.payload) > room
    moved = np.concatenate([new[: 2 * BLOCK], old[2 * BLOCK :]])
    assert (packed.shadow == moved).all()
    assert packed.digest == reference.digest(moved)


@pytest.mark.parametrize("density", [0.1, 1])
def test_what_was_deferred_is_sent_next_time(child: Child, density: float) -> None:
    old = random_bits(99)
    new = changed_from(old, density)
    first = child.run(triton.delta_pack, new, old, block_elements=BLOCK, arena_words=0)
    assert first.entries == [DEFERRED]
    assert (first.shadow == old).all()
    check_twins(child, new, first.shadow)


# ---- corrupt blocks ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gap:
    """A GAP block of 100 elements, by its parts."""

    positions: tuple[int, ...] = (3, 4, 17, 40, 41, 42, 77, 99)
    signs: tuple[int, ...] = (1, 0, 0, 1, 0, 0, 1, 1)
    ranks: tuple[int, ...] = (1, 4, 5)
    values: tuple[int, ...] = (0x1234, 2, 0xFFFF)

    ELEMENTS = 100

    def sections(self) -> list[list[int]]:
        """Positions, signs, ranks and values."""
        return [
            reference.elias_fano(self.ELEMENTS, list(self.positions)),
            reference.to_words(list(self.signs)),
            reference.elias_fano(len(self.positions), list(self.ranks)) if self.ranks else [],
            reference.fields_to_words(list(self.values), 16),
        ]

    def encode(self) -> tuple[int, list[int]]:
        payload = list(chain(*self.sections()))
        return entry_of(reference.GAP, len(self.positions), len(self.ranks), len(payload)), payload


def entry_of(kind: int, changed: int, exceptions: int, size: int) -> int:
    return kind | changed << 4 | exceptions << 24 | size << 44


def with_bit(block: Gap, section: int, bit: int) -> tuple[int, list[int]]:
    """Flip one bit of one section."""
    entry, _ = block.encode()
    sections = block.sections()
    sections[section][bit // 32] ^= 1 << bit % 32
    return entry, list(chain(*sections))


def gap_where_raw_is_smaller() -> tuple[int, list[int]]:
    every = tuple(range(Gap.ELEMENTS))
    block = Gap(positions=every, signs=(0,) * 100, ranks=every, values=(2,) * 100)
    assert len(block.encode()[1]) > 50
    return block.encode()


def raw(values: list[int], *, changed: int, exceptions: int = 0) -> tuple[int, list[int]]:
    payload = reference.fields_to_words(values, 16)
    return entry_of(reference.RAW, changed, exceptions, len(payload)), payload


GOOD = Gap()
CORRUPT: dict[str, Callable[[], tuple[int, list[int]]]] = {
    "kind unknown": lambda: (3 | GOOD.encode()[0] & ~15, GOOD.encode()[1]),
    "kind deferred": lambda: (DEFERRED, []),
    "empty with fields": lambda: (entry_of(reference.EMPTY, 1, 0, 0), []),
    "changes nothing": lambda: (entry_of(reference.GAP, 0, 0, 0), []),
    "changes too many": lambda: (entry_of(reference.GAP, 101, 0, 50), [0] * 50),
    "more exceptions than changes": lambda: (entry_of(reference.GAP, 8, 9, 14), [0] * 14),
    "one word more": lambda: (GOOD.encode()[0] + (1 << 44), [*GOOD.encode()[1], 0]),
    "one word less": lambda: (GOOD.encode()[0] - (1 << 44), GOOD.encode()[1]),
    "payload too short": lambda: (GOOD.encode()[0], GOOD.encode()[1][:-1]),
    "words without end": lambda: (GOOD.encode()[0] | 0xFFFFF << 44, GOOD.encode()[1]),
    "gap where raw is smaller": gap_where_raw_is_smaller,
    "a position less": lambda: with_bit(GOOD, 0, 0),
    "a position more": lambda: with_bit(GOOD, 0, 1),
    "no last position": lambda: with_bit(GOOD, 0, (99 >> 3) + 7),
    "a position too large": lambda: replace(
        GOOD, positions=(3, 4, 17, 40, 41, 42, 77, 100)
    ).encode(),
    "a position twice": lambda: replace(GOOD, positions=(3, 4, 17, 40, 41, 41, 77, 99)).encode(),
    "positions that fall": lambda: replace(GOOD, positions=(4, 3, 17, 40, 41, 42, 77, 99)).encode(),
    "a bit behind the high positions": lambda: with_bit(
        replace(GOOD, positions=(3, 4, 17, 40, 41, 42, 77)), 0, 31
    ),
    "a bit behind the low positions": lambda: with_bit(GOOD, 0, 32 + 24),
    "a bit behind the signs": lambda: with_bit(GOOD, 1, 8),
    "a rank less": lambda: with_bit(GOOD, 2, 0),
    "no last rank": lambda: with_bit(GOOD, 2, (5 >> 1) + 2),
    "a rank too large": lambda: replace(
        GOOD, positions=GOOD.positions[:7], signs=GOOD.signs[:7], ranks=(1, 4, 7)
    ).encode(),
    "ranks that fall": lambda: replace(GOOD, ranks=(1, 5, 4)).encode(),
    "a bit behind the low ranks": lambda: with_bit(GOOD, 2, 32 + 3),
    "an exception with a sign": lambda: with_bit(GOOD, 1, 4),
    "an exception that is none": lambda: replace(GOOD, values=(0x1234, 0, 0xFFFF)).encode(),
    "an exception that is a step": lambda: replace(GOOD, values=(0x1234, 1, 0xFFFF)).encode(),
    "a bit behind the values": lambda: with_bit(GOOD, 3, 63),
    "raw with fewer changes": lambda: raw([1] * 99 + [0], changed=100),
    "raw with more changes": lambda: raw([1] * 100, changed=99),
    "raw that changes nothing": lambda: raw([0] * 100, changed=0),
    "raw with exceptions": lambda: raw([1] * 100, changed=100, exceptions=1),
    "raw too long": lambda: raw([1] * 100 + [0, 0], changed=100),
}


def apply_behind_a_good_block(
    child: Child, entry: int, payload: list[int], *, elements: int = Gap.ELEMENTS, at: int = 0
) -> tuple[int, Bits, Bits]:
    """Apply a good block and then the one given; return the error and that block's bits.

    `at` moves where the table says its payload begins.
    """
    old = random_bits(BLOCK + elements)
    new = old.copy()
    new[:BLOCK:1000] += 1
    good = reference.pack(new[:BLOCK], old[:BLOCK].copy(), block_elements=BLOCK)
    words = good.payload + payload
    delta = ([*good.entries, entry], [0, len(good.payload) + at], words)
    error, after = child.run(triton.delta_apply, old, *delta, block_elements=BLOCK)
    assert (after[:BLOCK] == new[:BLOCK]).all()
    undone_error, undone = child.run(
        triton.delta_apply, after, *delta, block_elements=BLOCK, undo=True
    )
    assert undone_error == error
    assert (undone == old).all()
    return error, old[BLOCK:], after[BLOCK:]


def test_the_block_that_is_corrupted_below_is_good(child: Child) -> None:
    error, before, after = apply_behind_a_good_block(child, *GOOD.encode())
    assert error == -1
    assert np.flatnonzero(before != after).tolist() == list(GOOD.positions)


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupt_block_is_reported_and_changes_nothing(child: Child, what: str) -> None:
    error, before, after = apply_behind_a_good_block(child, *CORRUPT[what]())
    assert error == 1
    assert (before == after).all()


def test_a_half_word_behind_a_raw_block_is_corrupt(child: Child) -> None:
    entry, payload = raw([2] * 99, changed=99)
    assert apply_behind_a_good_block(child, entry, payload, elements=99)[0] == -1
    payload[-1] |= 1 << 31
    error, before, after = apply_behind_a_good_block(child, entry, payload, elements=99)
    assert error == 1
    assert (before == after).all()


@pytest.mark.parametrize("at", [1, -1_000_000, 1 << 40, (1 << 63) - 1_000_000])
def test_a_block_outside_the_payload_is_corrupt(child: Child, at: int) -> None:
    error, before, after = apply_behind_a_good_block(child, *GOOD.encode(), at=at)
    assert error == 1
    assert (before == after).all()


@pytest.mark.parametrize("side", [-1, 1])
def test_a_sound_block_beside_the_payload_is_corrupt(child: Child, side: int) -> None:
    entry, words = GOOD.encode()
    old = random_bits(Gap.ELEMENTS)
    error, after = child.run(
        triton.delta_apply,
        old,
        [entry],
        [side * len(words)],
        [0] * len(words),
        block_elements=BLOCK,
        around=words,
    )
    assert error == 0
    assert (after == old).all()


def test_the_lowest_corrupt_block_is_reported(child: Child) -> None:
    old = random_bits(3 * BLOCK)
    entries = [0, DEFERRED, DEFERRED]
    error, after = child.run(triton.delta_apply, old, entries, [0] * 3, [], block_elements=BLOCK)
    assert error == 1
    assert (after == old).all()


# ---- what is refused -----------------------------------------------------------------------------


def test_blocks_of_another_size_are_refused(child: Child) -> None:
    with pytest.raises(InvalidArgument, match="block_elements 4096 must be 65536 or 16384"):
        child.run(triton.delta_pack, random_bits(4), random_bits(4), block_elements=4096)
    with pytest.raises(InvalidArgument, match="block_elements 4096 must be"):
        child.run(triton.delta_apply, random_bits(4), [0], [0], [], block_elements=4096)


def test_arrays_of_two_lengths_are_refused(child: Child) -> None:
    with pytest.raises(InvalidArgument, match=r"new is 4 of torch\.int16 on cpu and shadow 5"):
        child.run(triton.delta_pack, random_bits(4), random_bits(5))


def test_a_table_of_another_length_is_refused(child: Child) -> None:
    with pytest.raises(InvalidArgument, match="2 entries and 1 offsets: 4 elements have 1 blocks"):
        child.run(triton.delta_apply, random_bits(4), [0, 0], [0], [], block_elements=BLOCK)


def test_a_digest_from_inside_a_word_is_refused(child: Child) -> None:
    with pytest.raises(InvalidArgument, match="first_index 6 must be a multiple of 4"):
        child.run(triton.delta_pack, random_bits(4), random_bits(4), first_index=6)


def test_an_arena_below_nothing_is_refused(child: Child) -> None:
    with pytest.raises(InvalidArgument, match="arena_words -1 must not be negative"):
        child.run(triton.delta_pack, random_bits(4), random_bits(4), arena_words=-1)


def pack_columns_of_a_matrix() -> None:
    import torch

    from rose.kernels.delta_pack import delta_pack

    columns = torch.zeros((4, 4), dtype=torch.bfloat16).T[1:]
    delta_pack(columns, columns.clone())


def pack_floats() -> None:
    import torch

    from rose.kernels.delta_pack import delta_pack

    delta_pack(torch.zeros(4), torch.zeros(4))


def apply_bytes() -> None:
    import torch

    from rose.kernels.delta_apply import delta_apply

    entries = torch.zeros(1, dtype=torch.int64)
    payload = torch.zeros(4, dtype=torch.uint8)
    delta_apply(
        torch.zeros(4, dtype=torch.bfloat16), entries, entries, payload, block_elements=BLOCK
    )


def test_tensors_of_another_layout_are_refused(child: Child) -> None:
    with pytest.raises(InvalidArgument, match=r"new has strides \(1, 4\); it must be contiguous"):
        child.run(pack_columns_of_a_matrix)
    with pytest.raises(
        InvalidArgument, match=r"new is torch\.float32; it must have 16-bit elements"
    ):
        child.run(pack_floats)
    with pytest.raises(InvalidArgument, match=r"payload is torch\.uint8 of shape \(4,\); it must"):
        child.run(apply_bytes)
