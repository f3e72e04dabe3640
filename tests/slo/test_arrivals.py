"""The envelope of arrivals: whatever came within a horizon, it would have allowed."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from rose.slo.arrivals import ArrivalEnvelope

GAPS_NS = st.lists(st.integers(0, 60), max_size=120)


def envelope(*, horizon_ns: int = 50, remember_ns: int = 10**9) -> ArrivalEnvelope:
    return ArrivalEnvelope(horizon_ns=horizon_ns, remember_ns=remember_ns, epsilon=0.1, window=1000)


@given(gaps=GAPS_NS, horizon_ns=st.integers(1, 200), remember_ns=st.integers(0, 500), idle=GAPS_NS)
def test_the_envelope_is_the_most_that_came_within_a_horizon(
    gaps, horizon_ns, remember_ns, idle
) -> None:
    made = envelope(horizon_ns=horizon_ns, remember_ns=remember_ns)
    times = list(accumulate(gaps))
    for now_ns in times:
        made.arrived(now_ns, prompt_tokens=8)
    now_ns = times[-1] if times else 0
    for gap_ns in idle:
        now_ns += gap_ns
        made.forget(now_ns)
    counts = [
        sum(end - horizon_ns <= one <= end for one in times[: number + 1])
        for number, end in enumerate(times)
        if end >= now_ns - remember_ns
    ]
    assert made.most_requests == max(counts, default=0)


def test_prompts_are_bounded_when_enough_were_seen() -> None:
    made = envelope()
    for number in range(9):
        assert made.prompt_tokens is None
        made.arrived(0, prompt_tokens=10 + number)
    assert made.prompt_tokens == made.longest_prompt_tokens == 18
