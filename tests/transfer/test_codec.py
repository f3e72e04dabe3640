"""The laws of the codec, and its reference held against it on whatever Hypothesis finds."""

import itertools
import mmap
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose import _core
from rose.errors import InvalidArgument
from rose.transfer import delta_apply, delta_pack
from rose.transfer.codec.backend import HostBackend
from rose.transfer.codec.operations import delta_merge, digest, topk_pack, topk_unpack
from tests.reference import delta as reference
from tests.transfer.twins import (
    DENSE,
    ISAS,
    LAYOUTS,
    SIZES,
    SPECIAL,
    WIDE,
    WIDTHS,
    Bits,
    around,
    as_model,
    elements,
    pack_both,
    same,
    unaligned,
)
from tests.vectors.delta_v2 import changed, weights


@st.composite
def versions(draw: st.DrawFn, widths: tuple[int, ...] = (16,)) -> tuple[Bits, Bits]:
    """Draw new and old: random bits or special patterns, some of them steps of one."""
    count = draw(st.sampled_from(SIZES))
    width = draw(st.sampled_from(widths))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    density = draw(st.sampled_from([0.0, 0.003, 0.02, 0.2, 0.6, 1.0]))
    steps = draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    new, old = changed(rng, count, density=density, steps=steps, width=width)
    if draw(st.booleans()):
        is_special = rng.random(count) < 0.5
        patterns = np.array(SPECIAL, np.uint32).astype(new.dtype)
        new[is_special] = rng.choice(patterns, int(is_special.sum()))
        old[is_special] = rng.choice(patterns, int(is_special.sum()))
    return new, old


thresholds = st.sampled_from([1, 0x0080, 0x3C00, 0x3F80, 0x7F80, 0x7FFF, 0x8000])
layouts = st.sampled_from(sorted(LAYOUTS))


@given(versions(WIDTHS), st.sampled_from(ISAS), layouts, st.sampled_from([1, 2, 5]))
def test_twins_say_what_the_reference_says(
    pair: tuple[Bits, Bits], isa: str, layout: str, threads: int
) -> None:
    new, old = pair
    delta, shadow = pack_both(new, old, isa=isa, layout=LAYOUTS[layout], threads=threads)
    held = LAYOUTS[layout](old)
    delta_apply(held, delta, verify=True)
    assert elements(held) == elements(shadow) == new.tolist()
    positions, values = topk_unpack(delta, LAYOUTS[layout](old))
    assert (positions.tolist(), values.tolist()) == reference.topk_unpack(as_model(delta), old)
    assert delta.changed == len(positions)
    delta_apply(held, delta, undo=True, verify=True)
    assert elements(held) == old.tolist()
    assert around(held) == {0x55} or layout == "unaligned"


@given(versions(), thresholds, st.sampled_from(ISAS), layouts, st.sampled_from([None, 1, 3, 255]))
def test_twins_send_what_the_reference_sends(
    pair: tuple[Bits, Bits], threshold: int, isa: str, layout: str, limit: int | None
) -> None:
    new, old = pair
    ages = None
    if limit is not None:
        counts = np.random.default_rng(limit).choice([0, 1, 2, 3, 254, 255], len(new))
        ages = reference.Ages(counts.astype(np.uint8), limit)
    delta, shadow = pack_both(
        new, old, isa=isa, threshold=threshold, ages=ages, layout=LAYOUTS[layout]
    )
    held = unaligned(old)
    delta_apply(held, delta, verify=True)
    assert held.tolist() == elements(shadow)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("density", [0.01, 0.3])
@pytest.mark.parametrize(
    ("count", "block_elements"),
    [
        (DENSE - 1, DENSE),
        (DENSE, DENSE),
        (DENSE + 1, DENSE),
        (WIDE + 1, WIDE),
    ],
)
def test_borders_of_blocks(count: int, block_elements: int, density: float, isa: str) -> None:
    if block_elements == WIDE and density == 0.3:
        density = 0.05  # the reference takes a while
    rng = np.random.default_rng(count)
    new, old = changed(rng, count, density=density, steps=0.89)
    delta, shadow = pack_both(new, old, isa=isa, block_elements=block_elements)
    held = unaligned(old)
    delta_apply(held, delta)
    assert np.array_equal(held, shadow)
    delta_apply(held, delta, undo=True)
    assert np.array_equal(held, old)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("steps", [1.0, 0.0])
def test_the_kind_with_the_fewest_words_is_taken(steps: float, width: int) -> None:
    rng = np.random.default_rng(3)
    kinds = []
    raw = 1021 * width // 32 + 1
    for density in np.linspace(0, 1, 21)[1:]:
        new, old = changed(rng, 1021, density=float(density), steps=steps, width=width)
        delta, _ = pack_both(new, old, isa=ISAS[-1])
        kinds.append(int(delta.entries[0]) & 15)
        assert len(delta.payload) <= raw
    # From few to many changes; at the very end GAP has two words for each 32 positions as well.
    order = {reference.GAP: 0, reference.BITMAP: 1, reference.RAW: 2}
    assert kinds[0] == reference.GAP
    ranks = [order[kind] for kind in kinds]
    assert ranks[:-1] == sorted(ranks[:-1])
    assert reference.BITMAP in kinds


@pytest.mark.parametrize("threads", [2, 3, 64])
@pytest.mark.parametrize("count", [0, 5, DENSE, 7 * DENSE + 3])
def test_any_number_of_threads_makes_the_same_delta(count: int, threads: int) -> None:
    new, old = changed(np.random.default_rng(count), count, density=0.05, steps=0.8)
    shadow, other = old.copy(), old.copy()
    one = delta_pack(new, shadow, block_elements=DENSE)
    many = delta_pack(new, other, block_elements=DENSE, threads=threads)
    assert same(one, many)
    assert np.array_equal(other, new)
    big = np.tile(new, 40)  # worth more than one thread
    assert digest(big, threads=threads) == digest(big)


def test_a_base_is_taken_on_trust() -> None:
    new, old = changed(np.random.default_rng(5), 5000, density=0.1, steps=0.5)
    first, second = digest(old)
    delta = delta_pack(new, old.copy(), base_digest=(first, second ^ 1))
    assert delta.base_digest == (first, second ^ 1)
    with pytest.raises(InvalidArgument, match=r"base_digest .* two numbers of 64 bits"):
        delta_pack(new, old.copy(), base_digest=(-1, 0))


# ---- top-k


@given(versions(), st.sampled_from([0, 1, 2, 10, 500, 1 << 40]), st.sampled_from(ISAS))
def test_threshold_is_that_of_the_reference(pair: tuple[Bits, Bits], budget: int, isa: str) -> None:
    new, old = pair
    threshold = HostBackend(isa=isa).topk_threshold(unaligned(new), unaligned(old), budget=budget)
    assert threshold == reference.topk_threshold(new, old, budget)


def test_any_number_of_threads_takes_the_same_largest_changes() -> None:
    new, old = weights(np.random.default_rng(29), 3 * 64 * 4096 + 77)  # three parts, and an end
    ages = (np.arange(old.size) % 251 == 0).astype(np.uint8)
    deltas, moved = [], []
    for threads in (1, 2, 3):
        moved.append(ages.copy())
        deltas.append(
            topk_pack(new, old.copy(), budget=1000, ages=moved[-1], age_limit=1, threads=threads)
        )
    assert all(same(deltas[0], other) for other in deltas[1:])
    assert all(np.array_equal(moved[0], other) for other in moved[1:])


@pytest.mark.parametrize("threads", [2, 3])
def test_every_change_counts_whatever_the_number_of_threads(threads: int) -> None:
    new, old = weights(np.random.default_rng(31), 3 * 64 * 4096 + 77)
    keys = reference.change_key(new, old)[new != old]
    for key in np.unique(keys)[-20:].tolist():
        budget = int((keys >= key).sum()) - 1  # one change that is not counted, and `key` fits
        found = HostBackend(isa=None).topk_threshold(new, old, budget=budget, threads=threads)
        assert found == key + 1


# ---- digests


@given(
    st.lists(st.integers(0, 300), max_size=5),
    st.integers(0, 3),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from(ISAS),
)
def test_digest_is_the_sum_of_its_parts(words: list[int], rest: int, seed: int, isa: str) -> None:
    bits = np.random.default_rng(sum(words)).integers(
        0, 1 << 16, 4 * sum(words) + rest, dtype=np.uint16
    )
    whole = _core.digest(bits, seed=seed, isa=isa)
    assert whole == reference.digest(bits, seed=seed)
    borders = [0, *(4 * sum(words[: i + 1]) for i in range(len(words))), len(bits)]
    parts = [
        _core.digest(unaligned(bits[a:b]), first_index=a, seed=seed, isa=isa)
        for a, b in itertools.pairwise(borders)
    ]
    assert whole == tuple(sum(part[i] for part in parts) % (1 << 64) for i in range(2))


# ---- payloads of others


STARVED = """
import resource
import numpy as np
from rose.errors import OutOfMemory
from rose.transfer import delta_pack
new, shadow = np.ones(1 << 26, np.uint16), np.zeros(1 << 26, np.uint16)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20),) * 2)
try:
    delta_pack(new, shadow)
except OutOfMemory as error:
    print(error)
assert not shadow.any()
"""


def test_shadow_stays_when_there_is_no_room() -> None:
    command = [sys.executable, "-c", STARVED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"no memory for {1 << 25} numbers of 4 bytes\n"


def big_zeros(count: int) -> Bits:
    return np.frombuffer(mmap.mmap(-1, count), np.uint8)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_more_than_2_31_elements() -> None:
    # Anonymous pages that nobody writes to cost no memory, but those that are read may.
    count = (1 << 31) + WIDE + 5
    where = np.array([0, (1 << 31) - 1, 1 << 31, (1 << 31) + WIDE - 1, count - 1])
    new, shadow = big_zeros(count), big_zeros(count)
    new[where] = [1, 0xFF, 7, 1, 9]
    delta = delta_pack(new, shadow, threads=2)
    assert shadow[where].tolist() == new[where].tolist()
    shadow[where] = 0
    positions, values = topk_unpack(delta, shadow)
    assert positions.tolist() == where.tolist()
    assert values.tolist() == new[where].tolist()
    assert delta_merge(delta, delta_pack(shadow, new)).changed == 0
    delta_apply(shadow, delta, verify=True)
    assert digest(shadow, threads=2) == delta.digest
    box = shadow[1:].reshape(-1, 4)[:, 1:3]  # a box whose offsets are beyond 2^31 too
    assert digest(np.ascontiguousarray(box[-1000:])) == digest(box[-1000:])
    delta_apply(shadow, delta, undo=True, verify=True)
    assert not shadow[where].any()
