"""What serving can do at most: bounds that keep their promise, and what is said while cold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.slo.rates import RATE_MAX, ServingRates, UpperBound

SAMPLES = st.lists(st.floats(0, 1e6), max_size=60)


@given(samples=SAMPLES, window=st.integers(1, 40), epsilon=st.sampled_from([0.5, 0.2, 0.1, 0.03]))
def test_the_bound_is_the_conformal_quantile_of_the_window(samples, window, epsilon) -> None:
    bound = UpperBound(epsilon=epsilon, window=window)
    for sample in samples:
        bound.add(sample)
    kept = sorted(samples[-window:])
    assert bound.largest == (kept[-1] if kept else 0.0)
    # The smallest k with k / (n + 1) >= 1 - epsilon.
    ranks = [k for k in range(1, len(kept) + 1) if k / (len(kept) + 1) >= 1 - epsilon - 1e-12]
    assert bound.bound == (kept[ranks[0] - 1] if ranks else None)


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.2])
def test_the_next_sample_exceeds_the_bound_as_seldom_as_was_asked(epsilon: float) -> None:
    rng = np.random.default_rng(5)
    bound = UpperBound(epsilon=epsilon, window=math.ceil(4 / epsilon))
    beyond = counted = 0
    for sample in rng.lognormal(0.0, 1.0, size=20_000):
        if bound.bound is not None:
            counted += 1
            beyond += sample > bound.bound
        bound.add(float(sample))
    # Four standard deviations of a share of independent misses.
    assert beyond / counted <= epsilon + 4 * math.sqrt(epsilon / counted)


def rates(**knobs) -> ServingRates:
    return ServingRates(**{"epsilon": 0.1, "window": 50, "cold_margin": 2.0, **knobs})


def bounds(of: ServingRates, *, step_ms=10.0, chunk_ms=100.0, chunk_tokens=256):
    return of.bounds(step_ms=step_ms, chunk_ms=chunk_ms, chunk_tokens=chunk_tokens)


def test_while_cold_serving_may_be_twice_as_fast_as_the_prior_says() -> None:
    cold = bounds(rates())
    assert (cold.decode_tokens_per_s, cold.prefill_tokens_per_s) == (200.0, 5120.0)
    assert not cold.is_measured


def test_a_measured_margin_takes_the_place_of_the_prior_one() -> None:
    measured = rates()
    for _ in range(20):
        measured.step_ended(actual_ms=8.0, predicted_ms=10.0, decode_sequences=1, prefill_tokens=0)
    warm = bounds(measured)
    assert warm.is_measured
    assert warm.decode_tokens_per_s == pytest.approx(125.0)
    # No prefill was seen: the model's chunk, as much faster as steps have been.
    assert warm.prefill_tokens_per_s == pytest.approx(3200.0)


def test_what_was_measured_counts_where_the_model_says_less() -> None:
    measured = rates()
    for _ in range(20):
        measured.step_ended(actual_ms=2.0, predicted_ms=2.0, decode_sequences=3, prefill_tokens=64)
    warm = bounds(measured)
    assert warm.decode_tokens_per_s == pytest.approx(500.0)
    assert warm.prefill_tokens_per_s == pytest.approx(32_000.0)


def test_a_model_that_is_pessimistic_is_no_bound_below_its_mean() -> None:
    measured = rates()
    for _ in range(20):
        measured.step_ended(
            actual_ms=100.0, predicted_ms=10.0, decode_sequences=1, prefill_tokens=1
        )
    assert bounds(measured).decode_tokens_per_s == pytest.approx(100.0)


@given(
    steps=st.lists(
        st.tuples(
            st.floats(0, 1e9), st.floats(1e-9, 1e9), st.integers(0, 4), st.integers(0, 10_000)
        ),
        max_size=60,
    ),
    step_ms=st.floats(1e-9, 1e9),
)
def test_rates_are_finite_positive_and_never_absurd(steps, step_ms) -> None:
    measured = rates()
    for actual_ms, predicted_ms, decoding, prefilled in steps:
        measured.step_ended(
            actual_ms=actual_ms,
            predicted_ms=predicted_ms,
            decode_sequences=decoding,
            prefill_tokens=prefilled,
        )
    got = bounds(measured, step_ms=step_ms, chunk_ms=step_ms)
    assert 0 < got.decode_tokens_per_s <= RATE_MAX
    assert 0 < got.prefill_tokens_per_s <= RATE_MAX
