"""Laws of rose's own decisions, which the real core takes here on a clock that is moved."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.slo import SLO, Policy
from rose.slo.log_file import read_log
from rose_lab.sim import Request, excess_misses, simulate
from rose_lab.sim.core import CoreGovernor
from rose_lab.sim.device import Noise
from rose_lab.sim.governor import Probe
from rose_lab.sim.machine import Machine, Tally
from tests.lab.sim.traffic import DEVICE, POLICY, ROSE, SMALL_SLO, Record, traces

FEW = settings(max_examples=25)
QUIET = Noise(np.random.default_rng(0), sigma=0.0)
SEGMENT_MS = DEVICE.layers_per_segment * DEVICE.layer_ms + DEVICE.gate_ms + DEVICE.signal_ms
NS = 1_000_000
TIGHT = SLO(ttft_ms=500.0, tpot_ms=12.0)


def run(requests, scheme, *, slo=SMALL_SLO, device=DEVICE, policy=POLICY, **options):
    return simulate(requests, device, scheme, slo=slo, policy=policy, seed=0, **options)


def run_core(requests, governor: CoreGovernor, record: Record) -> Tally:
    machine = Machine(
        requests,
        DEVICE,
        governor,
        slo=SMALL_SLO,
        step_noise=QUIET,
        rollout_noise=QUIET,
        observer=record,
    )
    return machine.run()


def without(mechanism: str, policy: Policy = POLICY) -> Policy:
    return dataclasses.replace(policy, without=frozenset({mechanism}))


def first_tokens_ns(requests, outcome) -> list[float]:
    return [
        (request.arrival_ms + served.ttft_ms) * NS
        for request, served in zip(requests, outcome.requests, strict=True)
    ]


# ---- the gate and the credit


@pytest.mark.parametrize("scheme", ROSE)
@FEW
@given(requests=traces())
def test_no_segment_starts_while_a_request_waits(scheme, requests) -> None:
    """From its arrival, which closes the gate, to its first token."""
    record = Record()
    outcome = run(requests, scheme, observer=record)
    starts_ns = [event.at_ns for event in record.of("segment")]
    waits = zip(record.of("arrived"), first_tokens_ns(requests, outcome), strict=True)
    for arrived, first_ns in waits:
        assert not any(arrived.at_ns <= start < first_ns - 1 for start in starts_ns)


@pytest.mark.parametrize("scheme", ROSE)
@settings(max_examples=12)
@given(
    requests=traces(),
    noise=st.sampled_from([0.0, 0.1]),
    tpot_ms=st.sampled_from([8.0, 12.0, 25.0, 50.0]),
)
def test_every_certificate_is_accepted_by_the_verifier(
    scheme, requests, noise, tpot_ms, tmp_path_factory
) -> None:
    """No segment without credit, no grant beyond slack: it replays the log with its own sums."""
    path = tmp_path_factory.mktemp("log") / "certificates.log"
    outcome = run(
        requests,
        scheme,
        slo=SLO(ttft_ms=500.0, tpot_ms=tpot_ms),
        device=dataclasses.replace(DEVICE, noise=noise),
        log_path=str(path),
    )
    assert outcome.violations == ()
    assert outcome.certificates_verified == outcome.grants
    assert outcome.grants > 0 or outcome.segments == 0


@pytest.mark.parametrize("slowdown", [0.0, math.inf])
def test_the_gate_is_closed_when_a_step_begins_however_late_that_is_noticed(slowdown) -> None:
    slo = dataclasses.replace(SMALL_SLO, slowdown=slowdown)
    governor = CoreGovernor(slo, without("early_close"), DEVICE, log_path="")
    was_open = []

    class Watch(Record):
        def __call__(self, at_ns: int, what: str, number: int) -> None:
            if what == "step":
                was_open.append(governor.gate.is_open())

    run_core([Request(30.0 * n, 100, 3) for n in range(10)], governor, Watch())
    assert was_open
    assert not any(was_open)


# ---- what serving feels


def test_a_request_that_arrives_behind_a_committed_batch_is_in_the_step_after_it() -> None:
    """It arrives while rollouts go first: 1 ms after a token, with a target of 50 ms."""
    first_ms = 20.0
    at_once = dataclasses.replace(DEVICE, host_lead_ms=0.0)
    lone = run([Request(first_ms, 60, 20)], "rose_slack", device=at_once).requests[0]
    requests = [Request(first_ms, 60, 20), Request(first_ms + lone.ttft_ms + 1.0, 60, 1)]
    committed, late = (
        run(requests, "rose_slack", device=dataclasses.replace(at_once, commits_batch=commits))
        for commits in (True, False)
    )
    step_ms = DEVICE.base_ms
    extra_ms = committed.requests[1].ttft_ms - late.requests[1].ttft_ms
    assert extra_ms == pytest.approx(step_ms, rel=0.1)


@pytest.mark.parametrize("scheme", ROSE)
@FEW
@given(requests=traces(most=16), commits=st.booleans())
def test_nothing_is_missed_that_serving_alone_meets(scheme, requests, commits) -> None:
    device = dataclasses.replace(DEVICE, commits_batch=commits)
    outcome, alone = (run(requests, one, device=device) for one in (scheme, "alone"))
    assert not excess_misses(outcome, alone, slo=SMALL_SLO)


@pytest.mark.parametrize("scheme", ["rose_idle", "rose_slack"])
@FEW
@given(requests=traces(), layers=st.sampled_from([1, 4, 12, 36]))
def test_a_step_waits_for_one_segment_at_most(scheme, requests, layers) -> None:
    device = dataclasses.replace(DEVICE, layers_per_segment=layers)
    segment_ms = layers * device.layer_ms + device.gate_ms + 2 * device.signal_ms
    outcome = run(requests, scheme, device=device)
    assert max(outcome.blocked_ms) <= segment_ms + 1e-5


@pytest.mark.parametrize(("scheme", "host_lead_ms"), [("rose_idle", 0.0), ("rose_slack", 0.5)])
def test_an_adversary_after_every_grant_causes_no_excess_miss(scheme, host_lead_ms) -> None:
    """A request arrives a microsecond after each segment started on an open gate, every time."""
    device = dataclasses.replace(DEVICE, host_lead_ms=host_lead_ms)
    # The last one keeps idle time in the trace.
    struck, last = [Request(20.0, 60, 60)], Request(2000.0, 1, 1)
    for _ in range(15):
        record = Record()
        run([*struck, last], scheme, slo=TIGHT, device=device, observer=record)
        after_ns = struck[-1].arrival_ms * NS
        start_ns = next(one.at_ns for one in record.of("segment") if one.at_ns > after_ns)
        struck.append(Request((start_ns + 1000) / NS, 128, 6))
    requests = [*struck, last]
    outcome, alone = (run(requests, one, slo=TIGHT, device=device) for one in (scheme, "alone"))
    assert len(outcome.pauses_ms) >= len(struck) - 1
    assert not excess_misses(outcome, alone, slo=TIGHT)
    assert max(outcome.pauses_ms) <= SEGMENT_MS + 1e-5


class _Frozen(CoreGovernor):
    """A serving host that gives no sign of life from some time on."""

    silent_from_ns = 10**18

    def beat(self) -> None:
        if self.clock.now_ns() < self.silent_from_ns:
            super().beat()

    def probe_due(self, now_ms: float) -> Probe | None:
        is_silent = self.clock.now_ns() >= self.silent_from_ns
        return None if is_silent else super().probe_due(now_ms)


@pytest.mark.parametrize("slowdown", [0.0, 0.05, math.inf])
def test_a_silent_host_stops_rollouts_within_a_heartbeat_and_a_quantum(slowdown) -> None:
    policy = dataclasses.replace(POLICY, heartbeat_ttl_ms=100.0)
    slo = dataclasses.replace(SMALL_SLO, slowdown=slowdown)
    governor = _Frozen(slo, policy, DEVICE, log_path="")
    governor.silent_from_ns = 1000 * NS
    record = Record()
    run_core([Request(10.0, 60, 5), Request(5000.0, 60, 5)], governor, record)
    quantum_ms = policy.max_segments * governor.creditor.segment_upper_ms
    after_ns = [event.at_ns for event in record.of("segment") if event.at_ns >= 1000 * NS]
    assert after_ns
    assert max(after_ns) <= (1000 + policy.heartbeat_ttl_ms + quantum_ms) * NS


# ---- what each mechanism is for


BUSY = [Request(17.0 * n, 30 + 53 * n % 250, 8 + 7 * n % 30) for n in range(60)]


def test_without_the_hypothetical_request_running_ones_miss() -> None:
    """Where the engine plans its step late, so that an arrival can join it."""
    slo = SLO(ttft_ms=500.0, tpot_ms=9.0)
    late = dataclasses.replace(DEVICE, commits_batch=False)
    requests = [Request(41.3 * n, 100, 12 + 7 * n % 30) for n in range(40)]
    alone = run(requests, "alone", slo=slo, device=late)
    mindful = run(requests, "rose_slack", slo=slo, device=late)
    mindless = run(requests, "rose_slack", slo=slo, device=late, policy=without("hypothetical"))
    assert not excess_misses(mindful, alone, slo=slo)
    assert len(excess_misses(mindless, alone, slo=slo)) > 5


def test_without_inner_gates_serving_waits_for_a_whole_step() -> None:
    gated, whole = run(BUSY, "rose_slack"), run(BUSY, "rose_slack", policy=without("gate"))
    assert max(gated.blocked_ms) <= SEGMENT_MS + DEVICE.signal_ms
    assert max(whole.blocked_ms) > 2 * SEGMENT_MS


def test_without_credit_a_silent_host_does_not_stop_rollouts() -> None:
    policy = without("credit", dataclasses.replace(POLICY, heartbeat_ttl_ms=100.0))
    governor = _Frozen(SMALL_SLO, policy, DEVICE, log_path="")
    governor.silent_from_ns = 1000 * NS
    record = Record()
    run_core([Request(10.0, 60, 5), Request(5000.0, 60, 5)], governor, record)
    assert any(event.at_ns > 4000 * NS for event in record.of("segment"))


def test_without_an_early_close_a_pause_lasts_until_serving_asks() -> None:
    device = dataclasses.replace(DEVICE, host_lead_ms=5.0)
    early = run(BUSY, "rose_slack", device=device)
    late = run(BUSY, "rose_slack", device=device, policy=without("early_close"))
    assert max(early.pauses_ms) <= SEGMENT_MS + 1e-5 < max(late.pauses_ms)


def test_without_a_margin_noisy_steps_break_more_promises() -> None:
    noisy = dataclasses.replace(DEVICE, noise=0.2)
    alone = run(BUSY, "alone", slo=TIGHT, device=noisy)
    arms = [
        run(BUSY, "rose_slack", slo=TIGHT, device=noisy, policy=one)
        for one in (POLICY, without("margin"))
    ]
    late_alone, *late = [sum(one.late_gaps for one in arm.requests) for arm in (alone, *arms)]
    assert 2 * max(0, late[0] - late_alone) < late[1] - late_alone


def test_a_log_says_what_was_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "certificates.log"
    run(BUSY[:3], "rose_slack", policy=without("margin"), log_path=str(path))
    assert read_log(path)[0]["without"] == 1 << 4
