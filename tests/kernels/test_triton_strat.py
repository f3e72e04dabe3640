"""STRAT blocks in Triton: the bits of the reference, and an error for what no pack writes."""

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pytest

from tests.kernels import interpreter as triton
from tests.kernels.interpreter import Bits, Child, Table
from tests.kernels.links import BLOCK, RULE, bitmap_link, dense_link
from tests.reference import delta as reference
from tests.reference import strat
from tests.reference.delta import Delta
from tests.reference.strat import ClassRule

COUNT = 500
RULES = {
    8: ClassRule(3, 4, 5, 0b1, (3, 2, 2, 2, 1, 1, 0, 0)),
    16: ClassRule(7, 8, 116, 0b11, (3, 0, 2, 2, 2, 2, 1, 0)),
    32: ClassRule(0, 32, 0, 0, (31, 4, 2, 2, 2, 2, 1, 0)),
}


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with triton.child(interpret=True) as running:
        yield running


def versions(count: int, *, width: int = 16, density: float = 0.3) -> tuple[Bits, Bits]:
    """Return old weights and new ones; small ones change most often, by little or the most."""
    rng = np.random.default_rng(count)
    weights = rng.normal(0, 0.02, count).astype(np.float32)
    old = (weights.view(np.uint32) >> (32 - width)).astype(f"u{width // 8}")
    by = rng.geometric(0.5, count) * rng.choice([1, -1], count)
    by[rng.random(count) < 0.05] = -(1 << (width - 1))
    by[rng.random(count) * np.abs(weights) >= density * 0.01] = 0
    return old, (old.astype(np.int64) + by).astype(old.dtype)


def table_of(delta: Delta) -> Table:
    ends = [0, *accumulate(entry >> 44 for entry in delta.entries)]
    return delta.entries, ends[:-1], delta.payload


def linked(old: Bits, new: Bits, rule: ClassRule) -> tuple[Delta, Delta]:
    delta = reference.pack(new, old.copy(), block_elements=BLOCK)
    return delta, strat.strat_pack(delta, old, rule)


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("count", [0, 33, 1027])
def test_small_deltas_cross_the_link_with_the_bits_of_the_reference(
    child: Child, count: int, width: int
) -> None:
    old, new = versions(count, width=width)
    delta, link = linked(old, new, RULES[width])
    how = {"block_elements": BLOCK, "rule": RULES[width]}
    packed = child.run(triton.strat, "pack", old, table_of(delta), **how)
    assert packed == (link.entries, link.payload, -1)
    unpacked = child.run(triton.strat, "unpack", old, table_of(link), **how)
    assert unpacked == (delta.entries, delta.payload, -1)


def test_the_base_may_be_a_box_and_programs_take_several_blocks(child: Child) -> None:
    old, new = versions(2 * BLOCK + 300, density=0.05)
    delta, link = linked(old, new, RULES[16])
    assert [entry & 15 for entry in link.entries] == [reference.STRAT] * 3
    how = {"block_elements": BLOCK, "rule": RULES[16], "shape": (4, (2 * BLOCK + 300) // 4)}
    unpacked = child.run(triton.strat, "unpack", old, table_of(link), programs=1, **how)
    assert unpacked == (delta.entries, delta.payload, -1)


def test_class_that_changes_mostly_crosses_as_a_bitmap(child: Child) -> None:
    one = dense_link(3_001)
    how = {"block_elements": BLOCK, "rule": one.rule}
    packed = child.run(triton.strat, "pack", one.old, table_of(one.delta), **how)
    assert packed == (one.link.entries, one.link.payload, -1)
    unpacked = child.run(triton.strat, "unpack", one.old, table_of(one.link), **how)
    assert unpacked == (one.delta.entries, one.delta.payload, -1)


@pytest.mark.parametrize(
    ("flips", "wanted"), [((), -1), ((0, 39), -1), ((0,), 0), ((39,), 0), ((0, 1, 39), 0)]
)
def test_bitmap_of_a_class_has_as_many_bits_as_changes(
    child: Child, flips: tuple[int, ...], wanted: int
) -> None:
    old, link = bitmap_link(*flips)
    how = {"block_elements": BLOCK, "rule": RULE}
    entries, payload, error = child.run(triton.strat, "unpack", old, table_of(link), **how)
    assert error == wanted
    if error == -1:
        delta = strat.strat_unpack(link, old, RULE)
        assert (entries, payload) == (delta.entries, delta.payload)


def link_of_one_block() -> tuple[Bits, int, list[int]]:
    old, new = versions(COUNT, density=0.05)
    _, link = linked(old, new, RULES[16])
    assert link.entries[0] & 15 == reference.STRAT
    return old, link.entries[0], link.payload


def unpacked(child: Child, old: Bits, entry: int, payload: list[int], at: int = 0) -> int:
    how = {"block_elements": BLOCK, "rule": RULES[16]}
    *_, error = child.run(triton.strat, "unpack", old, ([entry], [at], payload), **how)
    return error


@pytest.mark.parametrize(
    "change",
    [
        lambda entry, words: (entry + (1 << 4), words),  # one change more
        lambda entry, words: (entry - (1 << 4), words),
        lambda entry, words: (entry | 1 << 24, words),  # listed
        lambda entry, words: (entry + (1 << 44), [*words, 0]),
        lambda entry, words: (entry - (1 << 44), words),
        lambda entry, words: (entry, words[:-1]),
        lambda entry, words: (entry & 0xFFFFFF | 250 << 44, [*words, *[0] * 250]),
        lambda entry, words: (entry, [*words[:-1], words[-1] | 1 << 31]),  # an unused bit
        lambda entry, words: (entry, [0] * len(words)),  # no count ends
        lambda entry, words: (entry, [0xFFFFFFFF] * len(words)),
        lambda entry, words: (entry, [*words[:4], *[0] * (len(words) - 4)]),
        lambda entry, words: (entry, [*words[:4], *[0xFFFFFFFF] * (len(words) - 4)]),
    ],
)
def test_what_no_pack_writes_is_corrupt(child: Child, change: object) -> None:
    old, entry, words = link_of_one_block()
    assert unpacked(child, old, entry, words) == -1
    assert unpacked(child, old, *change(entry, words)) == 0  # type: ignore[operator]


def test_a_block_that_takes_as_much_as_raw_is_corrupt(child: Child) -> None:
    old, _ = versions(COUNT)
    differences = np.ones(COUNT, np.uint16)
    for bits, is_sound in ((4, True), (15, False)):
        rule = ClassRule(7, 8, 116, 0xFF, (bits,) * 8)
        words = strat.strat_block(old, differences, rule)
        assert (len(words) < COUNT // 2) == is_sound
        entry = reference.entry_of(reference.STRAT, COUNT, 0, len(words))
        how = {"block_elements": BLOCK, "rule": rule}
        *_, error = child.run(triton.strat, "unpack", old, ([entry], [0], words), **how)
        assert error == (-1 if is_sound else 0)


@pytest.mark.parametrize("at", [1, -1, 1 << 40])
def test_a_block_outside_the_payload_is_corrupt(child: Child, at: int) -> None:
    assert unpacked(child, *link_of_one_block(), at=at) == 0


def test_a_flipped_bit_is_corrupt_or_another_block(child: Child) -> None:
    """What is read is what a pack of it writes again: no two streams say one thing."""
    old, entry, words = link_of_one_block()
    rng = np.random.default_rng(5)
    how = {"block_elements": BLOCK, "rule": RULES[16]}
    errors = 0
    for bit in rng.choice(32 * (len(words) - 1), 8, replace=False).tolist():
        flipped = list(words)
        flipped[bit // 32] ^= 1 << bit % 32
        entries, payload, error = child.run(
            triton.strat, "unpack", old, ([entry], [0], flipped), **how
        )
        if error == -1:
            again = child.run(triton.strat, "pack", old, (entries, [0], payload), **how)
            assert again == ([entry], flipped, -1)
        errors += error == 0
    assert errors
