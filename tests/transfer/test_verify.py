"""Weights of another version are refused before a byte is written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import CorruptData, InvalidArgument
from rose.transfer import Delta, delta_apply, delta_pack
from rose.transfer.codec.operations import topk_pack
from tests.transfer.twins import DENSE, LAYOUTS, WIDTHS, Bits, elements
from tests.vectors.delta_v2 import changed


def packed(width: int, count: int = 1000, seed: int = 1) -> tuple[Delta, Bits, Bits]:
    rng = np.random.default_rng(seed)
    new, old = changed(rng, count, density=0.05, steps=0.7, width=width)
    return delta_pack(new, old.copy(), block_elements=DENSE), new, old


@given(
    st.sampled_from(WIDTHS), st.sampled_from(sorted(LAYOUTS)), st.data(), st.sampled_from([1, 999])
)
def test_verify_refuses_a_base_with_another_bit_in_a_changed_word(
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


# ---- what is never sent twice, and what is due


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
def test_invalid_options_of_topk_are_named(options: dict[str, object], says: str) -> None:
    new, shadow = np.ones(8, np.uint16), np.zeros(8, np.uint16)
    with pytest.raises(InvalidArgument, match=says):
        topk_pack(new, shadow, **options)  # type: ignore[arg-type]
    assert not shadow.any()
