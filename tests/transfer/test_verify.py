"""Wrong weights are found before a byte is written; what is applied by parts is undone exactly."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_apply, delta_pack
from rose.transfer.codec.operations import topk_pack
from tests.reference import delta as reference
from tests.transfer.twins import DENSE, LAYOUTS, WIDTHS, Bits, as_model, elements
from tests.vectors.delta_v2 import changed


def packed(width: int, count: int = 1000, seed: int = 1) -> tuple[Delta, Bits, Bits]:
    rng = np.random.default_rng(seed)
    new, old = changed(rng, count, density=0.05, steps=0.7, width=width)
    return delta_pack(new, old.copy(), block_elements=DENSE), new, old


@given(
    st.sampled_from(WIDTHS), st.sampled_from(sorted(LAYOUTS)), st.data(), st.sampled_from([1, 999])
)
def test_a_base_that_differs_where_it_is_touched_is_refused(
    width: int, layout: str, data: st.DataObject, count: int
) -> None:
    delta, new, old = packed(width, count)
    touched = np.flatnonzero(new != old)
    for undo, sound in ((False, old), (True, new)):
        held = LAYOUTS[layout](sound)
        delta_apply(held, delta, undo=undo, verify=True)
        wrong = sound.copy()
        if not len(touched):
            continue
        wrong[data.draw(st.sampled_from(touched.tolist()))] ^= 1 << data.draw(
            st.integers(0, width - 1)
        )
        held = LAYOUTS[layout](wrong)
        with pytest.raises(CorruptData, match=r"are not the (base|result) of the delta"):
            delta_apply(held, delta, undo=undo, verify=True)
        assert elements(held) == wrong.tolist()


def test_a_replay_is_refused() -> None:
    delta, new, old = packed(16)
    held = old.copy()
    delta_apply(held, delta, verify=True)
    with pytest.raises(CorruptData, match="not the base of the delta"):
        delta_apply(held, delta, verify=True)
    assert held.tolist() == new.tolist()
    delta_apply(held, delta, undo=True, verify=True)
    with pytest.raises(CorruptData, match="not the result of the delta"):
        delta_apply(held, delta, undo=True, verify=True)
    assert held.tolist() == old.tolist()


def test_a_foreign_delta_is_refused() -> None:
    delta, _, _ = packed(16)
    _, _, other = packed(16, seed=2)
    held = other.copy()
    with pytest.raises(CorruptData):
        delta_apply(held, delta, verify=True)
    assert held.tolist() == other.tolist()
    lying = replace(delta, digest=(delta.digest[0], delta.digest[1] ^ 1))
    _, _, old = packed(16)
    with pytest.raises(CorruptData):
        delta_apply(old, lying, verify=True)


# ---- what is never sent twice, and what is due


def test_what_is_unsent_for_long_is_sent() -> None:
    new, old = changed(np.random.default_rng(4), 3000, density=0.3, steps=0.5)
    shadow, ages = old.copy(), np.zeros(3000, np.uint8)
    model_shadow, model_ages = old.copy(), reference.Ages(np.zeros(3000, np.uint8), 3)
    changes = []
    for _ in range(5):
        delta = topk_pack(new, shadow, budget=10, ages=ages, age_limit=3)
        threshold = reference.topk_threshold(new, model_shadow, 10, model_ages)
        model = reference.pack(
            new, model_shadow, block_elements=65_536, threshold=threshold, ages=model_ages
        )
        assert as_model(delta) == model
        assert ages.tolist() == model_ages.counts.tolist()
        changes.append(delta.changed)
    assert max(changes[:3]) <= 10 < changes[3]
    assert shadow.tolist() == new.tolist()
    assert not ages.any()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "pass exactly one of budget"),
        ({"budget": 1, "least": 1.0}, "pass exactly one of budget"),
        ({"budget": 1, "age_limit": 0}, "age_limit 0: choose 1 to 255"),
        ({"budget": 1, "age_limit": 256}, "age_limit 256: choose 1 to 255"),
        ({"budget": 1, "ages": np.zeros(7, np.uint8)}, r"ages have dtype uint8 and shape \(7,\)"),
        ({"budget": 1, "ages": np.zeros(8, np.uint16)}, "they must have uint8"),
    ],
)
def test_options_of_topk_that_cannot_be_are_named(options: dict[str, object], says: str) -> None:
    new, shadow = np.ones(8, np.uint16), np.zeros(8, np.uint16)
    with pytest.raises(InvalidArgument, match=says):
        topk_pack(new, shadow, **options)  # type: ignore[arg-type]
    assert not shadow.any()
