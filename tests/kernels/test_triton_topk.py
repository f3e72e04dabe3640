"""Top-k deltas in Triton: the threshold, what is sent, and what is listed of it."""

import numpy as np
import pytest

from tests.kernels import interpreter as triton
from tests.kernels.interpreter import Bits, Child
from tests.reference import delta as reference

BLOCK = 16_384
# Of bf16: zeros, subnormals, the smallest normal, ones and their neighbours, the largest,
# infinities, NaNs.
SPECIAL = [
    *(0x0000, 0x8000, 0x0001, 0x007F, 0x8001, 0x0080, 0x0081, 0x8080, 0x3F80, 0x3F81, 0xBF80),
    *(0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF),
]


def weights(count: int, *, seed: int = 3) -> tuple[Bits, Bits]:
    """Return new and old bf16 bits of small weights, of which half changed."""
    rng = np.random.default_rng(seed)
    old = (rng.standard_normal(count) * 0.02).astype(np.float32)
    new = old + (rng.standard_normal(count) * 1e-3).astype(np.float32) * (rng.random(count) < 0.5)
    return ((values.view(np.uint32) >> 16).astype(np.uint16) for values in (new, old))


def special_pairs() -> tuple[Bits, Bits]:
    new, old = np.meshgrid(SPECIAL, SPECIAL)
    return new.astype(np.uint16).ravel(), old.astype(np.uint16).ravel()


def offsets_of(entries: list[int]) -> list[int]:
    return [sum(entry >> 44 for entry in entries[:block]) for block in range(len(entries))]


@pytest.mark.parametrize("budget", [0, 1, 7, 100, 480, 2000])
def test_the_threshold_is_that_of_the_reference(child: Child, budget: int) -> None:
    new, old = weights(2000)
    want = reference.topk_threshold(new, old, budget)
    assert child.run(triton.topk_threshold, new, old, budget=budget) == want


@pytest.mark.parametrize("budget", [0, 40, 120, 200, 400])
def test_the_threshold_of_special_bits_is_that_of_the_reference(child: Child, budget: int) -> None:
    new, old = special_pairs()
    want = reference.topk_threshold(new, old, budget)
    assert child.run(triton.topk_threshold, new, old, budget=budget) == want


def test_no_budget_sends_nothing_also_of_nan(child: Child) -> None:
    new, old = special_pairs()
    assert child.run(triton.topk_threshold, new, old, budget=0) == reference.NOTHING_SENT
    packed = child.run(triton.delta_pack, new, old, budget=0, block_elements=BLOCK)
    assert packed.entries == [0]
    assert (packed.shadow == old).all()


def test_of_nothing_the_threshold_is_the_smallest(child: Child) -> None:
    nothing = np.array([], np.uint16)
    assert child.run(triton.topk_threshold, nothing, nothing, budget=0) == 1


@pytest.mark.parametrize("threshold", [0, 1, 0x0080, 0x3F80, 0x7F7F, 0x7F80, 0x7FFF, 0x8000])
def test_only_what_reaches_the_threshold_is_sent(child: Child, threshold: int) -> None:
    new, old = special_pairs()
    shadow = old.copy()
    want = reference.pack(new, shadow, block_elements=BLOCK, threshold=threshold)
    packed = child.run(triton.delta_pack, new, old, threshold=threshold, block_elements=BLOCK)
    assert (packed.entries, packed.arena) == (want.entries, want.payload)
    assert (packed.shadow == shadow).all()
    assert packed.digest == reference.digest(shadow)


def test_topk_pack_keeps_to_the_budget_and_leaves_the_rest_in_the_shadow(child: Child) -> None:
    new, old = weights(BLOCK + 300)
    shadow = old.copy()
    threshold = reference.topk_threshold(new, old, 150)
    want = reference.pack(new, shadow, block_elements=BLOCK, threshold=threshold)
    packed = child.run(triton.delta_pack, new, old, budget=150, block_elements=BLOCK, group=BLOCK)
    assert (packed.entries, packed.arena) == (want.entries, want.payload)
    assert (packed.shadow == shadow).all()
    assert packed.digest == reference.digest(shadow)
    assert 0 < sum(entry >> 4 & 0xFFFFF for entry in packed.entries) <= 150


def ages_of(count: int) -> Bits:
    return np.random.default_rng(7).choice([0, 1, 2, 3, 254, 255], count).astype(np.uint8)


@pytest.mark.parametrize("threshold", [None, 0, 1, 0x3C00, 0x8000])
def test_what_is_due_is_sent_and_the_rest_grows_older(child: Child, threshold: int | None) -> None:
    new, old = weights(700)
    ages, shadow = reference.Ages(ages_of(700), 3), old.copy()
    packed = child.run(
        triton.delta_pack,
        new,
        old,
        threshold=threshold,
        ages=ages.counts.copy(),
        age_limit=3,
        block_elements=BLOCK,
    )
    want = reference.pack(new, shadow, block_elements=BLOCK, threshold=threshold or 0, ages=ages)
    assert (packed.entries, packed.arena) == (want.entries, want.payload)
    assert (packed.shadow == shadow).all()
    assert (packed.ages == ages.counts).all()


@pytest.mark.parametrize("budget", [0, 100, 300, 700])
def test_what_is_due_counts_to_the_budget(child: Child, budget: int) -> None:
    new, old = weights(700)
    ages = reference.Ages(ages_of(700), 3)
    got = child.run(
        triton.topk_threshold,
        new,
        old,
        budget=budget,
        ages=ages.counts,
        age_limit=3,
        shape=(7, 2, 50),
    )
    assert got == reference.topk_threshold(new, old, budget, ages)


def test_unpacked_changes_are_those_of_the_reference(child: Child) -> None:
    new, old = weights(2 * BLOCK + 100)
    leap = np.random.default_rng(1).integers(1, 1 << 16, BLOCK, dtype=np.uint16)
    new[BLOCK : 2 * BLOCK] = old[BLOCK : 2 * BLOCK] + leap  # one RAW block between two others
    new[:BLOCK] = np.where(np.arange(BLOCK) % 16, old[:BLOCK], new[:BLOCK])
    want = reference.pack(new, old.copy(), block_elements=BLOCK)
    assert [entry & 15 for entry in want.entries] == [
        reference.GAP,
        reference.RAW,
        reference.BITMAP,
    ]
    positions, values = reference.topk_unpack(want, old)
    found = child.run(
        triton.topk_unpack,
        old,
        want.entries,
        offsets_of(want.entries),
        want.payload,
        block_elements=BLOCK,
        shape=(2 * BLOCK + 100, 1),
        group=2 * BLOCK,
    )
    assert found == (positions, values)
