"""Serving's lane asks for probes, and a reading says why rollouts wait."""

from pathlib import Path

import pytest

from rose.executor import CoServing, Reason, StepBatch
from rose.executor.probing import ProbeRation
from tests.executor.conftest import ROLLOUT_KV, SLAB
from tests.known_model import confirm
from tests.waiting import wait_for


@pytest.fixture
def unknown(open_rig):
    """Return a rig whose steps nobody has measured."""
    return open_rig(is_known=False, epsilon=0.2)


def refuse(rig) -> None:
    """Have a borrower refused."""
    answer = rig.rollout.try_step(timeout_ms=20)
    assert not answer


def probe(rig) -> StepBatch:
    """Run the probe that is due, as an engine would."""
    batches: list[StepBatch | None] = []
    wait_for(lambda: batches.append(rig.serving.probe_due()) or batches[-1])
    with rig.serving.step() as step:
        step.commit(batches[-1])
    return batches[-1]


def test_lane_says_what_the_bounds_of_both_shapes_rest_on(unknown) -> None:
    evidence = unknown.serving.evidence()
    assert [one.shape for one in evidence] == ["step", "chunk"]
    assert [(one.scores, one.wanted, one.missing, one.bound_ms) for one in evidence] == [
        (0, 9, 17, None)
    ] * 2
    confirm(unknown.device._parts.model, 32)
    for one in unknown.device.reading().evidence:
        assert one.missing == 0
        assert one.bound_ms == pytest.approx(500)


def test_probes_end_a_refusal_for_lack_of_evidence(unknown) -> None:
    probed = []
    while not (answer := unknown.rollout.try_step(timeout_ms=20)):
        probed.append(probe(unknown))
    with answer:
        pass
    # Serving's limits: 64 tokens in a request, 32 in a step.
    assert set(probed) == {StepBatch(1, 64, 0), StepBatch(0, 64, 32)}
    assert all(one.bound_ms is not None for one in unknown.serving.evidence())
    assert unknown.serving.kv.allocator.used_blocks == 0
    assert unknown.device.reading().waiting == 0


def test_an_engine_without_a_prober_runs_both_shapes_before_its_first_request(unknown) -> None:
    ran: list[StepBatch] = []
    unknown.serving.warm_up(ran.append)
    assert set(ran) == {StepBatch(1, 64, 0), StepBatch(0, 64, 32)}
    assert [one.missing for one in unknown.serving.evidence()] == [0, 0]


def test_no_probe_is_due_beside_a_request_within_a_step_or_without_a_borrower(
    unknown, open_rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(ProbeRation, "due", lambda _, __, seen: asked.append(seen.is_idle))
    unknown.serving.probe_due()
    unknown.serving.arrived("a", prompt_tokens=8)
    unknown.serving.probe_due()
    step = unknown.serving.step()
    with step:
        unknown.serving.finished("a")
        unknown.serving.probe_due()
    unknown.serving.probe_due()
    assert asked == [True, False, False, True]
    open_rig(lends=False).serving.probe_due()
    assert len(asked) == 4


def test_a_probe_is_no_request_for_the_forecast_of_arrivals(unknown) -> None:
    refuse(unknown)
    for _ in range(5):
        probe(unknown)
    assert unknown.device.lender.demand.terms(running=0).burst_requests == 1
    assert not unknown.serving.has_requests


def test_reason_reaches_a_borrower_of_another_process(open_rig, tmp_path: Path) -> None:
    rig = open_rig(lends=False, is_known=False)
    path = tmp_path / "device.sock"
    rig.device.listen(path)
    with CoServing.attach(path) as attached:
        lane = attached.rollout(ROLLOUT_KV, limit_bytes=SLAB)
        wait_for(lambda: lane.try_step(timeout_ms=20).reason is Reason.NO_EVIDENCE)
        assert lane.why_refused().reason is Reason.NO_EVIDENCE


def test_reading_counts_refusals_by_reason_and_names_what_binds(open_rig) -> None:
    rig = open_rig(is_known=False)
    refuse(rig)
    said = rig.device.reading()
    assert set(said.refusals) == set(said.refused_s)
    assert said.refusals["no_evidence"] > 0
    assert said.refused_s["no_evidence"] > 0
    assert said.granted_s == 0.0
    assert said.binding is not None
    assert (said.binding.bound_ms, said.binding.target) == (None, "ttft")
    assert "no bound yet" in said.binding.sentence


def test_reading_tells_the_time_in_which_rollouts_could_run(open_rig) -> None:
    rig = open_rig()
    assert rig.device.reading().granted_s == 0.0
    assert rig.device.reading().binding is None

    def is_counted() -> bool:
        rig.step_once(rig.rollout.gate)
        return rig.device.reading().granted_s > 0

    wait_for(is_counted)
    assert rig.device.reading().refusals["slo_at_risk"] == 0
