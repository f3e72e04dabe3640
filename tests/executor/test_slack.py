"""Mode slack: serving lets rollouts go first, for as long as every token still comes in time."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from rose._core import CloseReason, HarvestMode, QuantumRefusal, RecordKind
from rose.errors import Unavailable
from rose.executor import StepBatch
from rose.slo.log_file import read_log
from tests.executor.conftest import Rig
from tests.waiting import LONG_S, wait_for

TPOT_MS = 200.0
# Steps of a millisecond, so that nearly all of a TPOT target is slack.
SLACK = {"slowdown": math.inf, "latency_prior_ms": (1.0, 0.0, 0.0, 0.0, 0.0), "tpot_ms": TPOT_MS}
DECODE = StepBatch(decode_sequences=1, context_tokens=8, prefill_tokens=0, requests=("a",))


class Running:
    """A rig whose borrower runs segment after segment, and which stops when it is told to."""

    def __init__(self, rig: Rig, *, segment_s: float = 0.001) -> None:
        self.rig = rig
        self.gate = rig.device.gate
        self._segment_s = segment_s
        self._stop = threading.Event()
        rig.start(self._roll_out)
        wait_for(lambda: self.gate.passed > 0)

    def _roll_out(self) -> None:
        while not self._stop.is_set():
            quantum = self.rig.rollout.try_step(timeout_ms=20)
            if quantum:
                # At its gate it may hear of the device's end.
                with suppress(Unavailable), quantum:
                    while not self._stop.is_set():
                        self._stop.wait(self._segment_s)
                        self.rig.rollout.gate()

    def serve(self, request: str) -> None:
        """Bring a request to its first token; the borrower waits at its gate then."""
        self.rig.serving.arrived(request, prompt_tokens=8)
        with self.rig.serving.step():
            assert not self.gate.is_running()
            self.rig.serving.emitted(request)

    def lends(self, batch: StepBatch | None = None) -> bool:
        """Run a step; serving does not wait where the creditor decides just then."""
        with self.rig.serving.step(batch) as step:
            assert not self.gate.is_open()
            assert not self.gate.is_running()
            self.rig.serving.emitted("a")
        return step.lent_ms > 0

    def stop(self) -> None:
        self._stop.set()
        for request in ("a", "b"):
            self.rig.serving.finished(request)


@pytest.fixture
def run(open_rig: Callable[..., Rig]) -> Iterator[Callable[..., Running]]:
    """Open rigs with a borrower that runs; every one ends with an audit of its log."""
    made: list[Running] = []

    def run_one(**knobs) -> Running:
        made.append(Running(open_rig(**knobs)))
        return made[-1]

    yield run_one
    for one in made:
        one.stop()


def test_a_step_begins_after_rollouts_had_what_slack_there_was(run) -> None:
    running = run(**SLACK)
    running.serve("a")
    passed = running.gate.passed
    wait_for(lambda: running.lends(DECODE))
    assert running.gate.passed > passed
    assert running.rig.device._parts.creditor.granted(HarvestMode.SLACK) > 0


def test_a_batch_that_is_fixed_leaves_no_room_for_the_next_request(run) -> None:
    """A chunk takes longer than the TPOT target: nothing could be lent if it came next."""
    running = run(**{**SLACK, "latency_prior_ms": (1.0, 0.0, 0.0, TPOT_MS / 16, 0.0)})
    running.serve("a")
    assert running.rig.serving.step().__enter__().lent_ms == 0
    running.rig.serving.emitted("a")
    wait_for(lambda: running.lends(DECODE))
    granted = running.rig.device._parts.creditor.granted(HarvestMode.SLACK)
    running.rig.serving.emitted("a")
    with running.rig.serving.step() as step:
        assert running.rig.device._parts.creditor.granted(HarvestMode.SLACK) == granted
        step.commit(DECODE)
        assert running.rig.device._parts.creditor.granted(HarvestMode.SLACK) > granted
        assert not running.gate.is_open()


def test_slack_is_used_up_by_many_quanta_and_no_grant_comes_after_it(run) -> None:
    steps = 20
    running = run(**SLACK, max_segments=2)
    running.serve("a")
    for _ in range(steps):
        running.rig.serving.step().__enter__()
        running.rig.serving.emitted("a")
    running.rig.device.lender.log.flush()
    _, records = read_log(running.rig.log_path)
    token_ns, slack = 0, 0
    for one in records:
        if one.kind == "TOKENS":
            token_ns = one.time_ns
        elif one.kind == "QUANTUM" and one.fields["mode"] == HarvestMode.SLACK.value:
            slack += 1
            assert one.time_ns + one.fields["quantum_ms"] * 1e6 <= token_ns + TPOT_MS * 1e6
    assert slack > steps  # Only a machine that stands still has one for each step.


def test_an_arrival_ends_what_was_lent(run) -> None:
    running = run(**{**SLACK, "tpot_ms": 1e6, "blocking_ms": 1e6})
    serving, ended = running.rig.serving, threading.Event()
    running.serve("a")

    def step() -> None:
        serving.step().__enter__()
        ended.set()

    running.rig.start(step)
    wait_for(running.gate.is_open)
    serving.arrived("b", prompt_tokens=8)
    assert running.gate.close_reason is CloseReason.ARRIVAL
    assert ended.wait(LONG_S)
    assert not running.gate.is_open()


def test_nothing_is_lent_while_a_request_waits_for_its_first_token(run) -> None:
    running = run(**SLACK)
    running.serve("a")
    running.rig.serving.arrived("b", prompt_tokens=8)
    assert running.rig.serving.step().__enter__().lent_ms == 0
    assert running.rig.device._parts.creditor.granted(HarvestMode.SLACK) == 0


def test_without_a_slowdown_nothing_is_lent_before_a_step(run) -> None:
    running = run(**{**SLACK, "slowdown": 0.0})
    running.serve("a")
    passed = running.gate.passed
    running.rig.serving.step().__enter__()
    assert running.gate.passed == passed
    assert running.rig.device.lender.log.count(RecordKind.TOKENS) == 1


def test_a_borrower_with_nothing_to_run_is_not_waited_for(open_rig) -> None:
    rig = open_rig(**{**SLACK, "tpot_ms": 1e6, "blocking_ms": 1e6})
    rig.serving.arrived("a", prompt_tokens=8)
    began = rig.serving.step().__enter__()
    rig.serving.emitted("a")
    rig.serving.end_step(began, DECODE)
    rig.serving.step().__enter__()  # would last for a quarter of an hour
    rig.serving.finished("a")


def test_a_request_that_was_prefilled_elsewhere_has_slack_at_once(run) -> None:
    running = run(**SLACK)
    running.rig.serving.arrived("a", prompt_tokens=8, prefilled=True)
    wait_for(lambda: not running.gate.is_running())
    wait_for(running.lends)


def test_without_gates_a_step_is_one_segment(open_rig) -> None:
    rig = open_rig(without=frozenset({"gate"}))
    passed = []

    def body() -> None:
        passed.append(rig.device.gate.passed)
        for _ in range(5):
            rig.rollout.gate()
        rig.rollout.finish()
        passed.append(rig.device.gate.passed)

    rig.step_once(body)
    assert passed[0] == passed[1] > 0


def test_without_early_close_the_next_step_closes_the_gate(run) -> None:
    running = run(without=frozenset({"early_close"}))
    running.rig.serving.arrived("a", prompt_tokens=8)
    assert running.gate.is_open()
    running.rig.serving.step().__enter__()
    assert not running.gate.is_open()
    assert running.gate.close_reason is CloseReason.STEP


def test_without_credit_an_open_gate_lets_everything_through(run) -> None:
    running = run(without=frozenset({"credit"}), max_segments=2)
    assert running.gate.credit_left > 1000
    running.rig.serving.arrived("a", prompt_tokens=8)
    assert not running.gate.is_open()


def test_rollouts_take_no_more_of_a_request_than_its_slowdown(run) -> None:
    running = run(**{**SLACK, "slowdown": 0.5, "tpot_ms": 1e4, "blocking_ms": 1e4})
    serving, creditor = running.rig.serving, running.rig.device._parts.creditor
    running.serve("a")
    refused = creditor.refused(QuantumRefusal.BUDGET_SPENT)
    with serving.step() as step:
        assert step.lent_ms == 0  # It has earned nothing yet.
    # Not `last_refusal`: the creditor's own thread may have looked during the step.
    assert creditor.refused(QuantumRefusal.BUDGET_SPENT) > refused

    def is_lent() -> bool:
        with serving.step(DECODE):
            threading.Event().wait(0.01)
            serving.emitted("a")
        return creditor.granted(HarvestMode.SLACK) > 0

    wait_for(is_lent)
    running.stop()
    running.rig.close()  # It verifies the log: each loan against what was earned before it.


def test_a_device_that_gives_back_lends_no_slack(run) -> None:
    running = run(**SLACK)
    running.serve("a")
    creditor = running.rig.device._parts.creditor
    running.rig.device._stop_lending()
    granted = creditor.granted(HarvestMode.SLACK)
    running.rig.serving.emitted("a")
    assert running.rig.serving.step().__enter__().lent_ms == 0
    assert creditor.granted(HarvestMode.SLACK) == granted


def test_an_interrupt_on_the_way_into_a_step_leaves_no_step_behind(run, monkeypatch) -> None:
    running = run()
    serving = running.rig.serving

    steps = serving._steps

    class Interrupted:
        abandon = steps.abandon

        def begin(self, *batch, **how) -> None:
            steps.begin(*batch, **how)
            raise KeyboardInterrupt

    monkeypatch.setattr(serving, "_steps", Interrupted())
    with pytest.raises(KeyboardInterrupt), serving.step():
        pass
    wait_for(running.gate.is_open)
