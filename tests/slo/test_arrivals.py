"""The envelope of arrivals: whatever came, it would have allowed."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from rose.slo.arrivals import ArrivalEnvelope
from rose.units import NS_PER_S

GAPS_NS = st.lists(st.integers(0, 10**10), min_size=1, max_size=120)


def envelope(*, window: int = 1000, remember_s: float = 1e6) -> ArrivalEnvelope:
    return ArrivalEnvelope(epsilon=0.1, window=window, remember_ns=int(remember_s * NS_PER_S))


def after(times_ns, **knobs) -> ArrivalEnvelope:
    made = envelope(**knobs)
    for now_ns in times_ns:
        made.arrived(now_ns, prompt_tokens=8)
    return made


@given(gaps=GAPS_NS, window=st.integers(1, 150))
def test_no_span_of_what_is_remembered_has_more_than_burst_and_rate(gaps, window) -> None:
    times = list(accumulate(gaps))
    made = after(times, window=window)
    kept = times[-window:]
    for first in range(len(kept)):
        for last in range(first, len(kept)):
            span_s = (kept[last] - kept[first]) / NS_PER_S
            allowed = made.burst + made.rate_per_s * span_s
            assert last - first + 1 <= allowed * (1 + 1e-9) + 1e-6


@given(count=st.integers(1, 100))
def test_all_at_once_is_a_burst_and_no_rate(count: int) -> None:
    made = after([7] * count)
    assert (made.burst, made.rate_per_s) == (count, 0.0)


@given(count=st.integers(3, 100), gap_ms=st.integers(1, 1000))
def test_a_steady_stream_is_a_rate_and_no_burst(count: int, gap_ms: int) -> None:
    made = after([number * gap_ms * 1_000_000 for number in range(count)])
    assert abs(made.rate_per_s - 1000 / gap_ms) < 1e-6 * made.rate_per_s
    assert 1 <= made.burst < 1.001


def test_nothing_is_said_before_the_first_arrival() -> None:
    made = envelope()
    assert (made.burst, made.rate_per_s, made.prompt_tokens) == (0.0, 0.0, None)
    made.forget(10**18)
    assert made.burst == 0.0


def test_a_storm_is_forgotten_when_it_was_long_enough_ago() -> None:
    made = after([0] * 50 + [5 * NS_PER_S], remember_s=10.0)
    assert made.burst > 40
    made.forget(9 * NS_PER_S)
    assert made.burst > 40
    made.forget(11 * NS_PER_S)
    assert (made.burst, made.rate_per_s) == (1.0, 0.0)
    made.forget(30 * NS_PER_S)
    assert (made.burst, made.rate_per_s) == (0.0, 0.0)


def test_prompts_are_bounded_when_enough_were_seen() -> None:
    made = envelope()
    for number in range(9):
        assert made.prompt_tokens is None
        made.arrived(0, prompt_tokens=10 + number)
    assert made.prompt_tokens == made.longest_prompt_tokens == 18
