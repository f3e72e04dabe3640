"""Rules 9 to 15: requests by slot, deadlines, modes, credit, and what was switched off."""

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.errors import InvalidArgument
from rose.slo.verify import Verification, verify_log
from tests.reference.log_bytes import MS, NO_SLOT, LogBytes, PlainRequests

IDLE, SLACK = 0, 1
GATE, CREDIT, EARLY_CLOSE, HYPOTHETICAL, MARGIN = (1 << bit for bit in range(5))
SLOTS = 1 << 20


def verified(log: LogBytes, tmp_path: Path) -> Verification:
    return verify_log(log.save(tmp_path / "log"))


def violations(log: LogBytes, tmp_path: Path) -> list[str]:
    return verified(log, tmp_path).violations


def running(*slots: int, **header) -> LogBytes:
    """Return a log in which these requests arrived and got their first token, now."""
    log = LogBytes(**header)
    for slot in slots:
        log.arrived(slot)
    log.wait(10)
    log.tokens(*slots)
    return log


def slack(log: LogBytes, *, tokens_ms_ago: float, pending: int = 1, **terms) -> None:
    """Grant one quantum of four segments in mode slack, with the deadline that is the truth."""
    deadline_ns = log.now_ns + round((50 - tokens_ms_ago) * MS)
    log.quantum(SLACK, deadline_ns=deadline_ns, pending=pending, **terms)


def test_an_honest_log_of_every_mode_verifies(tmp_path):
    log = LogBytes()
    log.quantum(IDLE)
    log.arrived(0)
    log.wait(5)
    log.tokens(0)
    log.wait(3)
    slack(log, tokens_ms_ago=3, passed=4)
    log.step(8, lent_ms=20, blocked_ms=1)
    log.tokens(0)
    slack(log, tokens_ms_ago=0, passed=8)
    log.forced(passed=12)
    log.arrived(1, prefilled=1)
    log.wait(1)
    slack(log, tokens_ms_ago=1, passed=13, pending=2)
    log.finished(0)
    log.finished(1)
    log.quantum(IDLE, passed=17)
    answer = verified(log, tmp_path)
    assert answer.violations == []
    assert (answer.granted, answer.verified) == (5, 5)
    assert (answer.kinds["TOKENS"], answer.kinds["FORCED"]) == (2, 1)
    assert answer.without == ()
    assert answer.coverage == 1.0


def test_slack_is_the_time_to_the_earliest_deadline_and_no_more(tmp_path):
    # A quantum of 20 ms, a signal of 1 ms and a chunk of 9 ms take 30 of 50 ms.
    for ago_ms, is_in_time in ((20, True), (20.1, False)):
        log = running(0, 1)
        log.wait(15)
        log.tokens(1)  # the other one is due later
        log.wait(ago_ms - 15)
        slack(log, tokens_ms_ago=ago_ms, pending=2)
        found = violations(log, tmp_path)
        assert (found == []) is is_in_time
        assert is_in_time or "takes 30.0 ms, but the earliest deadline is in 29.9 ms" in found[0]


def test_behind_a_committed_batch_the_next_request_is_set_aside_for_its_first_token_only(tmp_path):
    # A quantum of 20 ms, a signal of 1 ms and a step of 8 ms take 29 of 50 ms.
    for ago_ms, is_in_time in ((21, True), (21.1, False)):
        log = running(0)
        log.wait(ago_ms)
        slack(log, tokens_ms_ago=ago_ms, committed=1, chunk_upper_ms=100.0)
        assert (violations(log, tmp_path) == []) is is_in_time


def test_sums_are_rounded_as_the_page_adds_them(tmp_path):
    # From the left this is 0.6000000000000001; from the right it is 0.6.
    terms = {"segments": 1, "segment_upper_ms": 0.1, "step_upper_ms": 0.3, "chunk_upper_ms": 0.3}
    for ttft_ms, is_in_time in ((0.6000000000000001, True), (0.6, False)):
        log = LogBytes(signal_ms=0.2, ttft_ms=ttft_ms)
        log.quantum(IDLE, **terms)
        assert (violations(log, tmp_path) == []) is is_in_time


@pytest.mark.parametrize("error_ms", [-1, 1])
def test_a_deadline_that_no_request_has_is_a_violation(tmp_path, error_ms):
    log = running(0)
    slack(log, tokens_ms_ago=error_ms)
    assert any("deadline_ns is" in one for one in violations(log, tmp_path))


def test_a_deadline_may_be_rounded(tmp_path):
    log = running(0)
    log.wait(20)  # the quantum takes all the slack there is
    log.quantum(SLACK, deadline_ns=log.now_ns + 30 * MS + 1, pending=1)
    assert violations(log, tmp_path) == []


@pytest.mark.parametrize(
    ("slowdown", "mode", "says"),
    [
        (0.0, SLACK, "granted in mode slack at a slowdown of 0"),
        (-1.0, SLACK, "slowdown must not be negative, is -1.0"),
        (math.nan, IDLE, "slowdown must not be negative, is nan"),
        (1.0, 3, "mode 3 does not exist"),
        (1.0, 2**32 - 1, "mode 4294967295 does not exist"),
    ],
)
def test_a_mode_that_the_header_does_not_allow_is_a_violation(tmp_path, slowdown, mode, says):
    log = LogBytes(slowdown=slowdown)
    log.quantum(mode)
    assert any(says in one for one in violations(log, tmp_path))


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"segment_upper_ms": 25.0}, "delays serving by 101.0 ms"),
        ({"segment_upper_ms": 0.0}, "segment_upper_ms must be above 0"),
        ({"segment_upper_ms": float("nan")}, "delays serving"),
        ({"quantum_ms": 19.0}, "quantum_ms is not 20.0"),
        ({"step_upper_ms": 480.0}, "the next request would take 501.0 ms"),
        ({"chunk_upper_ms": 480.0}, "the next request would take 501.0 ms"),
        ({"step_upper_ms": float("nan")}, "step_upper_ms must be above 0"),
        ({"chunk_upper_ms": float("nan")}, "the next request would take nan"),
        ({"chunk_upper_ms": 0.0}, "chunk_upper_ms must be above 0"),
        ({"budget_ms": 30.0}, "budget_ms is 30.0, but the STEP records leave inf"),
        ({"budget_ms": float("nan")}, "budget_ms is nan"),
        ({"heartbeat_age_ns": 100 * MS + 1}, "heartbeat"),
        ({"heartbeat_age_ns": -1}, "heartbeat"),
        ({"segments": 5}, "grants 5 segments, 1 to 4 are allowed"),
        ({"segments": 0}, "grants 0 segments, 1 to 4 are allowed"),
        ({"outstanding": 4}, "were already outstanding"),
        ({"committed": 2}, "committed is 2"),
        ({"committed": 1, "step_upper_ms": 471.0}, "the next request would take 501.0 ms"),
        ({"pending": 0}, "pending is 0, but 1 requests were pending"),
        ({"pending": 2}, "pending is 2, but 1 requests were pending"),
    ],
)
def test_a_forged_term_is_a_violation(tmp_path, terms, says):
    log = running(0)
    deadline_ns = log.now_ns + 50 * MS
    log.quantum(SLACK, **({"deadline_ns": deadline_ns, "pending": 1} | terms))
    answer = verified(log, tmp_path)
    assert any(says in one for one in answer.violations)
    assert answer.verified == 0


def test_more_segments_than_were_credited_are_a_violation(tmp_path):
    for passed, is_credited in ((4, True), (5, False)):
        log = LogBytes()
        log.quantum(IDLE)
        log.quantum(IDLE, passed=passed)
        assert (violations(log, tmp_path) == []) is is_credited


def test_an_epoch_that_goes_back_is_a_violation_and_excuses_nothing(tmp_path):
    for epochs, is_allowed in (((6, 7), True), ((7, 7), True), ((7, 6), False)):
        log = LogBytes()
        for epoch in epochs:
            log.quantum(IDLE, passed=10, close_epoch=epoch)
        assert (violations(log, tmp_path) == []) is is_allowed
    log = LogBytes()
    log.quantum(IDLE, passed=10, close_epoch=2**32 - 1)
    log.quantum(IDLE, passed=10, close_epoch=0)
    assert violations(log, tmp_path) == []
    log = LogBytes()
    log.quantum(IDLE, passed=10, close_epoch=2**31 - 1)
    log.quantum(IDLE, passed=1010, close_epoch=0)
    assert any("on a credit of" in one for one in violations(log, tmp_path))


def test_once_a_request_came_prefilled_a_quantum_leaves_room_for_its_token(tmp_path):
    """A delay of 4 * 5 + 1 ms, and a first token of 9."""
    for tpot_ms, is_allowed in ((30.0, True), (29.9, False)):
        log = LogBytes(tpot_ms=tpot_ms)
        log.quantum(IDLE)
        log.arrived(0, prefilled=1)
        log.finished(0)
        log.quantum(IDLE)
        assert (violations(log, tmp_path) == []) is is_allowed


def test_a_segment_that_the_watchdog_forced_is_one_more_and_only_one(tmp_path):
    for forced, passed, is_credited in ((1, 5, True), (1, 6, False), (2, 6, True), (2, 7, False)):
        log = LogBytes()
        log.quantum(IDLE)
        for _ in range(forced):
            log.forced(passed=4)
        log.quantum(IDLE, passed=passed)
        answer = verified(log, tmp_path)
        assert (answer.violations == []) is is_credited
        assert answer.kinds["FORCED"] == forced


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("finished", (1,), "slot 1 has no request that could finish"),
        ("finished", (NO_SLOT,), "has no request that could finish"),
        ("finished", (SLOTS,), "has no request that could finish"),
        ("arrived", (0,), "slot 0 was given to a second request while"),
        ("arrived", (SLOTS,), "must be below 1048576"),
        ("arrived", (NO_SLOT - 1,), "must be below 1048576"),
        ("tokens", (0, 3, 5), "2 tokens belong to no request, the first is in slot 3"),
    ],
)
def test_slots_that_are_wrong_are_violations(tmp_path, name, arguments, says):
    log = running(0)
    getattr(log, name)(*arguments)
    found = violations(log, tmp_path)
    assert len(found) == 1
    assert says in found[0]


def test_tokens_are_counted_and_stay_within_the_slots(tmp_path):
    log = running(0)
    log.tokens(0, count=2)
    log.tokens(SLOTS, first_slot=SLOTS)
    log.tokens(NO_SLOT, first_slot=NO_SLOT)
    log.tokens(NO_SLOT + 1, first_slot=NO_SLOT)
    found = violations(log, tmp_path)
    assert len(found) == 4
    assert "count is 2, but the bitmap has 1" in found[0]
    assert all("must be below 1048576" in one for one in found[1:])


def test_prefilled_is_a_yes_or_a_no(tmp_path):
    log = LogBytes()
    log.arrived(0, prefilled=2)
    assert violations(log, tmp_path) == ["record 2: ARRIVED: prefilled is 2, not 0 or 1"]


@pytest.mark.parametrize(
    "name",
    ["predicted_ms", "actual_ms", "blocked_ms", "lent_ms", "decode_sequences", "prefill_tokens"],
)
def test_a_step_has_no_impossible_number(tmp_path, name):
    for value in (-1.0, float("nan"), float("inf")):
        log = LogBytes()
        log.step(**({"actual_ms": 5.0, "began_ns": log.now_ns} | {name: value}))
        assert violations(log, tmp_path) == [
            f"record 2: STEP: {name} must be finite and not negative, is {value}"
        ]


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"began_ns": 996 * MS}, "the step ended at 1001000000.0 ns, after its record"),
        ({"upper_ms": 9.0, "predicted_ms": 9.5}, "upper_ms 9.0 is below predicted_ms 9.5"),
        ({"predicted_ms": 0.0}, "upper_ms 10.0 is below predicted_ms 0.0, or both are 0"),
    ],
)
def test_a_step_is_over_before_its_record_and_its_bound_is_above_its_prediction(
    tmp_path, terms, says
):
    log = LogBytes()
    log.step(5.0, **terms)
    found = violations(log, tmp_path)
    assert len(found) == 1
    assert says in found[0]


def test_a_step_without_a_bound_is_none_of_the_quantums_business(tmp_path):
    log = LogBytes()
    log.step(5.0, upper_ms=float("inf"), predicted_ms=4.0)
    assert violations(log, tmp_path) == []


def test_running_requests_pay_with_a_share_of_their_steps(tmp_path):
    # A quarter of 100 ms, less 2 and 1: 22 ms, and a quantum of 20 ms takes 21.
    for lent_ms, is_paid in ((2.0, True), (3.5, False)):
        log = running(0, slowdown=0.25, tpot_ms=500.0)
        log.wait(130)
        log.step(100.0, lent_ms=lent_ms, blocked_ms=1.0, upper_ms=200.0)
        budget_ms = 25 - 1 - lent_ms
        deadline_ns = log.now_ns + 370 * MS
        log.quantum(SLACK, deadline_ns=deadline_ns, pending=1, budget_ms=budget_ms)
        found = violations(log, tmp_path)
        assert (found == []) is is_paid
        assert is_paid or "delays requests by 21.0 ms, but their budget is 20.5 ms" in found[0]


def test_a_request_pays_only_for_what_was_earned_since_its_first_token(tmp_path):
    for second, budget_ms in ((1, 0.0), (None, 25.0)):
        log = running(0, slowdown=0.25, tpot_ms=500.0)
        log.wait(100)
        log.step(100.0, upper_ms=200.0)
        if second is not None:
            log.arrived(second, prefilled=1)
            log.finished(0)
        deadline_ns = log.now_ns + (400 if second is None else 500) * MS
        log.quantum(SLACK, deadline_ns=deadline_ns, pending=1, budget_ms=25.0)
        found = violations(log, tmp_path)
        assert (found == []) is (budget_ms == 25.0)
        assert second is None or "budget_ms is 25.0, but the STEP records leave 0.0" in found[0]


def test_in_idle_mode_there_is_no_budget(tmp_path):
    log = LogBytes()
    log.quantum(IDLE, budget_ms=1.0)
    assert violations(log, tmp_path) == [
        "record 2: QUANTUM: budget_ms must be 0 outside slack, is 1.0"
    ]


@pytest.mark.parametrize("tpot_ms", [float("nan"), float("inf"), -1.0, 1e303])
def test_a_target_that_is_no_number_is_a_violation(tmp_path, tpot_ms):
    log = running(0, tpot_ms=tpot_ms)
    log.quantum(SLACK, deadline_ns=log.now_ns, pending=1)
    assert violations(log, tmp_path)[0] == f"header: tpot_ms must be from 0 to 1e+13, is {tpot_ms}"


# ---- what was switched off -----------------------------------------------------------------------


def more_than_credited(log: LogBytes) -> None:
    log.quantum(IDLE)
    log.quantum(IDLE, passed=1000)


def more_outstanding(log: LogBytes) -> None:
    log.quantum(IDLE, outstanding=2**31)


def no_chunk(log: LogBytes) -> None:
    log.quantum(IDLE, chunk_upper_ms=1e9)


@pytest.mark.parametrize(
    ("what", "by"),
    [(more_than_credited, CREDIT), (more_outstanding, CREDIT), (no_chunk, HYPOTHETICAL)],
)
def test_only_the_mechanism_that_is_off_excuses_what_it_would_have_prevented(tmp_path, what, by):
    for bit in range(6):
        log = LogBytes(without=1 << bit)
        what(log)
        assert (violations(log, tmp_path) == []) is (1 << bit == by)


def test_switched_off_mechanisms_are_named(tmp_path):
    names = ("gate", "credit", "early_close", "hypothetical", "margin")
    assert verified(LogBytes(without=0b11111), tmp_path).without == names
    assert verified(LogBytes(without=CREDIT | MARGIN), tmp_path).without == ("credit", "margin")
    found = violations(LogBytes(without=1 << 5), tmp_path)
    assert found == ["header: without 0x20 has bits that stand for no mechanism"]


# ---- versions ------------------------------------------------------------------------------------


def test_another_version_is_refused_and_the_known_one_is_named(tmp_path):
    for version in (3, 6, 8):
        with pytest.raises(InvalidArgument, match=f"version {version} .* reads version 7 with 128"):
            verified(LogBytes(version=version), tmp_path)
    with pytest.raises(InvalidArgument, match="records of 256 bytes"):
        verified(LogBytes(record_bytes=256), tmp_path)


# ---- against the slow truth ----------------------------------------------------------------------

SLOT = st.integers(0, 5)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrived"), SLOT, st.booleans()),
        st.tuples(st.just("finished"), SLOT),
        st.tuples(st.just("tokens"), st.sets(SLOT, min_size=1)),
        st.tuples(st.just("wait"), st.integers(1, 30)),
        st.tuples(st.just("quantum"), st.integers(0, 1), st.integers(1, 4)),
        st.tuples(st.just("step"), st.integers(0, 30), st.integers(1, 30), st.integers(0, 3)),
    ),
    max_size=60,
)


def play(events, log: LogBytes) -> list[bool]:
    """Write what happens, with honest terms; returns whether each quantum may be granted."""
    truth = PlainRequests(tpot_ms=50.0, slowdown=0.5)
    live, passed, may = truth.last_token_ns, 0, []
    for event in events:
        match event:
            case ("arrived", slot, prefilled) if slot not in live:
                log.arrived(slot, prefilled=int(prefilled))
                truth.arrive(slot, log.now_ns, prefilled=prefilled)
            case ("finished", slot) if slot in live:
                log.finished(slot)
                truth.finish(slot)
            case ("tokens", slots) if slots & set(live):
                log.tokens(*(slots & set(live)))
                for slot in slots & set(live):
                    truth.give_token(slot, log.now_ns)
            case ("wait", ms):
                log.wait(ms)
            case ("step", actual_ms, predicted_ms, lent_ms):
                times = {"predicted_ms": float(predicted_ms), "lent_ms": float(lent_ms)}
                log.step(float(actual_ms), upper_ms=50.0, **times)
                truth.step(actual_ms, **times)
            case ("quantum", mode, segments):
                log.quantum(
                    mode,
                    segments=segments,
                    passed=passed,
                    pending=len(live),
                    deadline_ns=truth.earliest_deadline_ns(),
                    budget_ms=truth.budget_ms() if mode == SLACK else 0.0,
                )
                passed += segments
                delay_ms = 5.0 * segments + 1
                may.append(truth.may(mode, log.now_ns, delay_ms=delay_ms, next_ms=9.0))
                if mode == SLACK:
                    truth.lend(delay_ms)
    return may


@given(events=EVENTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_quantum_verifies_exactly_when_the_slow_truth_allows_it(tmp_path, events):
    log = LogBytes(slowdown=0.5)
    may = play(events, log)
    answer = verified(log, tmp_path)
    assert (answer.granted, answer.verified) == (len(may), sum(may))
    assert (answer.violations == []) is all(may)


def test_of_many_batches_only_what_is_the_last_of_nobody_is_forgotten(tmp_path):
    log = LogBytes()
    for slot in range(3):
        log.arrived(slot)
    for turn in range(9_000):
        log.wait(0.1)
        log.tokens(turn % 3)
    slack(log, tokens_ms_ago=0.2, pending=3)
    assert violations(log, tmp_path) == []


PAYLOAD_BYTES = {
    "ARRIVED": 16, "FINISHED": 4, "QUANTUM": 84, "ADMISSION": 88, "MOVE": 32, "REVOKE_BEGUN": 12,
    "STEP": 72, "TOKENS": 96, "FORCED": 8,
}  # fmt: skip
SOME_BYTES = st.sampled_from(sorted(PAYLOAD_BYTES)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.binary(min_size=96, max_size=96))
)


@given(
    records=st.lists(SOME_BYTES, max_size=12),
    numbers=st.lists(st.floats() | st.floats(0, 1000), min_size=6, max_size=6),
    bits=st.tuples(*[st.integers(0, 2**32 - 1)] * 2),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_sealed_log_says_there_is_an_answer(tmp_path, records, numbers, bits):
    names = ("ttft_ms", "tpot_ms", "epsilon", "signal_ms", "blocking_ms", "revoke_ms")
    log = LogBytes(slowdown=bits[0], without=bits[1], **dict(zip(names, numbers, strict=True)))
    for kind, payload in records:
        log.add(kind, payload[: PAYLOAD_BYTES[kind]])
    answer = verified(log, tmp_path)
    assert answer.records == len(records) + 2
    assert answer.verified <= answer.granted
