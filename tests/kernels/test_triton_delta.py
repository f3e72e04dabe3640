"""Packing and applying in Triton: the bits of the reference."""

from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels import interpreter as triton
from tests.kernels.interpreter import Bits, Child
from tests.reference import delta as reference

BLOCK = 16_384


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
    shape: Any = None,
    **group: int,
) -> None:
    """Pack, apply and undo; all bits are those of the reference."""
    shadow = old.copy()
    want = reference.pack(new, shadow, block_elements=block)
    offsets = offsets_of(want.entries)
    packed = child.run(
        triton.delta_pack, new, old, skip=skip, block_elements=block, shapes=(shape, shape), **group
    )
    assert packed.entries == want.entries
    assert packed.arena == want.payload
    assert packed.offsets == offsets
    assert packed.words == len(want.payload)
    assert packed.digest == reference.digest(shadow)
    assert (packed.shadow == shadow).all()
    delta = (want.entries, offsets, want.payload)
    options = {"block_elements": block, **group}
    after = child.run(triton.delta_apply, old, *delta, skip=skip, shape=shape, **options)
    assert (after == new).all()
    assert (child.run(triton.delta_apply, new, *delta, undo=True, **options) == old).all()


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
    check_twins(child, new, old, shape=shape)
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


def test_zeros_infinities_and_nans_are_bits_like_others(child: Child) -> None:
    # Every pair: among them 0xFFFF to 0 and back, which are steps, and 0 to -0, which is none.
    old, new = (grid.astype(np.uint16).ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    check_twins(child, new, old)


def test_arrays_at_odd_addresses_have_the_same_bits(child: Child) -> None:
    old = random_bits(1500)
    check_twins(child, changed_from(old, 0.01), old, skip=1)


def test_an_odd_last_raw_block_ends_in_zero_bits(child: Child) -> None:
    old = random_bits(7)
    packed = child.run(triton.delta_pack, random_bits(7, seed=2), old, block_elements=BLOCK)
    assert packed.entries[0] & 15 == reference.RAW
    assert packed.arena[-1] >> 16 == 0


# ---- any order, any number of blocks at a time ---------------------------------------------------


def test_blocks_may_lie_in_any_order(child: Child) -> None:
    old = random_bits(2 * BLOCK + 100)
    new = changed_from(old, 0.002)
    want = reference.pack(new, old.copy(), block_elements=BLOCK)
    ends = [*offsets_of(want.entries), len(want.payload)]
    blocks = [want.payload[at:end] for at, end in pairwise(ends)]
    arena = [word for block in reversed(blocks) for word in block]
    offsets = [len(arena) - end for end in ends[1:]]
    after = child.run(triton.delta_apply, old, want.entries, offsets, arena, block_elements=BLOCK)
    assert (after == new).all()


@pytest.mark.parametrize("count", [BLOCK, BLOCK + 1, 2 * BLOCK + 9])
def test_part_after_part_has_the_bits_of_the_whole(child: Child, count: int) -> None:
    old = random_bits(count)
    check_twins(child, changed_from(old, 0.002, exceptions=0.9), old, group=BLOCK)


# ---- blocks that are sound and that no writer of ours makes --------------------------------------


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


GAP = Coded()
SOUND = {
    "gap": GAP,
    "bitmap": replace(GAP, is_bitmap=True),
    "steps": replace(GAP, ranks=(), magnitudes=(), large_ranks=(), large=()),
    # Each change listed, with sizes from 1 on.
    "all": replace(
        GAP, m=2, magnitudes=(0, 1, 2, 3, 0, 0, 1, 2), large_ranks=(4, 5), large=(4, 0x7FFE)
    ),
    # The largest sizes: 2^15 down, one less up.
    "ends": replace(
        GAP, m=1, ranks=(0, 1), magnitudes=(0, 0), large_ranks=(0, 1), large=(32766, 32765)
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_whatever_is_sound_is_read(child: Child, name: str) -> None:
    entry, payload = SOUND[name].encode()
    old = random_bits(Coded.ELEMENTS)
    want = old.copy()
    reference.apply(reference.Delta(len(old), BLOCK, [entry], payload), want)
    after = child.run(triton.delta_apply, old, [entry], [0], payload, block_elements=BLOCK)
    assert (after == want).all()
    assert np.flatnonzero(old != after).tolist() == list(SOUND[name].positions)
