"""Packing and applying in Triton: the bits of the reference, and no change by what is corrupt."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
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
    new[is_changed] += rng.choice([1, -1], is_changed.sum()).astype(old.dtype)
    is_exception = is_changed & (rng.random(len(old)) < exceptions)
    near = rng.integers(2, 40, is_exception.sum(), dtype=old.dtype)
    far = rng.integers(0, np.iinfo(old.dtype).max, is_exception.sum(), dtype=old.dtype)
    new[is_exception] += np.where(rng.random(len(near)) < 0.7, near, far)
    return new


def random_bits(count: int, *, seed: int = 1, width: int = 16) -> Bits:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << width, count, dtype=np.dtype(f"u{width // 8}"))


def offsets_of(entries: list[int]) -> list[int]:
    return [sum(entry >> 44 for entry in entries[:block]) for block in range(len(entries))]


def check_twins(
    child: Child,
    new: Bits,
    old: Bits,
    *,
    block: int = BLOCK,
    skip: int = 0,
    shapes: tuple[Any, Any] = (None, None),
) -> None:
    """Pack, apply and undo; all bits are those of the reference."""
    shadow = old.copy()
    want = reference.pack(new, shadow, block_elements=block)
    offsets = offsets_of(want.entries)
    packed = child.run(
        triton.delta_pack, new, old, skip=(skip, 0), block_elements=block, shapes=shapes
    )
    assert packed.entries == want.entries
    assert packed.arena == want.payload
    assert packed.offsets == offsets
    assert packed.words == len(want.payload)
    assert packed.digest == reference.digest(shadow)
    assert (packed.shadow == shadow).all()
    delta = (want.entries, offsets, want.payload)
    error, after = child.run(
        triton.delta_apply, old, *delta, block_elements=block, skip=skip, shape=shapes[1]
    )
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


@pytest.mark.parametrize("density", [0.02, 0.5, 1])
@pytest.mark.parametrize("count", [1, 5, 33, 1027])
@pytest.mark.parametrize("width", [8, 32])
def test_other_widths_have_the_bits_of_the_reference(
    child: Child, width: int, count: int, density: float
) -> None:
    old = random_bits(count, width=width)
    check_twins(child, changed_from(old, density), old)


@pytest.mark.parametrize("shape", [(1,), (7, 11), (3, 5, 70), (2, 3, 5, 41)])
@pytest.mark.parametrize("width", [8, 16, 32])
def test_boxes_have_the_bits_of_the_reference(
    child: Child, width: int, shape: tuple[int, ...]
) -> None:
    old = random_bits(int(np.prod(shape)), width=width)
    new = changed_from(old, 0.1)
    check_twins(child, new, old, shapes=(shape, shape))
    packed = child.run(triton.delta_pack, new, old, shapes=(None, shape), block_elements=BLOCK)
    assert (packed.shadow == new).all()


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
    for block, density in enumerate([0.02, 0, 1, 0.5]):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        new[part] = changed_from(old[part], density, exceptions=0.1, seed=block)
    new[2 * BLOCK : 3 * BLOCK] = random_bits(BLOCK, seed=9)
    kinds = [entry & 15 for entry in reference.pack(new, old.copy(), block_elements=BLOCK).entries]
    assert kinds == [reference.GAP, reference.EMPTY, reference.RAW, reference.BITMAP]
    check_twins(child, new, old)


def test_large_blocks_have_the_bits_of_the_reference(child: Child) -> None:
    old = random_bits(65_536 + 5)
    check_twins(child, changed_from(old, 0.004), old, block=65_536)


@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 0xFFFFFFFF), st.sampled_from([0, 0, 0, 1, -1, 2, 9, -(1 << 31)])),
        max_size=130,
    ),
    width=st.sampled_from([8, 16, 32]),
)
def test_any_bits_come_back(child: Child, pairs: list[tuple[int, int]], width: int) -> None:
    dtype = np.dtype(f"u{width // 8}")
    # The largest size is 2^(width - 1), whose difference has no other sign.
    steps = [step >> (32 - width) if abs(step) > 9 else step for _, step in pairs]
    old = np.array([bits for bits, _ in pairs], np.uint32).astype(dtype)
    new = old + np.array(steps, np.int64).astype(dtype)
    check_twins(child, new, old)


@pytest.mark.parametrize("size", [2, 3, 5, 9, 257])
def test_changes_of_one_size_are_all_listed_with_the_bits_of_the_reference(
    child: Child, size: int
) -> None:
    old = random_bits(90)
    new = old.copy()
    new[::9] += np.uint16(size)
    new[1] += np.uint16(2)
    check_twins(child, new, old)
    new[1] = old[1]
    check_twins(child, new, old)


SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x7FFF]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint16"])
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
    packed = child.run(triton.delta_pack, random_bits(7, seed=2), old, block_elements=BLOCK)
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


def test_one_program_applies_block_after_block(child: Child) -> None:
    old = random_bits(3 * BLOCK)
    new = changed_from(old, 0.002, exceptions=0.9)
    want = reference.pack(new, old.copy(), block_elements=BLOCK)
    delta = (want.entries, offsets_of(want.entries), want.payload)
    error, after = child.run(triton.delta_apply, old, *delta, block_elements=BLOCK, programs=2)
    assert error == -1
    assert (after == new).all()
    # And of the blocks that are asked for only, whatever the others hold.
    delta[0][0] = DEFERRED
    error, after = child.run(
        triton.delta_apply, old, *delta, block_elements=BLOCK, programs=1, blocks=range(1, 3)
    )
    assert error == -1
    assert (after == np.concatenate([old[:BLOCK], new[BLOCK:]])).all()


@pytest.mark.parametrize("blocks", [range(1, 4), range(2, 1), range(0, 2, 2), range(-1, 1)])
def test_blocks_that_are_no_neighbours_are_refused(child: Child, blocks: range) -> None:
    with pytest.raises(InvalidArgument, match="must be neighbours among 1"):
        child.run(
            triton.delta_apply, random_bits(4), [0], [0], [], block_elements=BLOCK, blocks=blocks
        )


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
class Coded:
    """A GAP or BITMAP block of 100 elements, by its parts."""

    positions: tuple[int, ...] = (3, 4, 17, 40, 41, 42, 77, 99)
    signs: tuple[int, ...] = (1, 0, 0, 1, 0, 0, 1, 1)
    ranks: tuple[int, ...] = (1, 4, 5)
    m: int = 3
    magnitudes: tuple[int, ...] = (0, 5, 0)
    large_ranks: tuple[int, ...] = (2,)
    large: tuple[int, ...] = (0x1234,)
    is_bitmap: bool = False
    width: int = 16

    ELEMENTS = 100

    def sections(self) -> list[list[int]]:
        """Positions, signs, shape, ranks, magnitudes, large ranks, large."""
        changed, listed = len(self.positions), len(self.magnitudes)
        held = [int(at in self.positions) for at in range(self.ELEMENTS)]
        return [
            reference.to_words(held)
            if self.is_bitmap
            else reference.elias_fano(self.ELEMENTS, list(self.positions)),
            reference.to_words(list(self.signs)),
            [self.m | len(self.large) << 8] if listed else [],
            reference.elias_fano(changed, list(self.ranks)) if 0 < listed < changed else [],
            reference.to_words(reference.fields(list(self.magnitudes), self.m)),
            reference.elias_fano(listed, list(self.large_ranks)) if self.large_ranks else [],
            reference.to_words(reference.fields(list(self.large), self.width)),
        ]

    def encode(self) -> tuple[int, list[int]]:
        payload = list(chain(*self.sections()))
        kind = reference.BITMAP if self.is_bitmap else reference.GAP
        return reference.entry_of(
            kind, len(self.positions), len(self.magnitudes), len(payload)
        ), payload

    def with_bit(self, section: int, bit: int) -> tuple[int, list[int]]:
        """Flip one bit of one section."""
        sections = self.sections()
        sections[section][bit // 32] ^= 1 << bit % 32
        return self.encode()[0], list(chain(*sections))

    def but(self, **parts: Any) -> tuple[int, list[int]]:
        return replace(self, **parts).encode()


def raw(values: list[int], *, changed: int, listed: int = 0) -> tuple[int, list[int]]:
    payload = reference.to_words(reference.fields(values, 16))
    return reference.entry_of(reference.RAW, changed, listed, len(payload)), payload


def with_kind(block: tuple[int, list[int]], kind: int) -> tuple[int, list[int]]:
    return block[0] & ~15 | kind, block[1]


GAP = Coded()
BITMAP = replace(GAP, is_bitmap=True)
STEPS = replace(GAP, ranks=(), magnitudes=(), large_ranks=(), large=())
# Each change listed, with sizes from 1 on.
ALL = replace(GAP, m=2, magnitudes=(0, 1, 2, 3, 0, 0, 1, 2), large_ranks=(4, 5), large=(4, 0x7FFE))
# The largest sizes: 2^15 down, one less up.
ENDS = replace(GAP, m=1, ranks=(0, 1), magnitudes=(0, 0), large_ranks=(0, 1), large=(32766, 32765))
EVERY = tuple(range(Coded.ELEMENTS))
SOUND = {"gap": GAP, "bitmap": BITMAP, "steps": STEPS, "all": ALL, "ends": ENDS}
CORRUPT: dict[str, Callable[[], tuple[int, list[int]]]] = {
    "kind unknown": lambda: with_kind(GAP.encode(), 5),
    "kind of a link": lambda: with_kind(GAP.encode(), reference.STRAT),
    "kind deferred": lambda: (DEFERRED, []),
    "empty with fields": lambda: (reference.entry_of(reference.EMPTY, 1, 0, 0), []),
    "changes nothing": lambda: (reference.entry_of(reference.GAP, 0, 0, 0), []),
    "changes too many": lambda: (reference.entry_of(reference.GAP, 101, 0, 49), [0] * 49),
    "lists more than changes": lambda: (reference.entry_of(reference.GAP, 8, 9, 14), [0] * 14),
    "one word more": lambda: (GAP.encode()[0] + (1 << 44), [*GAP.encode()[1], 0]),
    "one word less": lambda: (GAP.encode()[0] - (1 << 44), GAP.encode()[1]),
    "too short for its shape": lambda: (
        reference.entry_of(reference.GAP, 8, 3, 3),
        GAP.encode()[1][:3],
    ),
    "payload too short": lambda: (GAP.encode()[0], GAP.encode()[1][:-1]),
    "words without end": lambda: (GAP.encode()[0] | 0xFFFFF << 44, GAP.encode()[1]),
    "no smaller than raw": lambda: Coded(EVERY, (0,) * 100, EVERY, 15, (9,) * 100, (), ()).encode(),
    "a position less": lambda: GAP.with_bit(0, 0),
    "a position more": lambda: GAP.with_bit(0, 1),
    "no last position": lambda: GAP.with_bit(0, (99 >> 3) + 7),
    "a position too large": lambda: GAP.but(positions=(3, 4, 17, 40, 41, 42, 77, 100)),
    "a position twice": lambda: GAP.but(positions=(3, 4, 17, 40, 41, 41, 77, 99)),
    "positions that fall": lambda: GAP.but(positions=(4, 3, 17, 40, 41, 42, 77, 99)),
    "a bit behind the high positions": lambda: replace(
        GAP, positions=(3, 4, 17, 40, 41, 42, 77)
    ).with_bit(0, 31),
    "a bit behind the low positions": lambda: GAP.with_bit(0, 32 + 24),
    "a bit behind the bitmap": lambda: replace(
        BITMAP, positions=(3, 4, 17, 40, 41, 42, 77), signs=(0,) * 8
    ).with_bit(0, 100),
    "a position less in the bitmap": lambda: BITMAP.with_bit(0, 99),
    "a position more in the bitmap": lambda: BITMAP.with_bit(0, 0),
    "a bit behind the signs": lambda: GAP.with_bit(1, 8),
    "m of the whole width": lambda: GAP.but(m=16, large_ranks=(), large=()),
    "large magnitudes without end": lambda: GAP.with_bit(2, 31),
    "more large than listed": lambda: GAP.but(large=(9, 9, 9, 9)),
    "a rank less": lambda: GAP.with_bit(3, 0),
    "no last rank": lambda: GAP.with_bit(3, (5 >> 1) + 2),
    "a rank too large": lambda: GAP.but(positions=GAP.positions[:7], ranks=(1, 4, 7)),
    "ranks that fall": lambda: GAP.but(ranks=(1, 5, 4)),
    "a bit behind the low ranks": lambda: GAP.with_bit(3, 32 + 3),
    "a bit behind the magnitudes": lambda: GAP.with_bit(4, 9),
    "a large rank too large": lambda: GAP.but(large_ranks=(3,)),
    "large ranks that fall": lambda: ALL.but(large_ranks=(5, 4)),
    "a bit behind the low large ranks": lambda: GAP.with_bit(5, 32 + 1),
    "a bit behind the large": lambda: GAP.with_bit(6, 16),
    "a large magnitude that is small": lambda: GAP.but(large=(7,)),
    "a field of a large magnitude": lambda: GAP.but(magnitudes=(0, 5, 1)),
    "a size above the half": lambda: ENDS.but(large=(32767, 32765)),
    "a size of the half that goes up": lambda: ENDS.but(large=(32766, 32766)),
    "a size of the half that goes up, of all": lambda: ALL.but(large=(4, 0x7FFF)),
    "raw with fewer changes": lambda: raw([1] * 99 + [0], changed=100),
    "raw with more changes": lambda: raw([1] * 100, changed=99),
    "raw that changes nothing": lambda: raw([0] * 100, changed=0),
    "raw that lists": lambda: raw([1] * 100, changed=100, listed=1),
    "raw too long": lambda: raw([1] * 100 + [0, 0], changed=100),
}


def apply_behind_a_good_block(
    child: Child, entry: int, payload: list[int], *, elements: int = Coded.ELEMENTS, at: int = 0
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


@pytest.mark.parametrize("name", SOUND)
def test_the_blocks_that_are_corrupted_below_are_sound(child: Child, name: str) -> None:
    entry, payload = SOUND[name].encode()
    error, before, after = apply_behind_a_good_block(child, entry, payload)
    assert error == -1
    want = before.copy()
    reference.apply(reference.Delta(len(before), BLOCK, [entry], payload), want)
    assert (after == want).all()
    assert np.flatnonzero(before != after).tolist() == list(SOUND[name].positions)


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


@pytest.mark.parametrize("sign", [0, 1])
def test_a_small_size_of_a_byte_above_the_half_is_corrupt(child: Child, sign: int) -> None:
    old = random_bits(Coded.ELEMENTS, width=8)
    parts = {"width": 8, "m": 7, "ranks": (1,), "large_ranks": (), "large": ()}
    signs = (1, sign, 0, 1, 0, 0, 1, 1)
    for field, is_sound in ((125, True), (126, sign == 1), (127, False)):
        entry, payload = GAP.but(magnitudes=(field,), signs=signs, **parts)
        error, after = child.run(
            triton.delta_apply, old, [entry], [0], payload, block_elements=BLOCK
        )
        assert error == (-1 if is_sound else 0)
        assert (after == old).all() != is_sound


@pytest.mark.parametrize("at", [1, -1_000_000, 1 << 40, (1 << 63) - 1_000_000])
def test_a_block_outside_the_payload_is_corrupt(child: Child, at: int) -> None:
    error, before, after = apply_behind_a_good_block(child, *GAP.encode(), at=at)
    assert error == 1
    assert (before == after).all()


@pytest.mark.parametrize("side", [-1, 1])
def test_a_sound_block_beside_the_payload_is_corrupt(child: Child, side: int) -> None:
    entry, words = GAP.encode()
    old = random_bits(Coded.ELEMENTS)
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


def pack_of_five_dimensions() -> None:
    import torch

    from rose.kernels.delta_pack import delta_pack

    part = torch.zeros((3,) * 5, dtype=torch.bfloat16)[:2, :2, :2, :2, :2]
    delta_pack(part, part.clone())


def pack_doubles() -> None:
    import torch

    from rose.kernels.delta_pack import delta_pack

    delta_pack(torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))


def apply_bytes() -> None:
    import torch

    from rose.kernels.delta_apply import delta_apply

    entries = torch.zeros(1, dtype=torch.int64)
    payload = torch.zeros(4, dtype=torch.uint8)
    delta_apply(
        torch.zeros(4, dtype=torch.bfloat16), entries, entries, payload, block_elements=BLOCK
    )


def test_tensors_of_another_layout_are_refused(child: Child) -> None:
    with pytest.raises(InvalidArgument, match="at most 4 dimensions may lie apart"):
        child.run(pack_of_five_dimensions)
    with pytest.raises(InvalidArgument, match=r"new is torch\.float64; it must have 8, 16 or 32-b"):
        child.run(pack_doubles)
    with pytest.raises(InvalidArgument, match=r"payload is torch\.uint8 of shape \(4,\); it must"):
        child.run(apply_bytes)
