"""How long serving's tokens took, as `ServingState` counts it."""

from itertools import pairwise

import pytest

from rose._core import CertificateLog, ManualClock, ServingState
from rose.units import NS_PER_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state(clock) -> ServingState:
    log = CertificateLog(
        "",
        ttft_ms=500,
        tpot_ms=50,
        epsilon=0.01,
        signal_ms=1,
        blocking_ms=100,
        heartbeat_ttl_ms=100,
        max_segments=4,
        slabs=1,
        partitions=1,
        blocks_per_slab=1,
        clock=clock,
    )
    return ServingState(log)


def taken_ms(counts) -> list[float]:
    """The ends of the buckets that have tokens, once for each, in milliseconds."""
    ends = []
    for (_, before), (upper_ns, count) in pairwise([(0, 0), *counts]):
        ends += [upper_ns / NS_PER_MS] * (count - before)
    return ends


def test_first_tokens_count_from_the_arrival_and_later_ones_from_the_last(clock, state) -> None:
    a, b = state.arrived(tokens=8), state.arrived(tokens=8)
    clock.advance(100 * NS_PER_MS)
    state.emitted([a])
    clock.advance(20 * NS_PER_MS)
    state.emitted([a, b])
    clock.advance(7 * NS_PER_MS)
    state.emitted([b])
    # An end is at most 1/32 above what was.
    assert taken_ms(state.first_tokens) == pytest.approx([100, 120], rel=1 / 31)
    assert taken_ms(state.later_tokens) == pytest.approx([7, 20], rel=1 / 31)
    assert all(end >= ms for end, ms in zip(taken_ms(state.first_tokens), (100, 120), strict=True))


def test_a_prompt_that_came_prefilled_has_no_first_token(clock, state) -> None:
    slot = state.arrived(tokens=8, prefilled=True)
    clock.advance(30 * NS_PER_MS)
    state.emitted([slot])
    assert taken_ms(state.first_tokens) == []
    assert taken_ms(state.later_tokens) == pytest.approx([30], rel=1 / 31)


def test_the_next_request_in_a_slot_has_its_own_arrival(clock, state) -> None:
    slot = state.arrived(tokens=8)
    state.finished(slot)  # it never had a token, and counts nowhere
    clock.advance(900 * NS_PER_MS)
    assert state.arrived(tokens=8) == slot
    clock.advance(50 * NS_PER_MS)
    state.emitted([slot])
    assert taken_ms(state.first_tokens) == pytest.approx([50], rel=1 / 31)


def test_what_is_longer_or_shorter_than_all_edges_is_in_the_last_or_the_first(clock, state) -> None:
    short, long = state.arrived(tokens=8), state.arrived(tokens=8)
    state.emitted([short])
    clock.advance(1000 * 1000 * NS_PER_MS)
    state.emitted([long])
    (first_ns, first), *_, (_, before), (_, every) = state.first_tokens
    assert (first, before, every) == (1, 1, 2)
    assert first_ns < 0.2 * NS_PER_MS
    assert [upper for upper, _ in state.first_tokens] == sorted(
        {upper for upper, _ in state.first_tokens}
    )
