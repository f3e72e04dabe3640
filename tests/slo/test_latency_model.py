"""The upper estimate keeps its promise on data that nobody chose for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import LatencyModel

STEP = {"decode_sequences": 1.0, "context_tokens": 100.0, "prefill_tokens": 0.0}


def make_model(**changes) -> LatencyModel:
    knobs = {
        "prior_ms": (5.0, 0.1, 0.0, 0.05, 0.0),
        "epsilon": 0.05,
        "forgetting": 0.998,
        "adaptation": 0.02,
        "window": 256,
        "step_tokens": 512,
    }
    return LatencyModel(**{**knobs, **changes})


def test_the_first_steps_in_a_cold_engine_are_no_evidence() -> None:
    model = make_model(epsilon=0.05)
    for number in range(60):  # the first is 8 times as slow, and the prior 3 times too fast
        model.observe(15.0 * (8 if number == 0 else 1), **STEP)
    assert model.forecast(**STEP).upper_ms < 1.2 * 15.0


def test_a_prior_that_is_three_times_too_low_is_left_within_the_training() -> None:
    model = make_model()
    full = {"decode_sequences": 0.0, "context_tokens": 1000.0, "prefill_tokens": 512.0}
    actual_ms = 3 * model.forecast(**full).predicted_ms
    for _ in range(8):
        model.observe(actual_ms, **full)
    assert model.forecast(**full).predicted_ms == pytest.approx(actual_ms, rel=0.05)


@given(
    prior=st.tuples(*(st.floats(0, 10) for _ in range(5))),
    seen=st.lists(st.tuples(*(st.floats(0, 1e5) for _ in range(4))), max_size=30),
    small=st.tuples(*(st.integers(0, 10_000) for _ in range(3))),
    more=st.tuples(*(st.integers(0, 10_000) for _ in range(3))),
)
def test_more_work_is_never_predicted_to_take_less(prior, seen, small, more) -> None:
    model = make_model(prior_ms=prior)
    names = ("decode_sequences", "context_tokens", "prefill_tokens")
    for *values, actual_ms in seen:
        model.observe(actual_ms, **dict(zip(names, values, strict=True)))
    less = model.forecast(**dict(zip(names, map(float, small), strict=True)))
    sums = (float(one + further) for one, further in zip(small, more, strict=True))
    larger = model.forecast(**dict(zip(names, sums, strict=True)))
    assert larger.predicted_ms >= less.predicted_ms
