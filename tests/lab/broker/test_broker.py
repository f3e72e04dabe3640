"""What the broker borrows, case by case; its laws are in test_broker_laws.py."""

import pytest

from rose.units import GIB
from rose_lab.broker import Broker, LoanChange, Unread
from tests.lab.broker.broker_world import calm, device, late

POOL, RESERVE = 40 * GIB, 4 * GIB
EVERY_MS = 5e3


def grown(broker, polls=20, begin_ms=0.0, **changes):
    """Let a calm device's loan grow as far as it does; return the last decision and its time."""
    for n in range(polls):
        now_ms = begin_ms + n * EVERY_MS
        decision = broker.decide(calm(now_ms, **changes), now_ms)
    return decision, now_ms


def test_a_loan_begins_with_a_quarter_and_grows_to_most_of_what_is_left():
    broker = Broker(device())
    most = 0.8 * (0.8 * POOL - RESERVE)
    first, now_ms = grown(broker, polls=3)
    assert first.move is LoanChange.LEND
    assert first.lend_bytes == pytest.approx(most / 4, rel=0.01)
    second, _ = grown(broker, polls=1, begin_ms=now_ms + EVERY_MS)
    assert second.move is LoanChange.GROW
    last, _ = grown(broker, begin_ms=now_ms + 2 * EVERY_MS)
    assert last.move is LoanChange.KEEP
    assert last.lend_bytes == pytest.approx(most, rel=0.01)


def test_growth_is_paced_however_often_readings_come():
    broker = Broker(device())
    polls = range(0, 21_000, 100)
    sizes = {broker.decide(calm(now_ms), now_ms).lend_bytes for now_ms in polls}
    assert len(sizes) == 4  # None at first, then at 10, 15 and 20 s.


def test_nothing_is_lent_before_calm_was_seen_for_a_while():
    broker = Broker(device())
    refused = broker.decide(calm(0), 0)
    assert refused.retry_after_ms == 10e3
    assert refused.why == "calm must last 10 s more"
    moves = [broker.decide(calm(at), at).move for at in (5e3, 9.9e3, 10e3)]
    assert moves == [LoanChange.REFUSE] * 2 + [LoanChange.LEND]


def test_calm_is_seen_anew_after_readings_that_failed():
    broker = Broker(device())
    broker.decide(calm(0), 0)
    broker.decide(Unread(device(), "no answer"), 5e3)
    moves = [broker.decide(calm(at), at).move for at in (10e3, 19e3, 20e3)]
    assert moves == [LoanChange.REFUSE, LoanChange.REFUSE, LoanChange.LEND]


def test_a_loan_that_nobody_renewed_in_time_is_over_and_another_may_begin():
    broker = Broker(device())
    first, now_ms = grown(broker)
    late_ms = now_ms + first.ttl_ms
    ended = broker.decide(Unread(device(), "no answer"), late_ms)
    assert (ended.move, ended.lend_bytes) == (LoanChange.END, 0)
    other = Broker(device())
    grown(other)
    begun = other.decide(calm(late_ms), late_ms)
    assert begun.move is LoanChange.LEND
    assert begun.lend_bytes < first.lend_bytes


def test_a_reading_that_is_old_says_nothing():
    broker = Broker(device())
    last, now_ms = grown(broker)
    kept = broker.decide(calm(now_ms - 12e3), now_ms + 4e3)
    assert (kept.move, kept.why) == (LoanChange.KEEP, "not renewed: the last reading is 16 s old")
    assert kept.ttl_ms == last.ttl_ms - 4e3


def test_the_peak_of_the_last_minute_counts_and_not_the_moment():
    broker = Broker(device())
    broker.decide(calm(0, kv_used=0.7), 0)
    last, now_ms = grown(broker, begin_ms=EVERY_MS, polls=12)
    assert 0 < last.lend_bytes <= 0.8 * (0.3 * POOL - RESERVE)
    later, _ = grown(broker, begin_ms=now_ms + EVERY_MS)
    assert later.lend_bytes > 2 * last.lend_bytes


def test_serving_that_grows_within_the_rest_takes_nothing_back():
    broker = Broker(device())
    last, now_ms = grown(broker)
    used = 1 - (last.lend_bytes + RESERVE) / POOL - 0.01
    kept = broker.decide(calm(now_ms + 1e3, kv_used=used), now_ms + 1e3)
    assert (kept.move, kept.lend_bytes) == (LoanChange.KEEP, last.lend_bytes)
    cut = broker.decide(calm(now_ms + 2e3, kv_used=used + 0.02), now_ms + 2e3)
    assert cut.move is LoanChange.SHRINK
    assert cut.why == "serving's requests and reserve need the lent memory"


@pytest.mark.parametrize(
    ("pressed", "left", "why"),
    [
        ({"ttft_ms_p99": 501.0}, 0.0, "first tokens have a P99 of 501 ms, with a target of 500"),
        ({"tpot_ms_p99": float("inf")}, 0.0, "later tokens have a P99 of inf ms"),
        ({"preempted": 1}, 0.0, "1 requests were preempted for want of KV"),
        ({"ttft_ms_p99": 451.0}, 0.5, "first tokens have a P99 of 451 ms, with a target of 500"),
        ({"tpot_ms_p99": 56.0}, 0.5, "later tokens have a P99 of 56 ms, with a target of 50 ms"),
        ({"waiting": 4}, 0.5, "4 requests wait to be served"),
        ({"kv_used": 0.85}, 1.6 / 22.4, "serving's requests and reserve need"),
    ],
)
def test_pressure_takes_back_as_much_as_its_kind_asks_for(pressed, left, why):
    broker = Broker(device())
    before, now_ms = grown(broker)
    after = broker.decide(calm(now_ms + 1e3, **pressed), now_ms + 1e3)
    assert after.lend_bytes == pytest.approx(left * before.lend_bytes, rel=0.01)
    assert why in after.why
    assert after.retry_after_ms >= 20e3  # one revocation: twice the shortest hold


@pytest.mark.parametrize(
    "beside", [{"waiting": 3}, {"tpot_ms_p99": 54.0}, {"ttft_ms_p99": 450.0}, {"ttft_ms_p99": None}]
)
def test_what_rollouts_do_on_purpose_and_what_a_step_makes_wait_is_no_pressure(beside):
    broker = Broker(device())
    before, now_ms = grown(broker)
    after = broker.decide(calm(now_ms + 1e3, **beside), now_ms + 1e3)
    assert (after.move, after.lend_bytes) == (LoanChange.KEEP, before.lend_bytes)


def test_a_second_reading_under_the_same_pressure_is_the_same_revocation():
    broker = Broker(device())
    _, now_ms = grown(broker)
    waits = []
    for n in range(1, 4):
        at_ms = now_ms + n * 1e3
        waits.append(broker.decide(calm(at_ms, waiting=4), at_ms).retry_after_ms)
    assert waits == [20e3] * 3


def test_pressure_without_a_loan_holds_but_costs_no_level():
    broker = Broker(device())
    waits = [broker.decide(late(at), at).retry_after_ms for at in (0, 1e3, 2e3)]
    assert waits == [10e3] * 3


def test_what_the_executor_takes_back_by_itself_is_a_revocation_too():
    broker = Broker(device())
    _, now_ms = grown(broker, lent_bytes=10 * GIB, revocations=7)
    reading = calm(now_ms + 1e3, lent_bytes=5 * GIB, revocations=8)
    after = broker.decide(reading, now_ms + 1e3)
    assert (after.move, after.lend_bytes) == (LoanChange.SHRINK, 5 * GIB)
    assert after.retry_after_ms == 20e3
    assert after.why == "the device's executor revoked a loan"
    # An executor that starts anew counts from zero: that is no revocation.
    reading = calm(now_ms + 2e3, lent_bytes=5 * GIB, revocations=0)
    after = broker.decide(reading, now_ms + 2e3)
    assert after.move is LoanChange.KEEP


@pytest.mark.parametrize(
    ("share", "waits_ms"),
    [(0.25, [0.0] * 3), (0.26, [20e3, 40e3, 80e3]), (None, [20e3, 40e3, 80e3])],
)
def test_what_ebbs_and_flows_on_loan_is_no_revocation_unless_it_is_much_or_nobody_knows(
    share, waits_ms
):
    broker = Broker(device())
    last, now_ms = grown(broker, lent_bytes=8 * GIB)
    waits = []
    for n in range(1, 4):
        at_ms = now_ms + n * 1e3
        reading = calm(at_ms, lent_bytes=8 * GIB, revocations=5 * n, revoked_share=share)
        after = broker.decide(reading, at_ms)
        assert after.lend_bytes == (8 * GIB if any(waits_ms) else last.lend_bytes)
        waits.append(after.retry_after_ms)
    assert waits == waits_ms


def test_a_broker_that_starts_anew_takes_over_the_loans_it_finds():
    found = Broker(device()).decide(calm(0, lent_bytes=8 * GIB), 0)
    assert (found.move, found.lend_bytes) == (LoanChange.KEEP, 8 * GIB)
    too_much = Broker(device()).decide(calm(0, lent_bytes=39 * GIB), 0)
    assert too_much.move is LoanChange.SHRINK


def test_each_revocation_halves_the_time_to_live_within_its_limits():
    steady, now_ms = grown(Broker(device()))
    assert steady.ttl_ms == 60e3
    broker, ttls_ms = Broker(device()), []
    grown(broker)
    for n in range(1, 12):
        at_ms = now_ms + n * 1e3
        reading = calm(at_ms, lent_bytes=8 * GIB, revocations=n)
        ttls_ms.append(broker.decide(reading, at_ms).ttl_ms)
    assert ttls_ms[:2] == [30e3, 15e3]
    assert set(ttls_ms[2:]) == {15e3}
    rare = Broker(device(), reading_ms=60e3).decide(calm(0, lent_bytes=8 * GIB), 0)
    assert rare.ttl_ms == 180e3
