"""What serving could need: the prior while cold, then bounds of what it was seen to do."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose._core import AdmissionTerms, Demand, LatencyModel, ManualClock

# A step that decodes one request takes 10 ms, a chunk of 80 tokens 50 ms.
PRIOR_MS = (10.0, 0.0, 0.0, 0.5, 0.0)
STEP_TOKENS, REQUEST_TOKENS = 80, 1000
RATE_MAX = 1e8
MS_NS, SECOND_NS = 1_000_000, 1_000_000_000
KNOBS = {
    "blocks_per_slab": 4,
    "block_tokens": 16,
    "step_tokens": STEP_TOKENS,
    "request_tokens": REQUEST_TOKENS,
    "burst_requests": 1,
    "horizon_ms": 100.0,
    "memory_ms": 60_000.0,
    "epsilon": 0.1,
    "window": 64,
}


class Seen:
    """A demand of its own, with its clock."""

    def __init__(self, *, prior_ms=PRIOR_MS, **knobs) -> None:
        self.clock = ManualClock()
        model = LatencyModel(
            prior_ms=prior_ms,
            epsilon=0.1,
            forgetting=1,
            adaptation=0.01,
            window=64,
            step_tokens=STEP_TOKENS,
        )
        self.demand = Demand(model, **{**KNOBS, **knobs}, clock=self.clock)

    def terms(self) -> AdmissionTerms:
        return self.demand.terms(running=0)

    def arrive(self, *prompts: int) -> None:
        for prompt in prompts:
            self.demand.arrived(prompt_tokens=prompt)

    def arriving(self) -> tuple[int, int]:
        terms = self.terms()
        return terms.burst_requests, terms.burst_request_tokens

    def step(self, actual_ms: float, predicted_ms: float, decoding: int, prefilled: int) -> None:
        self.demand.step_ended(
            actual_ms=actual_ms,
            predicted_ms=predicted_ms,
            decode_sequences=decoding,
            prefill_tokens=prefilled,
        )

    def speeds(self) -> tuple[float, float]:
        terms = self.terms()
        return terms.decode_tokens_per_s, terms.prefill_tokens_per_s


def test_the_prior_is_doubled_and_one_more_request_is_a_largest_one() -> None:
    seen = Seen()
    assert seen.speeds() == pytest.approx((200.0, 2 * 80 * 1000 / 50))
    assert seen.arriving() == (1, REQUEST_TOKENS)
    # g = 21; P = min(2000, 80 + 320); 27 blocks for 421 tokens, and 3 for the second request.
    assert seen.demand.blocks(running=0) == 27 + 3
    assert seen.demand.blocks(running=5) == 27 + 3 + 5 * 2


# ---- speed ---------------------------------------------------------------------------------------


def test_a_measured_margin_takes_the_place_of_the_prior_one() -> None:
    seen = Seen()
    for _ in range(20):
        seen.step(actual_ms=8.0, predicted_ms=10.0, decoding=1, prefilled=0)
    # No prefill was seen: the model's chunk, as much faster as steps have been.
    assert seen.speeds() == pytest.approx((125.0, 1.25 * 80 * 1000 / 50))


def test_what_was_measured_counts_where_the_model_says_less() -> None:
    seen = Seen()
    for _ in range(20):
        seen.step(actual_ms=2.0, predicted_ms=2.0, decoding=3, prefilled=64)
    assert seen.speeds() == pytest.approx((500.0, 32_000.0))


def test_a_model_that_is_pessimistic_is_no_bound_below_its_mean() -> None:
    seen = Seen()
    for _ in range(20):
        seen.step(actual_ms=100.0, predicted_ms=10.0, decoding=1, prefilled=1)
    assert seen.speeds()[0] == pytest.approx(100.0)


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
    seen = Seen(prior_ms=(step_ms, 0.0, 0.0, 0.0, 0.0))
    for actual_ms, predicted_ms, decoding, prefilled in steps:
        seen.step(actual_ms, predicted_ms, decoding, prefilled)
    assert all(0 < speed <= RATE_MAX for speed in seen.speeds())


# ---- arrivals ------------------------------------------------------------------------------------


@given(
    prompts=st.lists(st.integers(0, 10**6), max_size=60),
    window=st.integers(1, 40),
    epsilon=st.sampled_from([0.5, 0.2, 0.1, 0.03]),
)
def test_the_bound_is_the_conformal_quantile_of_the_window(prompts, window, epsilon) -> None:
    seen = Seen(epsilon=epsilon, window=window, burst_requests=0, request_tokens=10**6)
    seen.arrive(*prompts)
    kept = sorted(prompts[-window:])
    # The smallest k with k / (n + 1) >= 1 - epsilon; without one the longest there is.
    ranks = [k for k in range(1, len(kept) + 1) if k / (len(kept) + 1) >= 1 - epsilon - 1e-12]
    longest = kept[-1] if kept else 0
    assert seen.arriving()[1] == (kept[ranks[0] - 1] if ranks else longest)


GAPS_MS = st.lists(st.integers(0, 60), max_size=120)


@given(gaps=GAPS_MS, horizon_ms=st.integers(1, 200), memory_ms=st.integers(1, 500), idle=GAPS_MS)
def test_the_envelope_is_the_most_that_came_within_a_horizon(
    gaps, horizon_ms, memory_ms, idle
) -> None:
    seen = Seen(horizon_ms=float(horizon_ms), memory_ms=float(memory_ms), burst_requests=0)
    for gap_ms in gaps:
        seen.clock.advance(gap_ms * MS_NS)
        seen.arrive(8)
    times = list(accumulate(gaps))
    now_ms = times[-1] if times else 0
    for gap_ms in idle:
        now_ms += gap_ms
        seen.clock.advance(gap_ms * MS_NS)
        seen.terms()
    counts = [
        sum(end - horizon_ms <= one <= end for one in times[: number + 1])
        for number, end in enumerate(times)
        if end >= now_ms - memory_ms
    ]
    assert seen.arriving()[0] == max(counts, default=0)


def test_what_arrived_within_t_may_arrive_again_and_one_more_besides() -> None:
    seen = Seen()
    seen.arrive(10, 30, 20)
    # Three of them, and while few were seen, no less in all than one of the largest.
    assert seen.arriving() == (3, -(-REQUEST_TOKENS // 3))
    seen.clock.advance(SECOND_NS)
    seen.arrive(10)
    assert seen.arriving()[0] == 3
    seen.arrive(*[400] * 3)
    assert seen.arriving() == (4, 400)
    seen.arrive(*[10] * 40)
    assert seen.arriving() == (44, 30)  # 1 in 10 may be longer, and 3 of 47 were


def test_no_request_is_taken_to_be_longer_than_serving_accepts() -> None:
    seen = Seen()
    seen.arrive(5000)
    assert seen.arriving() == (1, REQUEST_TOKENS)


def test_the_burst_of_the_policy_is_the_least() -> None:
    seen = Seen(burst_requests=5)
    seen.arrive(10)
    assert seen.arriving() == (5, REQUEST_TOKENS)
    none = Seen(burst_requests=0)
    assert none.arriving() == (0, 0)
