"""Whose fault a miss was: each cause injected alone, and laws over logs of any kind."""

import math
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.slo.audit import CAUSES, Miss, Part, audit
from tests.reference.log_bytes import MS, LogBytes

IDLE, SLACK = 0, 1


def misses_of(log: LogBytes, tmp_path: Path, **asked) -> list[Miss]:
    return audit(log.save(tmp_path / "log"), **asked)


def parts_ms(miss: Miss) -> dict[str, float]:
    """Return the parts that are not empty."""
    return {part.value: ns / MS for part, ns in miss.parts_ns.items() if ns}


def decoding() -> LogBytes:
    """Return a log in which request 0 got its first token right now, after a short prefill."""
    log = LogBytes()
    log.quantum(IDLE)  # promises segments of 5 ms, and 1 ms until a close is seen
    log.arrived(0)
    log.wait(10)
    log.tokens(0)
    log.step(10, prefill_tokens=64.0)
    return log


def decode(log: LogBytes, ms: float, **terms) -> None:
    """Let a step run from now on, and emit a token at its end."""
    log.wait(ms)
    log.tokens(0)
    log.step(ms, **terms)


def estimator(log: LogBytes) -> None:
    log.wait(37)
    decode(log, 17, upper_ms=12.0, lent_ms=37.0)  # slack: 50 - 12


def blocking(log: LogBytes) -> None:
    log.wait(43)
    decode(log, 10, blocked_ms=43.0)  # 5 + 1 were promised


def lent(log: LogBytes) -> None:
    log.wait(45)
    decode(log, 10, lent_ms=45.0)


def host(log: LogBytes) -> None:
    log.wait(41)
    decode(log, 10)


def load(log: LogBytes) -> None:
    for _ in range(5):
        log.wait(9)
        log.step(9)  # for somebody else
    decode(log, 9)


INJECTED = {
    estimator: {"estimator": 5.0, "promised": 49.0},
    blocking: {"blocking": 37.0, "promised": 16.0},
    lent: {"lent": 5.0, "promised": 50.0},
    host: {"host": 41.0, "promised": 10.0},
    load: {"load": 45.0, "promised": 9.0},
}


@pytest.mark.parametrize(("inject", "parts"), INJECTED.items())
def test_a_cause_that_was_injected_alone_is_found(tmp_path, inject, parts):
    log = decoding()
    inject(log)
    (miss,) = misses_of(log, tmp_path)
    assert (miss.request, miss.token, miss.target_ms) == (0, 2, 50.0)
    assert miss.cause.value == inject.__name__
    assert parts_ms(miss) == parts
    assert miss.took_ms == sum(parts.values())


def test_slack_that_was_lent_twice_within_one_gap_is_counted_together(tmp_path):
    log = decoding()
    for _ in range(2):
        log.wait(31)
        log.wait(4)
        log.step(4, lent_ms=31.0)
    log.tokens(0)
    (miss,) = misses_of(log, tmp_path)
    assert miss.cause is Part.LENT
    assert parts_ms(miss) == {"lent": 22.0, "load": 4.0, "promised": 44.0}  # slack: 50 - 10


def test_the_largest_of_two_causes_is_the_cause_and_of_equals_the_first(tmp_path):
    for host_ms, cause in ((29.9, Part.ESTIMATOR), (30, Part.ESTIMATOR), (30.1, Part.HOST)):
        log = decoding()
        log.wait(host_ms)
        decode(log, 40, upper_ms=10.0)
        (miss,) = misses_of(log, tmp_path)
        assert miss.cause is cause


def test_a_step_that_was_too_large_for_the_target_is_load(tmp_path):
    log = decoding()
    decode(log, 60, upper_ms=70.0)
    (miss,) = misses_of(log, tmp_path)
    assert (miss.cause, parts_ms(miss)) == (Part.LOAD, {"load": 10.0, "promised": 50.0})


def test_what_was_promised_is_what_the_quantum_before_said(tmp_path):
    log = decoding()
    log.quantum(SLACK, segment_upper_ms=20.0, segments=1)
    log.wait(45)
    log.quantum(SLACK, segment_upper_ms=40.0, segments=1)  # later than the wait
    log.wait(10)
    log.tokens(0)
    log.step(10, blocked_ms=45.0, began_ns=log.now_ns - 10 * MS - 1)
    (miss,) = misses_of(log, tmp_path)
    assert miss.parts_ns[Part.BLOCKING] == 24 * MS


def test_steps_that_overlap_share_no_time(tmp_path):
    log = decoding()
    began_ns = log.now_ns
    log.wait(60)
    log.tokens(0)
    log.step(40, upper_ms=30.0, began_ns=began_ns)
    log.step(40, upper_ms=30.0, lent_ms=10.0, began_ns=began_ns + 10 * MS)
    (miss,) = misses_of(log, tmp_path)
    assert parts_ms(miss) == {"load": 30.0, "estimator": 20.0, "host": 10.0}


# ---- first tokens --------------------------------------------------------------------------------


def test_the_steps_that_hold_a_prompt_are_its_own_and_those_before_are_load(tmp_path):
    log = LogBytes()
    log.arrived(0, tokens=100)
    for prefill_tokens in (64.0, 64.0, 64.0, 36.0):  # the first two are of others
        log.wait(130)
        log.step(130, upper_ms=130.0, prefill_tokens=prefill_tokens)
    log.wait(11)
    log.tokens(0)
    (miss,) = misses_of(log, tmp_path)
    assert (miss.token, miss.target_ms, miss.cause) == (1, 500.0, Part.LOAD)
    assert parts_ms(miss) == {"load": 260.0, "host": 11.0, "promised": 260.0}


def test_a_step_that_ran_when_a_request_arrived_is_load_or_the_estimators(tmp_path):
    log = LogBytes()
    log.arrived(0)
    log.wait(600)
    log.tokens(0)
    log.step(700, upper_ms=300.0, began_ns=log.now_ns - 700 * MS, prefill_tokens=64.0)
    (miss,) = misses_of(log, tmp_path)
    assert parts_ms(miss) == {"load": 200.0, "estimator": 400.0}


def test_a_prefilled_request_has_a_tpot_from_its_arrival_on(tmp_path):
    log = LogBytes()
    log.arrived(0, prefilled=1)
    log.wait(60)
    log.tokens(0)
    (miss,) = misses_of(log, tmp_path)
    assert (miss.token, miss.target_ms, miss.cause) == (1, 50.0, Part.HOST)


# ---- whose tokens they are -----------------------------------------------------------------------


def test_requests_are_numbered_by_arrival_and_only_those_met_alone_are_excess(tmp_path):
    log = LogBytes()
    log.arrived(3, tokens=0)  # a step without a request has no number
    log.finished(3)
    for slot in (0, 1, 2):
        log.arrived(slot)
    log.wait(600)
    log.tokens(0, 1, 2)
    assert [miss.request for miss in misses_of(log, tmp_path)] == [0, 1, 2]
    assert [miss.request for miss in misses_of(log, tmp_path, met_alone={0, 2})] == [0, 2]
    assert misses_of(log, tmp_path, met_alone=()) == []


# ---- laws ----------------------------------------------------------------------------------------

SLOT = st.integers(0, 3)
SOME_MS = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 700)
ANY_STEP = st.lists(SOME_MS, min_size=8, max_size=8)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrived"), SLOT, st.integers(0, 200), st.integers(0, 1)),
        st.tuples(st.just("finished"), SLOT),
        st.tuples(st.just("tokens"), st.sets(SLOT)),
        st.tuples(st.just("wait"), st.floats(0, 600)),
        st.tuples(st.just("step"), ANY_STEP, st.integers(-(2**63), 2**63 - 1) | st.none()),
        st.tuples(st.just("quantum"), SOME_MS),
    ),
    max_size=50,
)


def write(events) -> LogBytes:
    log = LogBytes()
    for event in events:
        match event:
            case ("arrived", slot, tokens, prefilled):
                log.arrived(slot, tokens=tokens, prefilled=prefilled)
            case ("finished", slot):
                log.finished(slot)
            case ("tokens", slots):
                log.tokens(*slots)
            case ("wait", ms):
                log.wait(ms)
            case ("step", terms, began_ns):
                began_ns = log.now_ns if began_ns is None else began_ns
                log.add("STEP", struct.pack("<ddddddddq", *terms, began_ns))
            case ("quantum", upper_ms):
                log.quantum(SLACK, segment_upper_ms=upper_ms, segments=1)
    return log


@given(events=EVENTS, signal_ms=SOME_MS, ttft_ms=SOME_MS, tpot_ms=SOME_MS)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_miss_of_any_log_has_one_cause_and_parts_that_sum_to_it(
    tmp_path, events, signal_ms, ttft_ms, tpot_ms
):
    log = write(events)
    log.records[0] = LogBytes(signal_ms=signal_ms, ttft_ms=ttft_ms, tpot_ms=tpot_ms).records[0]
    for miss in misses_of(log, tmp_path):
        assert miss.took_ms > miss.target_ms
        assert set(miss.parts_ns) == set(Part)
        assert min(miss.parts_ns.values()) >= 0
        assert sum(miss.parts_ns.values()) == miss.came_ns - miss.began_ns
        causes = {part: miss.parts_ns[part] for part in CAUSES}
        assert miss.cause in CAUSES
        assert causes[miss.cause] == max(causes.values())


def plain_gaps(events) -> list[tuple[int, float]]:
    """Return (arrival number, milliseconds) of every token, the slow way."""
    now, arrivals, gaps, live = 0.0, 0, [], {}
    for event in events:
        match event:
            case ("wait", ms):
                now += ms
            case ("arrived", slot, tokens, _):
                live.pop(slot, None)
                if tokens > 0:
                    live[slot] = [arrivals, now]
                    arrivals += 1
            case ("finished", slot):
                live.pop(slot, None)
            case ("tokens", slots):
                for slot in sorted(slots & set(live)):
                    number, last = live[slot]
                    gaps.append((number, now - last))
                    live[slot][1] = now
    return gaps


@given(events=EVENTS)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_token_that_is_late_is_a_miss(tmp_path, events):
    log = write(events)
    log.records[0] = LogBytes(ttft_ms=100.0, tpot_ms=100.0).records[0]
    found = [(miss.request, miss.took_ms) for miss in misses_of(log, tmp_path)]
    expected = [(number, ms) for number, ms in plain_gaps(events) if ms > 100.01]
    late = [(number, ms) for number, ms in found if ms > 100.01]
    assert [number for number, _ in late] == [number for number, _ in expected]
    for (_, one), (_, other) in zip(late, expected, strict=True):
        assert math.isclose(one, other, abs_tol=0.005)
