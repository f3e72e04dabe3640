"""The laws of the delta codec, stated once for all its twins.

A twin is one implementation: the core with one instruction set, the CUDA kernels on a CPU or on a
GPU, the Triton kernels. A test file instantiates the laws by a subclass of `CodecLaws`, and by a
fixture `twin` that returns the implementation. A slow twin overrides the lists of cases.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codec_cases import (
    BLOCK,
    BOXES,
    CASES,
    DAMAGED_BLOCK,
    SEED,
    SHORT,
    SPECIAL,
    Answer,
    BoxCase,
    Case,
    Damage,
    aged,
    answer,
    box_answer,
    cut_deltas,
    cut_out,
    damages,
    fast_threshold,
    sound_answer,
    sound_blocks,
    three_blocks,
    with_damage,
)
from tests.reference import delta as reference
from tests.reference.delta import Ages, Bits, Delta
from tests.reference.delta_reader import Refused
from tests.vectors import delta_v2
from tests.vectors.delta_v2 import changed, from_hex, numbers

VECTORS = json.loads(delta_v2.PATH.read_text(encoding="utf-8"))
TOPK = Case(BLOCK, BLOCK + 6, 0.4, 0.5)
# Neighbours of one, and quiet NaNs, beside the special bits of the cases.
PATTERNS = [*SPECIAL, 0x3F7F, 0x3F81, 0x7FC0, 0xFFC1, 0xFFFE]
# Two classes share a law, and Hypothesis calls that an error.
inherited = settings(suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])


class Twin(Protocol):
    """One implementation of the codec, on NumPy arrays with any strides >= 0.

    Attributes:
        is_whole: whether a damaged delta changes nothing at all. If not, the sound blocks are
            applied.
        place: first index and seed of the digest that `pack` returns.
    """

    is_whole: bool
    place: tuple[int, int]

    def pack(
        self,
        new: Bits,
        shadow: Bits,
        *,
        block_elements: int,
        threshold: int = 0,
        ages: Ages | None = None,
    ) -> tuple[Delta, tuple[int, int]]:
        """Pack; change `shadow` and `ages` in place. Return the delta and the shadow's digest."""

    def apply(self, delta: Delta, weights: Bits, *, undo: bool = False) -> int | None:
        """Apply or undo in place. Return the lowest damaged block."""

    def unpack(self, delta: Delta, base: Bits) -> tuple[list[int], list[int], int | None]:
        """Return positions and new bits of the changes, and the lowest damaged block."""

    def threshold(self, new: Bits, shadow: Bits, *, budget: int, ages: Ages | None = None) -> int:
        """Return the smallest threshold that at most `budget` changes reach."""

    def digest(self, bits: Bits) -> tuple[int, int]:
        """Return the digest with first index 0 and seed 0."""


class PlacedTwin(Twin, Protocol):
    """A twin that digests parts of a tensor."""

    def digest(self, bits: Bits, *, first_index: int = 0, seed: int = 0) -> tuple[int, int]:
        """Return the digest of elements that start at element `first_index` of their tensor."""


def check_pack(twin: Twin, want: Answer, case: Case, *, threshold: int = 0) -> None:
    """Check that delta, shadow and digest of a pack are those of the reference."""
    shadow = want.old.copy()
    delta, digest = twin.pack(want.new, shadow, block_elements=case.block, threshold=threshold)
    assert delta == want.delta
    assert np.array_equal(shadow, want.after)
    assert digest == want.digest(*twin.place)


@st.composite
def versions(draw: st.DrawFn) -> tuple[Bits, Bits]:
    """Draw new and old: random or special bits, of which any share changes."""
    count = draw(st.sampled_from([0, 1, 3, 4, 31, 32, 33, 63, 65, 127, 1021]))
    width = draw(st.sampled_from([8, 16, 32]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    density = draw(st.sampled_from([0.0, 0.003, 0.02, 0.2, 0.6, 1.0]))
    steps = draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    new, old = changed(rng, count, density=density, steps=steps, width=width)
    if draw(st.booleans()):
        is_special = rng.random(count) < 0.5
        patterns = np.array(PATTERNS, np.uint32).astype(new.dtype)
        new[is_special] = rng.choice(patterns, int(is_special.sum()))
        old[is_special] = rng.choice(patterns, int(is_special.sum()))
    return new, old


def delta_of(case: dict[str, Any]) -> Delta:
    entries = from_hex(case["entries"], "<u8").tolist()
    payload = from_hex(case["payload"], "<u4").tolist()
    count = len(from_hex(case["new"], numbers(case["width"])))
    return Delta(count, case["block_elements"], entries, payload, case["width"])


class CodecLaws:
    """Each method is a law; each list is what the law is tested on."""

    cases: ClassVar[Sequence[Case]] = CASES
    topk_cases: ClassVar[Sequence[Case]] = (TOPK, Case(BLOCK, 3_001, is_special=True))
    budgets: ClassVar[Sequence[int]] = (0, 1, 500, 2_500, 1 << 40)
    boxes: ClassVar[Sequence[BoxCase]] = BOXES
    packs: ClassVar[Sequence[Any]] = VECTORS["packs"]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        lists: dict[str, Sequence[Any]] = {
            "case": self.cases,
            "keyed": [case for case in self.cases if case.width == 16],
            "topk_case": self.topk_cases,
            "budget": self.budgets,
            "box": self.boxes,
            "width": [8, 16, 32],
            "damage": damages(),
            "sound": sound_blocks(),
            "short": list(SHORT),
            "cut": [0, 1],
            "packed": self.packs,
            "largest": VECTORS["topk"],
        }
        for name in metafunc.fixturenames:
            if name in lists:
                ids = [
                    one["name"] if isinstance(one, dict) else getattr(one, "name", str(one))
                    for one in lists[name]
                ]
                metafunc.parametrize(name, lists[name], ids=ids)

    # ---- pack, apply, unpack, digest

    def test_pack_is_the_reference(self, twin: Twin, case: Case) -> None:
        check_pack(twin, answer(case), case)

    def test_apply_and_undo_are_the_reference(self, twin: Twin, case: Case) -> None:
        want = answer(case)
        weights = want.old.copy()
        assert twin.apply(want.delta, weights) is None
        assert np.array_equal(weights, want.new)
        assert twin.apply(want.delta, weights, undo=True) is None
        assert np.array_equal(weights, want.old)

    def test_unpack_is_the_reference(self, twin: Twin, case: Case) -> None:
        want = answer(case)
        assert twin.unpack(want.delta, want.old) == (*want.unpacked, None)

    def test_digest_is_the_reference(self, twin: Twin, case: Case) -> None:
        assert twin.digest(answer(case).new) == answer(case).digest(0, 0)

    def test_box_is_changed_where_it_lies(self, twin: Twin, box: BoxCase, width: int) -> None:
        """A box packs, applies and digests like a copy of it, and nothing around it changes."""
        whole, want = box_answer(box, width)
        old, new = whole.old.copy(), whole.new.copy()
        part, target = cut_out(new, box), cut_out(old, box)
        found = twin.pack(part, target, block_elements=BLOCK)
        assert found == (want.delta, want.digest(*twin.place))
        assert np.array_equal(target, part)
        assert twin.digest(part) == want.digest(0, 0)
        assert twin.apply(want.delta, target, undo=True) is None
        assert np.array_equal(old, whole.old)
        assert twin.unpack(want.delta, target) == (*want.unpacked, None)
        assert twin.apply(want.delta, target) is None
        assert np.array_equal(target, part)

    @inherited
    @given(pair=versions())
    def test_any_bits_come_back(self, twin: Twin, pair: tuple[Bits, Bits]) -> None:
        new, old = pair
        shadow, want = old.copy(), old.copy()
        model = reference.pack(new, want, block_elements=BLOCK)
        delta, _ = twin.pack(new, shadow, block_elements=BLOCK)
        assert delta == model
        assert np.array_equal(shadow, new)
        assert twin.unpack(delta, old) == (*reference.topk_unpack(delta, old), None)
        weights = old.copy()
        assert twin.apply(delta, weights) is None
        assert np.array_equal(weights, new)
        assert twin.apply(delta, weights, undo=True) is None
        assert np.array_equal(weights, old)

    # ---- top-k

    def test_threshold_is_the_reference(self, twin: Twin, topk_case: Case, budget: int) -> None:
        want = answer(topk_case)
        threshold = twin.threshold(want.new, want.old, budget=budget)
        assert threshold == fast_threshold(want.new, want.old, budget)
        check_pack(twin, answer(topk_case, threshold), topk_case, threshold=threshold)

    def test_largest_changes_fit_the_budget(self, twin: Twin, keyed: Case) -> None:
        want = answer(keyed)
        budget = np.count_nonzero(want.new != want.old) // 3
        threshold = twin.threshold(want.new, want.old, budget=budget)
        assert threshold == fast_threshold(want.new, want.old, budget)

    def test_due_changes_are_sent_and_ages_grow(
        self, twin: Twin, topk_case: Case, budget: int
    ) -> None:
        want, limit = answer(topk_case), 7
        ages = aged(topk_case, limit)
        threshold = twin.threshold(want.new, want.old, budget=budget, ages=ages)
        assert threshold == fast_threshold(want.new, want.old, budget, ages)
        mine, shadow, old = Ages(ages.counts.copy(), limit), want.old.copy(), want.old.copy()
        model = reference.pack(want.new, old, block_elements=BLOCK, threshold=threshold, ages=ages)
        delta, _ = twin.pack(want.new, shadow, block_elements=BLOCK, threshold=threshold, ages=mine)
        assert delta == model
        assert np.array_equal(shadow, old)
        assert np.array_equal(mine.counts, ages.counts)

    @inherited
    @given(
        pair=versions().filter(lambda pair: pair[0].itemsize == 2),
        threshold=st.sampled_from([0, 1, 0x0080, 0x3C00, 0x3F80, 0x7F80, 0x7FFF, 0x8000]),
        limit=st.sampled_from([None, 1, 3, 255]),
    )
    def test_changes_below_the_threshold_stay(
        self, twin: Twin, pair: tuple[Bits, Bits], threshold: int, limit: int | None
    ) -> None:
        new, old = pair
        ages = mine = None
        if limit is not None:
            counts = np.random.default_rng(limit).choice([0, 1, 2, 3, 254, 255], len(new))
            ages, mine = (Ages(counts.astype(np.uint8), limit) for _ in range(2))
        shadow, held = old.copy(), old.copy()
        options: dict[str, Any] = {"block_elements": BLOCK, "threshold": threshold}
        model = reference.pack(new, held, ages=ages, **options)
        delta, _ = twin.pack(new, shadow, ages=mine, **options)
        assert delta == model
        assert np.array_equal(shadow, held)
        if ages is not None and mine is not None:
            assert np.array_equal(mine.counts, ages.counts)

    # ---- damaged deltas

    def check_refused(self, twin: Twin, delta: Delta, block: int) -> None:
        """The damaged block is named, and keeps its weights; undoing restores all others."""
        want = three_blocks()
        weights = want.old.copy()
        assert twin.apply(delta, weights) == block
        kept = slice(block * BLOCK, (block + 1) * BLOCK)
        assert np.array_equal(weights[kept], want.old[kept])
        assert np.array_equal(
            weights[: kept.start], (want.old if twin.is_whole else want.new)[: kept.start]
        )
        assert twin.apply(delta, weights, undo=True) == block
        assert np.array_equal(weights, want.old)
        assert twin.unpack(delta, want.old)[2] == block

    def test_damaged_block_changes_nothing(self, twin: Twin, damage: Damage) -> None:
        self.check_refused(twin, with_damage(damage), DAMAGED_BLOCK)
        if not twin.is_whole:
            weights = three_blocks().old.copy()
            twin.apply(with_damage(damage), weights)
            assert np.array_equal(weights, three_blocks().new), "the blocks beside it are sound"

    def test_block_at_the_edge_of_the_format_is_sound(self, twin: Twin, sound: Damage) -> None:
        want = sound_answer(sound)
        weights = want.old.copy()
        assert twin.apply(want.delta, weights) is None
        assert np.array_equal(weights, want.after)
        assert twin.unpack(want.delta, want.old) == (*want.unpacked, None)

    def test_damaged_short_block_changes_nothing(self, twin: Twin, short: str) -> None:
        delta = SHORT[short]
        weights = np.zeros(delta.count, np.uint16)
        assert twin.apply(delta, weights) == 0
        assert not weights.any()
        assert twin.unpack(delta, weights)[2] == 0

    def test_cut_payload_changes_nothing_past_its_end(self, twin: Twin, cut: int) -> None:
        delta = cut_deltas()[cut]
        self.check_refused(twin, delta, 2 if delta.payload else 0)

    @inherited
    @given(data=st.data())
    def test_flipped_bits_are_refused_exactly_if_the_format_forbids_them(
        self, twin: Twin, data: st.DataObject
    ) -> None:
        rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
        width = data.draw(st.sampled_from([8, 16, 32]))
        density = data.draw(st.sampled_from([0.01, 0.1, 0.6]))
        new, old = changed(rng, 300, density=density, steps=0.7, width=width)
        new[7] = old[7] ^ 1  # so that the payload is not empty
        delta = reference.pack(new, old.copy(), block_elements=BLOCK)
        places = st.tuples(st.integers(0, len(delta.payload) - 1), st.integers(0, 31))
        for word, bit in data.draw(st.sets(places, min_size=1, max_size=3)):
            delta.payload[word] ^= 1 << bit
        after = old.copy()
        try:
            reference.apply(delta, after)
            bad = None
        except Refused:
            after, bad = old, 0
        weights = old.copy()
        assert twin.apply(delta, weights) == bad
        assert np.array_equal(weights, after)
        assert twin.unpack(delta, old)[2] == bad
        assert twin.apply(delta, weights, undo=True) == bad
        assert np.array_equal(weights, old)

    # ---- the vectors in the repository

    def test_pack_of_a_vector(self, twin: Twin, packed: dict[str, Any]) -> None:
        new, shadow, after = (
            from_hex(packed[name], numbers(packed["width"])) for name in ("new", "shadow", "after")
        )
        old, want = shadow.copy(), delta_of(packed)
        delta, digest = twin.pack(new, shadow, block_elements=packed["block_elements"])
        assert delta == want
        assert np.array_equal(shadow, after)
        if twin.place == (0, 0):
            assert list(digest) == from_hex(packed["digest"], "<u8").tolist()
        assert list(twin.digest(after)) == from_hex(packed["digest"], "<u8").tolist()
        assert twin.apply(want, old) is None
        assert np.array_equal(old, after)
        assert twin.apply(want, old, undo=True) is None
        assert np.array_equal(old, from_hex(packed["shadow"], numbers(packed["width"])))

    def test_largest_changes_of_a_vector(self, twin: Twin, largest: dict[str, Any]) -> None:
        new, shadow = (from_hex(largest[name], "<u2") for name in ("new", "shadow"))
        counts = from_hex(largest["ages"], "u1")
        ages = Ages(counts, largest["limit"]) if largest["limit"] else None
        old, want = shadow.copy(), delta_of(largest)
        threshold = twin.threshold(new, shadow, budget=largest["budget"], ages=ages)
        assert threshold == largest["threshold"]
        delta, _ = twin.pack(
            new, shadow, block_elements=largest["block_elements"], threshold=threshold, ages=ages
        )
        assert delta == want
        assert np.array_equal(shadow, from_hex(largest["after"], "<u2"))
        if ages is not None:
            assert np.array_equal(ages.counts, from_hex(largest["ages_after"], "u1"))
        positions = from_hex(largest["positions"], "<i8").tolist()
        assert twin.unpack(want, old) == (
            positions,
            from_hex(largest["values"], "<u2").tolist(),
            None,
        )


class DigestLaws:
    """Laws of a twin that digests parts of a tensor."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "vector" in metafunc.fixturenames:
            digests = VECTORS["digests"]
            metafunc.parametrize("vector", digests, ids=[one["name"] for one in digests])

    def test_digest_of_a_vector(self, twin: PlacedTwin, vector: dict[str, Any]) -> None:
        bits = from_hex(vector["bits"], numbers(vector["width"]))
        found = twin.digest(bits, first_index=vector["first_index"], seed=vector["seed"])
        assert list(found) == from_hex(vector["digest"], "<u8").tolist()

    @inherited
    @given(
        words=st.lists(st.integers(0, 300), max_size=5),
        rest=st.integers(0, 3),
        seed=st.integers(0, (1 << 64) - 1),
    )
    def test_digest_is_the_sum_of_its_parts(
        self, twin: PlacedTwin, words: list[int], rest: int, seed: int
    ) -> None:
        bits = np.random.default_rng(sum(words)).integers(
            0, 1 << 16, 4 * sum(words) + rest, dtype=np.uint16
        )
        whole = twin.digest(bits, seed=seed)
        assert whole == reference.digest(bits, seed=seed)
        borders = [0, *(4 * one for one in itertools.accumulate(words)), len(bits)]
        parts = [
            twin.digest(bits[first:last], first_index=first, seed=seed)
            for first, last in itertools.pairwise(borders)
        ]
        assert whole == tuple(sum(part[at] for part in parts) % (1 << 64) for at in range(2))

    @pytest.mark.parametrize("first_index", [0, 8, 1 << 33])
    @pytest.mark.parametrize("count", [1, 3, 1025, 5003])
    def test_digest_depends_on_index_and_seed(
        self, twin: PlacedTwin, count: int, first_index: int
    ) -> None:
        for width in (8, 16, 32):
            bits = answer(Case(BLOCK, count, width=width)).new
            found = twin.digest(bits, first_index=first_index, seed=SEED)
            assert found == reference.digest(bits, first_index=first_index, seed=SEED)
