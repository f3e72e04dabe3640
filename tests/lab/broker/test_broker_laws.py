"""What the broker keeps to whatever happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.units import MIB
from rose_lab.broker import Broker, LoanChange, Observation
from rose_lab.broker.broker import (
    FORGIVE_MS,
    HOLD_MAX_MS,
    HOLD_MIN_MS,
    SETTLE_MS,
    STALE_AFTER_MS,
    TTL_MAX_MS,
)
from rose_lab.broker.observation import pressure_of
from tests.lab.broker.broker_world import FLEET, calm, device, histories, late


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
def test_every_decision_of_every_history_keeps_the_laws(history):
    pressed, ends_ms = {}, {}
    for now_ms, readings, decisions, lent in decided(history):
        seen = {one.device.name: one for one in readings if is_fit(one, now_ms)}
        squeezed = {name for name, one in seen.items() if pressure_of(one, lent.get(name, 0))}
        pressed |= dict.fromkeys(squeezed, now_ms)
        for one in decisions:
            name, before = one.device, lent.get(one.device, 0)
            assert (one.lend_bytes > 0) == (one.ttl_ms > 0)
            assert one.ttl_ms <= TTL_MAX_MS
            assert one.retry_after_ms >= 0
            assert one.why
            if name not in seen:  # Without a fit reading nothing begins, grows or is renewed.
                assert one.lend_bytes <= before
                assert one.ttl_ms == 0 or now_ms + one.ttl_ms <= ends_ms[name] + 1e-6
            elif one.lend_bytes:  # No loan touches what serving holds, or its reserve.
                of = seen[name].device
                spoken_for = seen[name].kv_used * of.kv_bytes + of.reserve_bytes
                assert one.lend_bytes + spoken_for <= of.kv_bytes
                assert one.lend_bytes % of.slab_bytes == 0
            if before and name in squeezed:  # Pressure makes every loan smaller at once.
                assert one.lend_bytes < before
                assert one.move in {LoanChange.SHRINK, LoanChange.END, LoanChange.REFUSE}
            # After pressure not before the shortest hold.
            if one.move in {LoanChange.LEND, LoanChange.GROW}:
                assert now_ms - pressed.get(name, -1e9) >= HOLD_MIN_MS
            ends_ms[name] = now_ms + one.ttl_ms


@given(st.integers(1, 12), st.floats(0, 200))
def test_the_hold_of_a_flapping_device_grows_to_its_cap_and_stays_there(flaps, extra_ms):
    """Pressed as soon as it lends again: each time it waits longer, up to the longest hold."""
    broker, now_ms, held_ms = Broker(device()), SETTLE_MS, []
    broker.decide(calm(0), 0)
    assert broker.decide(calm(now_ms), now_ms).move is LoanChange.LEND
    for _ in range(flaps):
        now_ms += 1 + extra_ms
        ended = broker.decide(late(now_ms), now_ms)
        assert ended.move is LoanChange.END
        held_ms.append(ended.retry_after_ms)
        calm_ms = now_ms + 1e3
        broker.decide(calm(calm_ms), calm_ms)
        now_ms += ended.retry_after_ms
        assert broker.decide(calm(now_ms - 1), now_ms - 1).move is LoanChange.REFUSE
        assert broker.decide(calm(now_ms), now_ms).move is LoanChange.LEND
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
    with pytest.raises(InvalidArgument, match="now_ms must be at least 5, the time of"):
        broker.decide(calm(4), 4)
