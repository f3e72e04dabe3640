"""Harm to serving is budgeted: real borrowers that do harm, and the pause of their successors."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.harming import STUCK_S, Harm, MeasuredServing, Supervisor, supervised
from rose._core import ManualClock
from rose.errors import RetryLater
from rose.executor import CoServing, Quantum, Reason
from rose.executor.harm import Readmission
from rose.units import NS_PER_S
from tests.executor.conftest import ROLLOUT_KV, SLAB, ParkedStep
from tests.executor.test_attached import RemoteRig
from tests.waiting import LONG_S, wait_for

BUDGET_MS = 1000.0
# A host that wakes late adds this to the measured times.
HOST_MS = 200.0


@contextmanager
def harmed(
    folder: Path, kind: str, *arguments: str, ttft_ms: float
) -> Iterator[tuple[MeasuredServing, Supervisor]]:
    serving = MeasuredServing(folder, ttft_ms=ttft_ms)
    with supervised(kind, serving.path, *arguments) as borrower:
        yield serving, borrower


def check(harm: Harm) -> None:
    """Check that rose and the engine measured no more than the budget, and lending goes on."""
    assert harm.verification.violations == []
    assert harm.worst_ms <= BUDGET_MS
    assert harm.beyond_ms <= BUDGET_MS + HOST_MS
    assert harm.gave_back is None


# ---- real borrowers ------------------------------------------------------------------------------


@pytest.mark.parametrize(("run_s", "ttft_ms"), [("0.95", 2000.0), ("0.15", 200.0)])
def test_borrower_whose_segments_end_just_in_time_is_evicted(
    tmp_path: Path, run_s: str, ttft_ms: float
) -> None:
    with harmed(tmp_path, "drip", run_s, ttft_ms=ttft_ms) as (serving, _):
        serving.serve(LONG_S, until=lambda: bool(serving.device.lender.kills))
        (why,) = serving.device.reading().kills
        assert "serving waited 1000 ms for segments beyond their certificates" in why
        assert serving.device.reading().waited_ms == BUDGET_MS
    check(serving.close())


def test_restarted_scribbler_shares_the_budget_and_waits_longer_each_time(tmp_path: Path) -> None:
    with harmed(tmp_path, "scribble", ttft_ms=2000.0) as (serving, borrower):
        serving.serve(LONG_S, until=lambda: len(serving.device.lender.kills) >= 2)
        barred = serving.device.reading().barred
        assert "no borrower may attach for another" in barred
        assert "serving waited" in barred
        assert borrower.starts >= 2
    harm = serving.close()
    check(harm)
    assert harm.verification.waits.evicted == len(harm.kills)


def test_stuck_segment_is_certified_with_its_measured_length(tmp_path: Path) -> None:
    with harmed(tmp_path, "stuck", ttft_ms=200.0) as (serving, borrower):
        serving.serve(LONG_S, until=lambda: bool(borrower.refused))
        assert all(one.startswith("a rollout segment takes 9") for one in borrower.refused)
        assert serving.device.reading().segment.measured_ms >= STUCK_S * 1000
        assert serving.device.reading().refusals["segment_too_long"] > 0
        serving.serve(1.0)
    check(serving.close())


# ---- a borrower in serving's process -------------------------------------------------------------


def test_lending_ends_for_a_borrower_in_servings_process_that_spends_the_budget(open_rig) -> None:
    rig = open_rig(wait_budget_ms=30.0, park_wait_ms=20.0)
    step = ParkedStep(rig, [])
    rig.serving.arrived("a", prompt_tokens=8)
    lane, gate = rig.serving, rig.device.gate
    for _ in range(3):
        lane._stuck_at = None  # Each wait is for another segment.
        with lane.step():
            assert gate.is_running()
    assert rig.device.gave_back.startswith("DeadlineExceeded: serving waited 30 ms for segments")
    assert sum(lane.blocked_ms) <= 30.0 + 6.0  # the budget, and the certificate of one wait
    assert rig.rollout.try_step().reason is Reason.CLOSED
    step.may_go_on.set()
    wait_for(lambda: step.outcome)


def test_too_long_segments_reach_the_program_as_a_refusal(open_rig) -> None:
    rig = open_rig(blocking_ms=100.0)
    rig.step_once(lambda: threading.Event().wait(0.15))
    refusal = rig.rollout.try_step(timeout_ms=20)
    while isinstance(refusal, Quantum):
        with refusal:
            pass
        refusal = rig.rollout.try_step(timeout_ms=20)
    assert refusal.reason is Reason.SEGMENT_TOO_LONG
    assert refusal.segment.measured_ms >= 150
    assert refusal.segment.limit_ms == 99  # blocking_ms without signal_ms
    # The first trial shows that segments have become shorter.
    rig.step_once(lambda: None)
    wait_for(lambda: isinstance(rig.rollout.try_step(timeout_ms=20), Quantum))


# ---- the pause -----------------------------------------------------------------------------------


def test_pause_doubles_up_to_ten_minutes_and_is_forgiven() -> None:
    clock = ManualClock()
    readmission = Readmission(clock)
    assert readmission.barred is None
    for pause_s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600):
        readmission.ended_badly("it crashed")
        barred = readmission.barred
        assert barred.retry_after_ms == pause_s * 1000
        assert str(barred) == (
            f"no borrower may attach for another {pause_s:.1f} s, because it crashed"
        )
        clock.advance(pause_s * NS_PER_S)
        assert readmission.barred is None
    clock.advance(600 * NS_PER_S + 1)
    readmission.ended_badly("it crashed")
    assert readmission.barred.retry_after_ms == 1000


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemoteRig]:
    made = RemoteRig(tmp_path)
    yield made
    made.close()


def crash(rig: RemoteRig) -> None:
    """Let a borrower end without closing its device."""
    child = rig.attach()
    wait_for(lambda: child.do("borrow", 8))
    child.end()
    wait_for(lambda: rig.listener.tenancy is None)


def test_borrower_after_a_crash_is_told_how_long_to_wait_and_why(
    remote: RemoteRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_s = 4  # instead of 1 s, so that a busy machine asks in time
    monkeypatch.setattr("rose.executor.harm._FIRST_NS", pause_s * NS_PER_S)
    crash(remote)
    with CoServing.attach(remote.path) as device:
        why = "because the last borrower, process .* (ended without closing|was killed: it disco)"
        with pytest.raises(RetryLater, match=why) as caught:
            device.rollout(ROLLOUT_KV, limit_bytes=SLAB, patience_ms=0)
        assert 0 < caught.value.retry_after_ms <= pause_s * 1000
    with CoServing.attach(remote.path) as device:
        assert device.rollout(ROLLOUT_KV, limit_bytes=SLAB) is not None
    assert "trying again then" in caplog.text


def test_borrower_that_ends_in_order_costs_its_successor_nothing(remote: RemoteRig) -> None:
    for _ in range(3):
        with CoServing.attach(remote.path) as device:
            lane = device.rollout(ROLLOUT_KV, limit_bytes=SLAB, patience_ms=0)
            wait_for(lambda lane=lane: lane.ensure(1))
        wait_for(lambda: remote.listener.tenancy is None)
    assert remote.device.lender.readmission.barred is None
