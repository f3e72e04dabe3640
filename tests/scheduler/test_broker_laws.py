"""What the broker keeps to whatever happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.scheduler.broker import Broker, Move, Observation
from rose.scheduler.broker.broker import (
    FORGIVE_MS,
    HOLD_MAX_MS,
    HOLD_MIN_MS,
    SETTLE_MS,
    STALE_AFTER_MS,
    TTL_MAX_MS,
)
from rose.scheduler.broker.observation import pressure_of
from rose.units import MIB
from tests.scheduler.broker_world import FLEET, calm, device, histories, late


def decided(history):
    """Yield each poll with its decisions by device, and the loans before it that still run."""
    brokers = {one.name: Broker(one, loan_bytes_min=64 * MIB) for one in FLEET}
    lent, ends_ms = {}, {}
    for now_ms, readings in history:
        lent = {name: nbytes for name, nbytes in lent.items() if now_ms < ends_ms[name]}
        decisions = [brokers[one.device.name].decide(one, now_ms) for one in readings]
        yield now_ms, readings, decisions, lent
        lent = {**lent, **{one.device: one.lend_bytes for one in decisions}}
        ends_ms |= {one.device: now_ms + one.ttl_ms for one in decisions}


def is_fit(reading, now_ms):
    return isinstance(reading, Observation) and now_ms - reading.at_ms <= STALE_AFTER_MS


@given(histories())
def test_no_loan_touches_what_serving_holds_or_its_reserve(history):
    for now_ms, readings, decisions, _ in decided(history):
        seen = {one.device.name: one for one in readings if is_fit(one, now_ms)}
        for decision in decisions:
            if decision.device in seen:
                one = seen[decision.device]
                spoken_for = one.kv_used * one.device.kv_bytes + one.device.reserve_bytes
                assert decision.lend_bytes == 0 or (
                    decision.lend_bytes + spoken_for <= one.device.kv_bytes
                )
                assert decision.lend_bytes % one.device.slab_bytes == 0


@given(histories())
def test_pressure_makes_every_loan_smaller_at_once(history):
    for now_ms, readings, decisions, lent in decided(history):
        after = {one.device: one for one in decisions}
        for reading in readings:
            before = lent.get(reading.device.name, 0)
            if before and is_fit(reading, now_ms) and pressure_of(reading, before):
                assert after[reading.device.name].lend_bytes < before
                assert after[reading.device.name].move in {Move.SHRINK, Move.END, Move.REFUSE}


@given(histories())
def test_after_pressure_nothing_begins_or_grows_before_the_shortest_hold(history):
    pressed = {}
    for now_ms, readings, decisions, lent in decided(history):
        for reading in readings:
            name = reading.device.name
            if is_fit(reading, now_ms) and pressure_of(reading, lent.get(name, 0)):
                pressed[name] = now_ms
        for one in decisions:
            if one.move in {Move.LEND, Move.GROW}:
                assert now_ms - pressed.get(one.device, -1e9) >= HOLD_MIN_MS


@given(histories())
def test_without_a_fit_reading_nothing_begins_grows_or_is_renewed(history):
    ends = {}
    for now_ms, readings, decisions, lent in decided(history):
        blind = {one.device.name for one in readings if not is_fit(one, now_ms)}
        for one in decisions:
            if one.device in blind:
                assert one.lend_bytes <= lent.get(one.device, 0)
                assert one.ttl_ms == 0 or now_ms + one.ttl_ms <= ends[one.device] + 1e-6
                assert one.why
            ends[one.device] = now_ms + one.ttl_ms


@given(histories())
def test_every_loan_has_a_life_within_its_limits_and_every_decision_a_reason(history):
    for _, _, decisions, _ in decided(history):
        for one in decisions:
            assert (one.lend_bytes > 0) == (one.ttl_ms > 0)
            assert one.ttl_ms <= TTL_MAX_MS
            assert one.retry_after_ms >= 0
            assert one.why


@given(st.integers(1, 12), st.floats(0, 200))
def test_the_hold_of_a_flapping_device_grows_to_its_cap_and_stays_there(flaps, extra_ms):
    """Pressed as soon as it lends again: each time it waits longer, up to the longest hold."""
    broker, now_ms, held_ms = Broker(device()), SETTLE_MS, []
    broker.decide(calm(0), 0)
    assert broker.decide(calm(now_ms), now_ms).move is Move.LEND
    for _ in range(flaps):
        now_ms += 1 + extra_ms
        ended = broker.decide(late(now_ms), now_ms)
        assert ended.move is Move.END
        held_ms.append(ended.retry_after_ms)
        calm_ms = now_ms + 1e3
        broker.decide(calm(calm_ms), calm_ms)
        now_ms += ended.retry_after_ms
        assert broker.decide(calm(now_ms - 1), now_ms - 1).move is Move.REFUSE
        assert broker.decide(calm(now_ms), now_ms).move is Move.LEND
    expected = [min(HOLD_MIN_MS * 2.0**n, HOLD_MAX_MS) for n in range(1, flaps + 1)]
    assert held_ms == pytest.approx(expected)


def test_calm_beyond_the_hold_is_forgiven_step_by_step():
    broker, now_ms = Broker(device()), SETTLE_MS
    broker.decide(calm(0), 0)
    for _ in range(8):
        broker.decide(calm(now_ms), now_ms)
        ended = broker.decide(late(now_ms + 1), now_ms + 1)
        broker.decide(calm(now_ms + 2), now_ms + 2)
        now_ms += 1 + ended.retry_after_ms
    assert ended.retry_after_ms == HOLD_MAX_MS
    quiet_ms = now_ms + 3 * FORGIVE_MS
    while now_ms < quiet_ms:
        broker.decide(calm(now_ms), now_ms)
        now_ms += 10e3
    ended = broker.decide(late(now_ms), now_ms)
    assert HOLD_MIN_MS < ended.retry_after_ms < HOLD_MAX_MS


def test_time_goes_on():
    broker = Broker(device())
    broker.decide(calm(5), 5)
    with pytest.raises(InvalidArgument, match="now_ms must be at least 5, got 4"):
        broker.decide(calm(4), 4)
