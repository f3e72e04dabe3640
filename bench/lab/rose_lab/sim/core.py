"""rose in virtual time: the real core's decisions, on a simulated clock."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rose._core import (
    Creditor,
    Forecast,
    HarvestMode,
    HostGate,
    LatencyModel,
    ManualClock,
    Offer,
    QuantumRefusal,
    ServingState,
    Verdict,
)
from rose.executor.certified import certificate_log, certified_creditor
from rose.executor.probing import ProbeRation, ShapeName
from rose.executor.refusals import read_evidence, read_seen
from rose.slo import SLO, Policy
from rose.slo.evidence import SHAPE_NAMES, Shape, collect_evidence
from rose.slo.latency_file import new_latency_model
from rose.units import NS_PER_MS
from rose_lab.sim.device import DeviceModel, StepWork, ns_of
from rose_lab.sim.governor import Governor, Grain, Probe

# Without start-up noise a bound would equal the prediction, so each rounding error would miss it.
_NOISE_MIN: Final = 0.01
# The log header's values for memory, which is not simulated.
NO_MEMORY: Final = {"slabs": 0, "partitions": 2, "blocks_per_slab": 1}
# Interval at which serving's idle engine asks for a probe.
_PROBE_LOOK_MS: Final = 20.0


class SimulatedProber:
    """Runs serving steps only to measure them, at start-up and in idle time."""

    def __init__(self, model: LatencyModel, creditor: Creditor, device: DeviceModel) -> None:
        """Let `model` learn from the start-up steps."""
        self._creditor, self._device = creditor, device
        self._random = np.random.default_rng(0)
        self._shapes: dict[ShapeName, Shape] = {
            "step": creditor.largest_step,
            "chunk": creditor.largest_chunk,
        }

        def run(shape: Shape) -> None:
            decode, context, prefill = shape
            model.observe(
                self._probe(shape).took_ms,
                decode_sequences=decode,
                context_tokens=context,
                prefill_tokens=prefill,
            )

        collect_evidence(model, self._shapes.values(), run)
        self.ration = ProbeRation(wanted=read_evidence(model, "step", self._shapes["step"]).wanted)

    def due(self, now_ns: int) -> Probe | None:
        """Return the probe to run now on an idle device, or None."""
        name = self.ration.due(now_ns, read_seen(self._creditor, self._shapes, is_idle=True))
        return None if name is None else self._probe(self._shapes[name])

    def _probe(self, shape: Shape) -> Probe:
        sequences, context, prefill = map(int, shape)
        work = StepWork(sequences, context, prefill, context)
        factor = self._random.lognormal(0.0, max(self._device.noise, _NOISE_MIN))
        return Probe(work, self._device.step_ms(work) * factor)


class CoreGovernor(Governor):
    """Drives gate, serving state, latency model and creditor like the executor.

    Nothing is decided here. Work of the executor's own threads (the creditor's checks, the host's
    heartbeat) happens at the same moments in one thread, so that equal inputs give equal logs.
    """

    def __init__(
        self,
        slo: SLO,
        policy: Policy,
        device: DeviceModel,
        *,
        log_path: str,
    ) -> None:
        """Start at time 0 with a closed gate and a borrower that always has a step to run.

        Args:
            slo: latency targets.
            policy: rose's parameters, including the switched-off mechanisms.
            device: cost model, whose batch settings are used.
            log_path: certificate log; "" for none.

        Raises:
            Unavailable: the log cannot be written.
        """
        self.clock = ManualClock()
        self._start_ns = self.clock.now_ns()
        self.gate = HostGate(clock=self.clock)
        self.log = certificate_log(
            log_path,
            slo=slo,
            policy=policy,
            clock=self.clock,
            max_batch_tokens=device.chunk_tokens,
            **NO_MEMORY,
        )
        self.model = new_latency_model(policy, step_tokens=device.chunk_tokens)
        self.state = ServingState(self.log, gate=self.gate)
        self.creditor = certified_creditor(
            self.gate,
            self.state,
            self.model,
            self.log,
            policy=policy,
            context_tokens=device.batch_max * device.chunk_tokens,
            step_tokens=device.chunk_tokens,
            clock=self.clock,
        )
        self._prober: SimulatedProber | None = None
        if "margin" not in policy.without:
            self._prober = SimulatedProber(self.model, self.creditor, device)
        self._lends_slack = slo.slowdown > 0
        self._is_limited = math.isfinite(slo.slowdown)
        self._commits_batch = device.commits_batch
        self.grain = Grain.SEGMENT if policy.has_gates else Grain.STEP
        self._slots: dict[int, int] = {}
        self._is_probe = False  # whether the current step is a probe
        self._offer: Offer | None = None
        self._passed = 0  # segments passed when the step began
        self._looked_at = self.gate.demand  # demand seen by the last check
        self._look_ns = 0
        self.gate.begin_step()

    def arrived(self, now_ms: float, request: int, *, prompt_tokens: int) -> None:
        """Record the request, which closes the gate."""
        self._move_to(now_ms)
        self._slots[request] = self.state.arrived(tokens=prompt_tokens)

    def probe_due(self, now_ms: float) -> Probe | None:
        """Return the probe that the ration allows now, as in serving's lane."""
        self._move_to(now_ms)
        if self._prober is None or self._slots:
            return None
        return self._prober.due(self.clock.now_ns())

    def lends_until(self, now_ms: float, work: StepWork) -> float:
        """Lend slack before a step: offer a quantum, and the next quantum when it is used up."""
        self._move_to(now_ms)
        if not self._lends_slack:
            return now_ms
        batch = _features(work) if self._commits_batch else None
        offer = self._offer
        if offer is not None and not self._is_running_out(offer):
            return self._ms_of(offer.until_ns)
        may_go_on = offer is None or self._is_spent(offer)
        self.creditor.withdraw()
        slots = list(self._slots.values())
        self._offer = self.creditor.offer(batch, slots) if may_go_on else None
        return now_ms if self._offer is None else self._ms_of(self._offer.until_ns)

    def step_begins(self, now_ms: float, work: StepWork) -> None:
        """End the offer: close the gate, if it is open."""
        del work
        self._move_to(now_ms)
        self._offer = None
        self.creditor.withdraw()
        self._passed = self.gate.passed
        self._is_probe = not self._slots
        if self._prober is not None:
            self._prober.ration.stepped()

    def step_ended(
        self, now_ms: float, work: StepWork, *, took_ms: float, blocked_ms: float, lent_ms: float
    ) -> None:
        """Learn from the step, and record it."""
        self._move_to(now_ms)
        features = dict(zip(SHAPE_NAMES, _features(work), strict=True))
        forecast = self._learn(took_ms, features, is_after_loan=lent_ms > 0 and self._is_limited)
        self.log.append_step(
            forecast,
            actual_ms=took_ms,
            blocked_ms=blocked_ms,
            lent_ms=lent_ms,
            began_ns=self.clock.now_ns() - ns_of(took_ms),
            **features,
        )
        if self._prober is not None and self._is_probe:
            shape: ShapeName = "chunk" if work.prefill_tokens else "step"
            self._prober.ration.probed(shape, ns_of(took_ms))

    def _learn(
        self, took_ms: float, features: dict[str, float], *, is_after_loan: bool
    ) -> Forecast:
        """Return the forecast; learn only from a step without a segment beside it."""
        if self.gate.passed == self._passed and not self.gate.is_running():
            return self.model.observe(took_ms, **features, is_after_loan=is_after_loan)
        return self.model.forecast(**features)

    def tokens(self, now_ms: float, requests: Sequence[int]) -> None:
        """Start each request's next deadline."""
        self._move_to(now_ms)
        self.state.emitted([self._slots[request] for request in requests])

    def finished(self, now_ms: float, request: int) -> None:
        """Free the request's slot."""
        self._move_to(now_ms)
        self.state.finished(self._slots.pop(request))

    def tick(self, now_ms: float) -> None:
        """Run the creditor's check if it is due."""
        self._move_to(now_ms)
        self._look()

    def may_start(self, now_ms: float) -> bool:
        """Return whether the gate lets a segment pass."""
        self._move_to(now_ms)
        has_passed = self.gate.try_pass() is Verdict.PASSED
        self._look()  # Starting a segment may have requested more credit.
        return has_passed

    def segment_ended(self, now_ms: float, *, is_last: bool) -> None:
        """Leave the segment; after the last segment of a step, begin the next step at once."""
        self._move_to(now_ms)
        self.gate.leave()
        if is_last:
            self.gate.end_step()
            self.gate.begin_step()

    def look_again(self, now_ms: float) -> float:
        """Return when to look again: when the creditor checks, or earlier if a probe may be due."""
        look_ms = self._ms_of(self._look_ns)
        is_idle = self._prober is not None and not self._slots
        return min(look_ms, now_ms + _PROBE_LOOK_MS) if is_idle else look_ms

    @property
    def grants(self) -> int:
        """Number of certified quanta."""
        return sum(self.creditor.granted(mode) for mode in HarvestMode)

    @property
    def refusals(self) -> int:
        """Number of refused quanta."""
        return sum(
            self.creditor.refused(why) for why in QuantumRefusal if why is not QuantumRefusal.NONE
        )

    def beat(self) -> None:
        """Send a heartbeat, as the executor does continuously."""
        self.state.beat()

    def _move_to(self, now_ms: float) -> None:
        self.clock.advance(self._start_ns + ns_of(now_ms) - self.clock.now_ns())
        self.beat()

    def _ms_of(self, clock_ns: int) -> float:
        return (clock_ns - self._start_ns) / NS_PER_MS

    def _look(self) -> None:
        """Run the creditor's check when its thread would do so: on demand, or after a sleep."""
        now_ns = self.clock.now_ns()
        while self._looked_at != self.gate.demand or now_ns >= self._look_ns:
            self._looked_at = self.gate.demand
            self._look_ns = now_ns + max(1, self.creditor.look())

    def _is_running_out(self, offer: Offer) -> bool:
        """Return True if no further segment can start under the offer."""
        is_ours = self.gate.is_open() and self.gate.close_epoch == offer.close_epoch
        is_over = self.clock.now_ns() >= offer.until_ns or self.gate.credit_left == 0
        return not is_ours or is_over

    def _is_spent(self, offer: Offer) -> bool:
        """Return True if the whole quantum ran in time, so that a further offer may be made."""
        is_ours = self.gate.is_open() and self.gate.close_epoch == offer.close_epoch
        is_in_time = self.clock.now_ns() <= offer.until_ns
        return is_ours and is_in_time and self.gate.credit_left == 0


def _features(work: StepWork) -> tuple[float, float, float]:
    return float(work.decode_sequences), float(work.context_tokens), float(work.prefill_tokens)
