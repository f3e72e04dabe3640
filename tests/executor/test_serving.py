"""Serving's lane: the gate closes first, steps are protected, memory comes when it is asked for."""

import threading

import pytest

from rose._core import CloseReason
from rose.executor import Reason, Refusal, StepBatch, Ticket
from tests.executor.conftest import ROLLOUT_KV, SLAB, ParkedStep
from tests.known_model import confirm
from tests.waiting import LONG_S, wait_for


@pytest.fixture
def running(open_rig):
    """Return a rig whose borrower runs segment after segment, with a way to stop it."""
    rig = open_rig()
    stop = threading.Event()

    def segments() -> None:
        while not stop.is_set():
            rig.rollout.gate()

    def roll_out() -> None:
        while not stop.is_set():
            quantum = rig.rollout.try_step(timeout_ms=20)
            if quantum:
                with quantum:
                    segments()

    thread = rig.start(roll_out)
    wait_for(rig.device.gate.is_open)
    yield rig
    stop.set()
    for request in ("a", "b"):
        rig.serving.finished(request)
    thread.join(LONG_S)


def test_arrival_closes_the_gate_before_it_returns(running) -> None:
    gate = running.device.gate
    for _ in range(20):
        running.serving.arrived("a", prompt_tokens=8)
        assert not gate.is_open()
        assert gate.close_reason is CloseReason.ARRIVAL
        assert gate.wait_parked(timeout_ms=LONG_S * 1000) is not None
        passed = gate.passed
        threading.Event().wait(0.002)
        assert (gate.is_open(), gate.passed) == (False, passed)
        running.serving.finished("a")
        wait_for(gate.is_open)


def test_the_gate_opens_when_the_last_request_is_over(running) -> None:
    gate, serving = running.device.gate, running.serving
    serving.arrived("a", prompt_tokens=8)
    serving.arrived("b", prompt_tokens=8)
    serving.arrived("b", prompt_tokens=8)  # said twice, counted once
    serving.finished("a")
    serving.finished("a")
    serving.finished("nobody")
    threading.Event().wait(0.02)
    assert not gate.is_open()
    serving.finished("b")
    wait_for(gate.is_open)
    assert running.device.gave_back is None


def test_serving_step_waits_for_the_running_segment_and_no_longer(open_rig) -> None:
    rig = open_rig(park_wait_ms=LONG_S * 1000)
    step = ParkedStep(rig, [])
    rig.serving.arrived("a", prompt_tokens=8)
    assert rig.device.gate.is_running()
    threading.Timer(0.05, step.may_go_on.set).start()
    with rig.serving.step():
        assert step.may_go_on.is_set()
        assert not rig.device.gate.is_running()
    assert step.outcome == ""  # the step itself is not over: it waits at its gate
    (blocked_ms,) = rig.serving.blocked_ms
    assert 0 < blocked_ms < LONG_S * 1000
    rig.serving.finished("a")
    wait_for(lambda: step.outcome == "passed")


def test_stuck_segment_holds_serving_up_once_and_for_a_bounded_time(open_rig) -> None:
    rig = open_rig(park_wait_ms=20)
    step = ParkedStep(rig, [])
    rig.serving.arrived("a", prompt_tokens=8)
    for _ in range(3):
        with rig.serving.step():
            assert rig.device.gate.is_running()
    assert list(rig.serving.blocked_ms) == [20]
    assert rig.device.gave_back is None
    rig.serving.finished("a")
    step.may_go_on.set()
    wait_for(lambda: step.outcome == "passed")


def test_step_without_a_request_is_protected_too(running) -> None:
    gate = running.device.gate
    with running.serving.step():
        assert not gate.is_open()
        passed = gate.passed
        threading.Event().wait(0.02)
        assert (gate.is_running(), gate.passed) == (False, passed)
    wait_for(gate.is_open)

    assert running.device.gave_back is None


def test_failed_step_of_the_engine_goes_through_and_opens_the_gate(running) -> None:
    with pytest.raises(ZeroDivisionError), running.serving.step(StepBatch(1, 8, 0)):
        raise ZeroDivisionError
    assert running.device.gave_back is None
    wait_for(running.device.gate.is_open)


def test_refusal_is_a_value(open_rig) -> None:
    rig = open_rig()
    rig.serving.arrived("a", prompt_tokens=8)
    answers = [
        (rig.rollout.try_step(timeout_ms=1), Reason.SERVING_BUSY),
        (rig.rollout.reserve(10_000), Reason.RESERVE_AT_RISK),
        (rig.serving.reserve(10_000), Reason.POOL_EMPTY),
    ]
    for answer, reason in answers:
        assert isinstance(answer, Refusal)
        assert not answer
        assert answer.reason is reason
    rig.serving.finished("a")
    rig.serving.settle()  # what the refused request took on the way is offered again


def test_ticket_sets_serving_blocks_aside(open_rig) -> None:
    rig = open_rig()
    ticket = rig.serving.reserve(40)
    assert isinstance(ticket, Ticket)
    ids = ticket.commit(2)
    assert len(set(ids)) == 2
    over = ticket.commit(2)
    assert isinstance(over, Refusal)
    allocator = rig.serving.kv.allocator
    assert allocator.used_blocks == 3
    ticket.cancel()
    assert allocator.used_blocks == 2
    allocator.free(ids)


def test_ensure_waits_for_slabs_that_another_revocation_is_bringing(open_rig) -> None:
    rig = open_rig()
    blocks = rig.borrow(90)
    lent = rig.counts()[1]
    step = ParkedStep(rig, blocks)
    # The first demand is under way: all slabs are being taken back, and all are pinned.
    first = rig.start(lambda: rig.serving.ensure(64))
    wait_for(lambda: len(rig.rollout.leaving()) == lent)
    threading.Timer(0.05, step.may_go_on.set).start()
    assert rig.serving.ensure(64)
    first.join(LONG_S)
    assert step.outcome == "aborted"
    assert rig.counts() == (16, 0, 0, 0)


def test_serving_without_a_borrower_has_the_whole_pool(open_rig) -> None:
    rig = open_rig(lends=False)
    assert rig.serving.ensure(64)
    assert not rig.serving.ensure(65)
    with rig.serving.step(StepBatch(1, 8, 0)):
        pass
    rig.serving.settle()
    assert rig.device.gave_back is None


def skipped(serving, steps: int = 64) -> int:
    return sum(serving.skips_step() for _ in range(steps))


def test_without_a_borrower_most_steps_are_skipped_once_there_is_evidence(open_rig) -> None:
    rig = open_rig(lends=False, is_known=False)
    serving = rig.serving
    serving.arrived("a", prompt_tokens=8)
    assert skipped(serving) == 0
    confirm(rig.device._parts.model, serving.limits.step_tokens)
    skipped(serving)
    assert skipped(serving) == 63
    serving.finished("a")
    assert skipped(serving) == 0  # Such a step is a probe.


def test_beside_a_borrower_no_step_is_skipped(open_rig) -> None:
    rig = open_rig()
    rig.serving.arrived("a", prompt_tokens=8)
    assert skipped(rig.serving) == 0
    rig.serving.finished("a")


def test_a_borrower_that_attaches_in_a_skipped_step_waits_for_its_late_tokens(open_rig) -> None:
    rig = open_rig(lends=False)
    serving, state = rig.serving, rig.device.lender.state
    serving.arrived("a", prompt_tokens=8)
    serving.emitted("a")
    skipped(serving)  # The last of these steps sees the evidence.
    assert serving.skips_step()
    rollout = rig.device.rollout(ROLLOUT_KV, limit_bytes=SLAB)
    assert isinstance(rollout.try_step(timeout_ms=100), Refusal)
    assert not any(serving.skips_step() for _ in range(64))
    timed = rig.device.reading().later_tokens
    for _ in range(3):
        serving.emitted_all(["a"], is_late=True)
    assert (state.pending, state.waiting, state.context_tokens) == (1, 0, 12)
    assert rig.device.reading().later_tokens == timed
    serving.emitted("a")
    assert rig.device.reading().later_tokens != timed
    serving.finished("a")


def test_a_late_first_token_ends_the_wait(open_rig) -> None:
    rig = open_rig(lends=False)
    rig.serving.arrived("a", prompt_tokens=8)
    before = rig.device.reading().first_tokens
    rig.serving.emitted_all(["a"], is_late=True)
    assert rig.device.lender.state.waiting == 0
    assert rig.device.reading().first_tokens != before
    rig.serving.finished("a")
