"""What the broker borrows, case by case; its laws are in test_broker_laws.py."""

import subprocess
import sys

import pytest

from rose.errors import InvalidArgument
from rose.scheduler.broker import Broker, BrokerSettings, DayCap, Move, OwnerRules, Unread
from rose.units import GIB
from tests.scheduler.broker_world import calm, device, late, window

QUICK = BrokerSettings(settle_ms=0.0, grow_every_ms=1.0, hold_min_ms=2e3)
POOL, RESERVE = 40 * GIB, 4 * GIB


def by_name(decisions):
    return {one.device: one for one in decisions}


def grown(broker, of=None, polls=20, every_ms=1e3, begin_ms=0.0, **changes):
    """Let a calm device's loan grow as far as it does; return the last decision and its time."""
    for n in range(polls):
        now_ms = begin_ms + n * every_ms
        (decision,) = broker.decide([calm(now_ms, of, **changes)], now_ms)
    return decision, now_ms


def test_a_loan_begins_with_a_quarter_and_grows_to_most_of_what_is_left():
    broker = Broker(QUICK)
    (first,) = broker.decide([calm(0)], 0)
    most = 0.8 * (0.8 * POOL - RESERVE)
    assert first.move is Move.LEND
    assert first.lend_bytes == pytest.approx(most / 4, rel=0.01)
    (second,) = broker.decide([calm(1)], 1)
    assert second.move is Move.GROW
    last, _ = grown(broker, begin_ms=2)
    assert last.move is Move.KEEP
    assert last.lend_bytes == pytest.approx(most, rel=0.01)


def test_growth_is_paced_however_often_readings_come():
    broker = Broker(BrokerSettings(settle_ms=0.0, grow_every_ms=5e3))
    polls = range(0, 11_000, 100)
    sizes = {broker.decide([calm(now_ms)], now_ms)[0].lend_bytes for now_ms in polls}
    assert len(sizes) == 3


def test_nothing_is_lent_before_calm_was_seen_for_a_while():
    broker = Broker(BrokerSettings(settle_ms=10e3))
    moves = [broker.decide([calm(at)], at)[0].move for at in (0, 5e3, 9.9e3, 10e3)]
    assert moves == [Move.REFUSE] * 3 + [Move.LEND]
    (refused,) = Broker().decide([calm(0)], 0)
    assert refused.retry_after_ms == 10e3
    assert refused.why == "calm must last 10 s more"


def test_calm_is_seen_anew_after_readings_that_failed():
    broker = Broker(BrokerSettings(settle_ms=10e3))
    broker.decide([calm(0)], 0)
    broker.decide([Unread(device(), "no answer")], 5e3)
    moves = [broker.decide([calm(at)], at)[0].move for at in (10e3, 19e3, 20e3)]
    assert moves == [Move.REFUSE, Move.REFUSE, Move.LEND]


def test_a_loan_that_nobody_renewed_in_time_is_over_and_another_may_begin():
    broker = Broker(QUICK)
    first, now_ms = grown(broker)
    late_ms = now_ms + first.ttl_ms
    (ended,) = broker.decide([Unread(device(), "no answer")], late_ms)
    assert (ended.move, ended.lend_bytes) == (Move.END, 0)
    other = Broker(QUICK)
    grown(other)
    (begun,) = other.decide([calm(late_ms)], late_ms)
    assert begun.move is Move.LEND
    assert begun.lend_bytes < first.lend_bytes


def test_a_reading_that_is_old_says_nothing():
    broker = Broker(QUICK)
    last, now_ms = grown(broker)
    (kept,) = broker.decide([calm(now_ms - 12e3)], now_ms + 4e3)
    assert (kept.move, kept.why) == (Move.KEEP, "not renewed: its last reading is 16 s old")
    assert kept.ttl_ms == last.ttl_ms - 4e3


def test_the_peak_of_the_last_minute_counts_and_not_the_moment():
    broker = Broker(QUICK)
    broker.decide([calm(0, kv_used=0.7)], 0)
    last, now_ms = grown(broker, begin_ms=1e3, polls=50)
    assert last.lend_bytes <= 0.8 * (0.3 * POOL - RESERVE)
    later, _ = grown(broker, begin_ms=now_ms + 20e3)
    assert later.lend_bytes > 2 * last.lend_bytes


def test_serving_that_grows_within_the_rest_takes_nothing_back():
    broker = Broker(QUICK)
    last, now_ms = grown(broker)
    used = 1 - (last.lend_bytes + RESERVE) / POOL - 0.01
    (kept,) = broker.decide([calm(now_ms + 1e3, kv_used=used)], now_ms + 1e3)
    assert (kept.move, kept.lend_bytes) == (Move.KEEP, last.lend_bytes)
    (cut,) = broker.decide([calm(now_ms + 2e3, kv_used=used + 0.02)], now_ms + 2e3)
    assert cut.move is Move.SHRINK
    assert cut.why == "serving's requests and its reserve need what is lent"


@pytest.mark.parametrize(
    ("pressed", "left", "why"),
    [
        ({"ttft": window(501.0)}, 0.0, "first tokens have a P99 of 501 ms, with a target of 500"),
        ({"tpot": window(float("inf"))}, 0.0, "later tokens have a P99 of inf ms"),
        ({"preempted": 1}, 0.0, "1 requests were put back for want of KV"),
        ({"ttft": window(451.0)}, 0.5, "first tokens have a P99 of 451 ms, with a target of 500"),
        ({"tpot": window(56.0)}, 0.5, "later tokens have a P99 of 56 ms, with a target of 50 ms"),
        ({"waiting": 4}, 0.5, "4 requests wait for serving"),
        ({"kv_used": 0.85}, 1.6 / 22.4, "serving's requests and its reserve need"),
    ],
)
def test_pressure_takes_back_as_much_as_its_kind_asks_for(pressed, left, why):
    broker = Broker(QUICK)
    before, now_ms = grown(broker)
    (after,) = broker.decide([calm(now_ms + 1e3, **pressed)], now_ms + 1e3)
    assert after.lend_bytes == pytest.approx(left * before.lend_bytes, rel=0.01)
    assert why in after.why
    assert after.retry_after_ms >= 4e3  # one revocation: twice the shortest hold


@pytest.mark.parametrize(
    "beside", [{"waiting": 3}, {"tpot": window(54.0)}, {"ttft": window(450.0)}, {"ttft": None}]
)
def test_what_rollouts_do_on_purpose_and_what_a_step_makes_wait_is_no_pressure(beside):
    broker = Broker(QUICK)
    before, now_ms = grown(broker)
    (after,) = broker.decide([calm(now_ms + 1e3, **beside)], now_ms + 1e3)
    assert (after.move, after.lend_bytes) == (Move.KEEP, before.lend_bytes)


def test_a_second_reading_under_the_same_pressure_is_the_same_revocation():
    broker = Broker(QUICK)
    _, now_ms = grown(broker)
    waits = []
    for n in range(1, 4):
        at_ms = now_ms + n * 1e3
        waits.append(broker.decide([calm(at_ms, waiting=4)], at_ms)[0].retry_after_ms)
    assert waits == [4e3] * 3


def test_pressure_without_a_loan_holds_but_costs_no_level():
    broker = Broker(QUICK)
    waits = [broker.decide([late(at)], at)[0].retry_after_ms for at in (0, 1e3, 2e3)]
    assert waits == [2e3] * 3


def test_what_the_executor_takes_back_by_itself_is_a_revocation_too():
    broker = Broker(QUICK)
    _, now_ms = grown(broker, lent_bytes=10 * GIB, revocations=7)
    reading = calm(now_ms + 1e3, lent_bytes=5 * GIB, revocations=8)
    (after,) = broker.decide([reading], now_ms + 1e3)
    assert (after.move, after.lend_bytes) == (Move.SHRINK, 5 * GIB)
    assert after.retry_after_ms == 4e3
    assert after.why == "its executor took a loan back"
    # An executor that starts anew counts from zero: that is no revocation.
    reading = calm(now_ms + 2e3, lent_bytes=5 * GIB, revocations=0)
    (after,) = broker.decide([reading], now_ms + 2e3)
    assert after.move is Move.KEEP


@pytest.mark.parametrize(
    ("share", "waits_ms"), [(0.25, [0.0] * 3), (0.26, [4e3, 8e3, 16e3]), (None, [4e3, 8e3, 16e3])]
)
def test_what_ebbs_and_flows_on_loan_is_no_revocation_unless_it_is_much_or_nobody_knows(
    share, waits_ms
):
    broker = Broker(QUICK)
    last, now_ms = grown(broker, lent_bytes=8 * GIB)
    waits = []
    for n in range(1, 4):
        at_ms = now_ms + n * 1e3
        reading = calm(at_ms, lent_bytes=8 * GIB, revocations=5 * n, revoked_share=share)
        (after,) = broker.decide([reading], at_ms)
        assert after.lend_bytes == (8 * GIB if any(waits_ms) else last.lend_bytes)
        waits.append(after.retry_after_ms)
    assert waits == waits_ms


def test_pressure_is_pressure_however_little_the_executor_took():
    broker = Broker(QUICK)
    _, now_ms = grown(broker)
    reading = late(now_ms + 1e3, revocations=3, revoked_share=0.01)
    (after,) = broker.decide([reading], now_ms + 1e3)
    assert (after.move, after.lend_bytes, after.retry_after_ms) == (Move.END, 0, 4e3)


def test_a_broker_that_starts_anew_takes_over_the_loans_it_finds():
    broker = Broker(BrokerSettings(settle_ms=10e3))
    (found,) = broker.decide([calm(0, lent_bytes=8 * GIB)], 0)
    assert (found.move, found.lend_bytes) == (Move.KEEP, 8 * GIB)
    (too_much,) = Broker(QUICK).decide([calm(0, lent_bytes=39 * GIB)], 0)
    assert too_much.move is Move.SHRINK


def test_the_emptiest_devices_are_borrowed_first_and_domains_take_turns():
    fleet = {
        device("a", domain="left"): 0.1,
        device("b", domain="left"): 0.2,
        device("c", domain="right"): 0.5,
        device("d", domain="right"): 0.4,
    }
    readings = [calm(0, one, kv_used=used) for one, used in fleet.items()]
    first_bytes = Broker(QUICK).decide(readings[:1], 0)[0].lend_bytes
    decisions = Broker(QUICK).decide(readings, 0, wanted_bytes=first_bytes + 3 * GIB)
    moves = {one.device: one.move for one in decisions}
    # "a" is the emptiest; then it is the turn of the other domain, whose emptiest is "d".
    assert moves == {"a": Move.LEND, "b": Move.REFUSE, "c": Move.REFUSE, "d": Move.LEND}


def test_what_rollouts_cannot_use_goes_back_from_the_fullest_device_first():
    broker = Broker(QUICK)
    fleet = [device("a", domain="left"), device("b", domain="right")]
    for now_ms in (0, 1e3, 2e3, 3e3, 4e3, 5e3):
        readings = [calm(now_ms, fleet[0], kv_used=0.1), calm(now_ms, fleet[1], kv_used=0.3)]
        decisions = by_name(broker.decide(readings, now_ms))
    wanted = decisions["a"].lend_bytes
    after = by_name(broker.decide(readings, 6e3, wanted_bytes=wanted))
    assert (after["a"].move, after["b"].move) == (Move.KEEP, Move.END)
    assert after["b"].why == "rollouts have no use for it"


def test_a_loan_that_would_not_last_is_not_begun():
    broker = Broker(
        BrokerSettings(
            settle_ms=0.0, hold_min_ms=1.0, hold_max_ms=2.0, hazard_prior_s=1.0, life_worth_s=10.0
        )
    )
    now_ms, moves = 0.0, []
    for _ in range(12):
        moves.append(broker.decide([calm(now_ms)], now_ms)[0])
        broker.decide([late(now_ms + 6e3)], now_ms + 6e3)
        now_ms += 12e3
    assert moves[0].move is Move.LEND
    assert moves[-1].move is Move.REFUSE
    assert moves[-1].why.startswith("it would be taken back within")
    assert moves[-1].expected_life_s < 10 < moves[0].expected_life_s


def test_time_to_live_is_a_part_of_the_expected_hold_within_its_limits():
    (steady,) = Broker(QUICK).decide([calm(0)], 0)
    assert steady.expected_life_s == pytest.approx(600)
    assert steady.ttl_ms == pytest.approx(60e3)
    risky = BrokerSettings(settle_ms=0.0, hazard_per_s=1 / 200)
    assert Broker(risky).decide([calm(0)], 0)[0].ttl_ms == pytest.approx(20e3)


def test_a_new_device_is_taken_to_be_like_the_rest_of_the_fleet():
    broker, now_ms = Broker(QUICK), 0.0
    for _ in range(20):
        broker.decide([calm(now_ms)], now_ms)
        broker.decide([late(now_ms + 5e3)], now_ms + 5e3)
        now_ms += 30e3
    (other,) = broker.decide([calm(now_ms, device("other"))], now_ms)
    assert other.expected_life_s < 200


def test_a_cap_by_the_time_of_day_holds_within_it_and_only_there():
    night = OwnerRules("chat", caps=(DayCap(22 * 60, 6 * 60, 0.1),))
    broker = Broker(QUICK, owners=[night])
    for now_ms in range(20):
        (day,) = broker.decide([calm(now_ms)], now_ms, day_minute=21 * 60 + 59)
    assert day.lend_bytes > 0.1 * POOL
    (capped,) = broker.decide([calm(20)], 20, day_minute=22 * 60)
    assert capped.move is Move.SHRINK
    assert capped.lend_bytes <= 0.1 * POOL
    (again,) = broker.decide([calm(30)], 30, day_minute=6 * 60)
    assert again.move is Move.GROW


def test_an_owner_who_leaves_has_all_back_at_the_next_decision_even_unread():
    broker = Broker(QUICK)
    grown(broker)
    broker.set_owners([OwnerRules("chat", is_out=True)])
    (ended,) = broker.decide([Unread(device(), "no answer")], 20e3)
    assert (ended.move, ended.ttl_ms) == (Move.END, 0.0)
    assert ended.why == "chat lends no more than that now"


def test_a_cap_and_pressure_at_once_leave_what_both_allow():
    broker = Broker(QUICK, owners=[OwnerRules("chat", caps=(DayCap(60, 120, 0.5),))])
    _, now_ms = grown(broker)
    reading = calm(now_ms + 1e3, kv_used=0.8)
    (after,) = broker.decide([reading], now_ms + 1e3, day_minute=60)
    assert after.lend_bytes <= 0.2 * POOL - RESERVE


def test_rules_of_owners_must_be_sound():
    for rules in ((60 * 24, 0, 0.5), (0, -1, 0.5), (0, 0, 1.5)):
        with pytest.raises(InvalidArgument, match="DayCap"):
            DayCap(*rules)
    with pytest.raises(InvalidArgument, match="two sets of rules"):
        Broker(owners=[OwnerRules("a"), OwnerRules("a")])


def test_a_device_that_is_not_read_for_long_is_forgotten():
    broker = Broker(QUICK)
    grown(broker)
    broker.decide([calm(5e6, device("other"))], 5e6)
    assert len(broker._histories) == 1


def test_the_policy_needs_no_package_that_reads_engines():
    names = "prometheus_client", "pynvml", "http.client", "grpc", "msgspec"
    code = f"import sys, rose.scheduler.broker; print([n for n in {names} if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr
