"""What bounds promise on whole runs, and that lending comes back after every disturbance.

Virtual time: serving's steps, its idle time, the creditor's looks and the probes, without threads.
Each disturbance is one that ended lending for good on a real machine.
"""

import dataclasses
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from rose._core import (
    CertificateLog,
    Creditor,
    HostGate,
    LatencyModel,
    ManualClock,
    QuantumRefusal,
    ServingState,
)
from rose.errors import DeadlineExceeded
from rose.executor.probing import ProbeRation, Seen
from rose.slo.evidence import SHAPE_NAMES, Shape, collect_evidence
from rose.slo.policy import ADAPTATION_SHARE

LOOK_S: Final = 0.02
RESUMES_WITHIN_S: Final = 60.0
AT_RISK: Final = (QuantumRefusal.SLO_AT_RISK, QuantumRefusal.NO_EVIDENCE)
Slower = Callable[[float, int], float]
"""How many times longer a step takes, by its time in seconds and its number."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """One serving engine: seconds of a decode step and of a full chunk, and its ε and targets."""

    decode_ms: float
    chunk_ms: float
    epsilon: float
    ttft_ms: float
    step_tokens: int = 256


SLOW_CPU = Machine(decode_ms=10, chunk_ms=120, epsilon=0.02, ttft_ms=500)
GPU = Machine(decode_ms=8, chunk_ms=40, epsilon=0.01, ttft_ms=150)
MACHINES = pytest.mark.parametrize("machine", [SLOW_CPU, GPU], ids=["cpu", "gpu"])


class Stage:
    """A serving engine in virtual time, with a borrower that always wants to run."""

    def __init__(self, machine: Machine, slower: Slower, *, prior: float = 1.0, seed: int = 0):
        self.machine, self.slower = machine, slower
        self.random = np.random.default_rng(seed)
        self.clock = ManualClock()
        self.log = CertificateLog(
            "",
            ttft_ms=machine.ttft_ms,
            tpot_ms=1e6,
            epsilon=machine.epsilon,
            signal_ms=1,
            blocking_ms=100,
            heartbeat_ttl_ms=1e9,
            max_segments=8,
            slabs=1,
            partitions=1,
            blocks_per_slab=1,
            clock=self.clock,
        )
        token_ms = (machine.chunk_ms - machine.decode_ms) / machine.step_tokens
        self.model = LatencyModel(
            prior_ms=(machine.decode_ms * prior, 0, 0, token_ms * prior, 0),
            epsilon=machine.epsilon,
            forgetting=0.998,
            adaptation=machine.epsilon * ADAPTATION_SHARE,
            window=512,
            step_tokens=machine.step_tokens,
        )
        self.state = ServingState(self.log)
        self.state.beat()
        self.creditor = Creditor(
            HostGate(clock=self.clock),
            self.state,
            self.model,
            self.log,
            largest_step=(1, 1000, 0),
            largest_chunk=(0, 1000, machine.step_tokens),
            segment_prior_ms=5,
            segment_share=0.99,
            poll_ms=5,
            retry_ms=2,
            clock=self.clock,
        )
        self.shapes = {"step": self.creditor.largest_step, "chunk": self.creditor.largest_chunk}
        wanted = self.model.evidence(**_named(self.creditor.largest_step)).wanted
        self.ration = ProbeRation(wanted=wanted)
        self.steps = self.misses = self.probes = 0
        self.granted_at_s: list[float] = []
        self.refused_at_s: list[float] = []

    @property
    def now_s(self) -> float:
        return self.clock.now_ns() / 1e9

    def run_step(self, shape: Shape) -> float:
        """Run one step and learn from it; return its milliseconds."""
        machine = self.machine
        chunk_ms = machine.chunk_ms - machine.decode_ms
        cost_ms = machine.decode_ms + chunk_ms * shape[2] / machine.step_tokens
        noise = self.random.lognormal(0, 0.08)
        took_ms = cost_ms * self.slower(self.now_s, self.steps) * noise
        before = self.model.observe(took_ms, **_named(shape))
        self.steps += 1
        self.misses += took_ms > before.upper_ms
        self.clock.advance(int(took_ms * 1e6))
        return took_ms

    def start_up(self) -> None:
        collect_evidence(self.model, self.shapes.values(), self.run_step)

    def look(self) -> None:
        """Let the creditor decide, and run a probe if it is time to."""
        at_s = self.granted_at_s if self.creditor.certify() else self.refused_at_s
        at_s.append(self.now_s)
        binding = self.creditor.binding
        seen = Seen(
            is_idle=True,
            granted=len(self.granted_at_s),
            refused=sum(self.creditor.refused(why) for why in AT_RISK),
            binding=None if binding is None or binding.shape == "segment" else binding.shape,
        )
        shape = self.ration.due(self.clock.now_ns(), seen)
        if shape is None:
            self.clock.advance(int(LOOK_S * 1e9))
            return
        self.ration.stepped()
        # One probe is a prompt of four full chunks, or as many decode steps as cost as much.
        for _ in range(4 if shape == "chunk" else 16):
            self.ration.probed(shape, self.run_step(self.shapes[shape]) * 1e6)
            self.probes += 1

    def run(self, *, until_s: float = 1e9, steps: int = 10**9) -> None:
        """Serve at about a third of the time, and lend between the requests."""
        while self.now_s < until_s and self.steps < steps:
            tokens = float(self.random.integers(8, self.machine.step_tokens // 2))
            self.run_step((0.0, tokens, tokens))
            for made in range(int(self.random.integers(4, 16))):
                self.run_step((1.0, tokens + made, 0.0))
            idle_until_s = self.now_s + self.random.exponential(0.4)
            while self.now_s < idle_until_s:
                self.look()


def _named(shape: Shape) -> dict[str, float]:
    return dict(zip(SHAPE_NAMES, shape, strict=True))


def always(_now_s: float, _step: int) -> float:
    return 1.0


def cold(_now_s: float, step: int) -> float:
    return 8.0 if step < 3 else 1.0


STREAMS: dict[str, Slower] = {
    "stationary": always,
    "drifting": lambda now_s, _: 1.5 + 0.5 * np.sin(now_s / 100),
    "bursty": lambda now_s, _: 3.0 if now_s % 200 > 170 else 1.0,
    "cold": cold,
}


@MACHINES
@pytest.mark.parametrize("name", STREAMS)
def test_a_share_of_epsilon_of_the_steps_misses_its_bound_at_most(
    machine: Machine, name: str
) -> None:
    stage = Stage(machine, STREAMS[name])
    stage.start_up()
    stage.run(steps=10_000)
    assert stage.misses / stage.steps <= machine.epsilon
    assert stage.granted_at_s


@MACHINES
def test_a_steady_machine_lends_nearly_all_of_its_idle_time(machine: Machine) -> None:
    stage = Stage(machine, always)
    stage.start_up()
    began_s = stage.now_s
    stage.run(until_s=began_s + 600)
    share = len(stage.granted_at_s) / (len(stage.granted_at_s) + len(stage.refused_at_s))
    assert share > 0.9


@MACHINES
def test_a_cold_first_chunk_and_a_wrong_prior_delay_no_lending(machine: Machine) -> None:
    for prior in (1 / 3, 3.0):
        stage = Stage(machine, cold, prior=prior)
        stage.start_up()
        began_s = stage.now_s
        stage.run(until_s=began_s + RESUMES_WITHIN_S)
        assert stage.granted_at_s[0] < began_s + RESUMES_WITHIN_S
        assert len(stage.granted_at_s) > len(stage.refused_at_s)


def resumes_after_s(stage: Stage, end_s: float) -> float:
    """Return how long after `end_s` half of what is asked for in five seconds is granted."""
    for at_s in stage.granted_at_s:
        if at_s < end_s:
            continue
        granted = sum(at_s <= one < at_s + 5 for one in stage.granted_at_s)
        refused = sum(at_s <= one < at_s + 5 for one in stage.refused_at_s)
        if granted > refused:
            return at_s - end_s
    return float("inf")


@MACHINES
@pytest.mark.parametrize(("factor", "lasts_s"), [(8.0, 1.0), (3.0, 10.0), (2.0, 60.0)])
def test_lending_comes_back_within_a_minute_of_a_neighbours_burst(
    machine: Machine, factor: float, lasts_s: float
) -> None:
    end_s = [0.0]
    stage = Stage(machine, lambda now_s, _: factor if end_s[0] - lasts_s < now_s < end_s[0] else 1)
    stage.start_up()
    end_s[0] = stage.now_s + 30 + lasts_s
    stage.run(until_s=end_s[0] + 120)
    assert resumes_after_s(stage, end_s[0]) < RESUMES_WITHIN_S


@MACHINES
def test_one_outlier_ends_lending_for_seconds_not_for_good(machine: Machine) -> None:
    hit = [10**9]
    stage = Stage(machine, lambda _, step: 8.0 if step == hit[0] else 1.0)
    stage.start_up()
    hit[0] = stage.steps + 100
    stage.run(until_s=stage.now_s + 120)
    assert stage.steps > hit[0]
    refused_s = np.array(stage.refused_at_s)
    assert len(refused_s) * LOOK_S < RESUMES_WITHIN_S
    assert stage.granted_at_s[-1] > stage.now_s - 5


@MACHINES
def test_a_target_that_no_step_meets_is_refused_by_name_and_probed_less_and_less(
    machine: Machine,
) -> None:
    infeasible = dataclasses.replace(machine, ttft_ms=machine.chunk_ms * 0.8)
    stage = Stage(infeasible, always)
    stage.start_up()
    before = stage.probes
    stage.run(until_s=stage.now_s + 300)
    assert not stage.granted_at_s
    binding = stage.creditor.binding
    assert binding is not None
    assert (binding.shape, binding.target) == ("chunk", "ttft")
    assert binding.predicted_ms == pytest.approx(machine.chunk_ms, rel=0.1)
    assert binding.target_ms == infeasible.ttft_ms
    first = stage.probes - before
    stage.run(until_s=stage.now_s + 300)
    assert stage.probes - before - first < first


def test_runs_that_teach_the_model_nothing_are_an_error() -> None:
    stage = Stage(GPU, always)
    with pytest.raises(DeadlineExceeded, match="gave no bound"):
        collect_evidence(stage.model, stage.shapes.values(), lambda _: None)
