"""The harvest of a scheme that knows the future: the reference for other schemes."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from rose.sim.device import DeviceModel, Noise, StepWork, ns_of
from rose.sim.engine import ServingEngine
from rose.sim.governor import Governor
from rose.sim.request import Request
from rose.slo import SLO
from rose.units import ceil_div

# Time over which a delay is followed before it counts as harmless, in TTFT targets: it ends earlier
# when the engine becomes idle, and later effects can still be avoided by lending less.
_HORIZON_TTFTS: Final = 3


class Clairvoyant(Governor):
    """Greedy: runs a segment if serving misses nothing by it that it would meet alone.

    It knows all arrivals, lengths and true step times, and follows each delay through the coming
    steps, as if rollouts stopped after it. Greedy is not optimal: it is a computable reference, not
    an upper bound.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        device: DeviceModel,
        slo: SLO,
        *,
        step_noise: Noise,
        rollout_noise: Noise,
        missed_alone: frozenset[int],
    ) -> None:
        """Store all knowledge.

        Args:
            requests: all requests of the trace.
            device: cost model.
            slo: latency targets.
            step_noise: factors of serving's steps, the same as the machine's.
            rollout_noise: factors of rollout steps.
            missed_alone: requests that serving alone would miss.
        """
        self._requests = requests
        self._device = device
        self._ttft_ns, self._tpot_ns = ns_of(slo.ttft_ms), ns_of(slo.tpot_ms)
        self._step_noise, self._rollout_noise = step_noise, rollout_noise
        self._given_up = missed_alone
        self._arrivals_ns = [ns_of(request.arrival_ms) for request in requests]
        self._ready_ns = [ns + ns_of(device.host_lead_ms) for ns in self._arrivals_ns]
        self._engine = ServingEngine(requests, device)
        self._admitted = 0
        self._last_ns: dict[int, int] = {}  # last token of each decoding request
        self._steps = 0
        self._rollout_steps = 0
        self._segment = 0  # within the rollout step
        self._allowed = 0  # segments already allowed to go first

    def lends_until(self, now_ms: float, work: StepWork) -> float:
        """Let the most harmless segments go first."""
        if self._allowed == 0:
            self._allowed = self._harmless_segments(ns_of(now_ms), work)
            return math.inf if self._allowed else now_ms
        self._allowed -= 1
        return math.inf if self._allowed else now_ms

    def may_start(self, now_ms: float) -> bool:
        """Allow segments decided on, and in idle time any harmless one."""
        if self._allowed:
            return True
        now_ns = ns_of(now_ms)
        self._admit(self._engine, now_ns)
        return not self._engine.has_work() and self._is_harmless(now_ns, 1)

    def step_begins(self, now_ms: float, work: StepWork) -> None:
        """Admit the requests that the engine sees."""
        del work
        self._admit(self._engine, ns_of(now_ms))

    def step_ended(
        self, now_ms: float, work: StepWork, *, took_ms: float, blocked_ms: float, lent_ms: float
    ) -> None:
        """Follow the engine's state."""
        del took_ms, blocked_ms, lent_ms
        self._steps += 1
        emitted = self._engine.complete(work)
        self._last_ns.update(dict.fromkeys(emitted.tokens, ns_of(now_ms)))
        for number in emitted.finished:
            del self._last_ns[number]

    def segment_ended(self, now_ms: float, *, is_last: bool) -> None:
        """Advance to the next segment."""
        del now_ms
        self._segment = 0 if is_last else self._segment + 1
        self._rollout_steps += is_last

    def _admit(self, engine: ServingEngine, now_ns: int) -> None:
        self._admitted = self._admit_from(engine, self._admitted, now_ns)

    def _admit_from(self, engine: ServingEngine, admitted: int, now_ns: int) -> int:
        while admitted < len(self._ready_ns) and self._ready_ns[admitted] <= now_ns:
            engine.admit(admitted)
            admitted += 1
        return admitted

    def _segments_ns(self, count: int) -> int:
        """Return the time of the next `count` segments, each counted at full size."""
        device, took_ms = self._device, 0.0
        per_step = ceil_div(device.layers, device.layers_per_segment)
        for segment in range(self._segment, self._segment + count):
            factor = self._rollout_noise.factor(self._rollout_steps + segment // per_step)
            took_ms += device.layers_per_segment * device.layer_ms * factor + device.gate_ms
        return ns_of(took_ms)

    def _step_ns(self, work: StepWork, step: int) -> int:
        return max(1, ns_of(self._device.step_ms(work) * self._step_noise.factor(step)))

    def _harmless_segments(self, now_ns: int, work: StepWork) -> int:
        """Return the largest harmless number of segments; the next step bounds it."""
        self._admit(self._engine, now_ns)
        saved = [ns for number, ns in self._last_ns.items() if number not in self._given_up]
        room_ns = self._ttft_ns
        if saved:
            room_ns = min(saved) + self._tpot_ns - now_ns - self._step_ns(work, self._steps)
        room_ns -= 2 * ns_of(self._device.signal_ms)
        return _largest(
            most=max(0, room_ns // self._segments_ns(1)),
            is_right=lambda segments: (
                self._segments_ns(segments) <= room_ns and self._is_harmless(now_ns, segments)
            ),
        )

    def _is_harmless(self, now_ns: int, segments: int) -> bool:
        """Whether serving, started after these segments, meets all it would meet alone."""
        start_ns = now_ns + self._segments_ns(segments) + 2 * ns_of(self._device.signal_ms)
        if not self._engine.has_work() and (
            self._admitted == len(self._ready_ns) or self._ready_ns[self._admitted] >= start_ns
        ):
            return True
        horizon_ns = now_ns + _HORIZON_TTFTS * self._ttft_ns
        engine, admitted = self._engine.copy(), self._admitted
        last_ns = dict(self._last_ns)
        at_ns, step = start_ns, self._steps
        is_committed = self._device.commits_batch and engine.has_work()
        work = engine.plan() if is_committed else None
        admitted = self._admit_from(engine, admitted, at_ns)
        while engine.has_work() and at_ns < horizon_ns:
            work = work or engine.plan()
            at_ns += self._step_ns(work, step)
            step += 1
            emitted = engine.complete(work)
            for number in emitted.tokens:
                if self._is_late(number, at_ns, last_ns.get(number)):
                    return False
                last_ns[number] = at_ns
            work = None
            admitted = self._admit_from(engine, admitted, at_ns)
        return True

    def _is_late(self, number: int, at_ns: int, last_ns: int | None) -> bool:
        if number in self._given_up:
            return False
        if last_ns is None:
            return at_ns - self._arrivals_ns[number] > self._ttft_ns
        return at_ns - last_ns > self._tpot_ns


def _largest(*, most: int, is_right: Callable[[int], bool]) -> int:
    """Return the largest n up to about `most` with `is_right(n)`; 0 if there is none.

    `is_right` must be monotone: true for all numbers below a right one.
    """
    if is_right(most):
        return most
    least = 0
    while least < most - 1:
        middle = (least + most) // 2
        if is_right(middle):
            least = middle
        else:
            most = middle
    return least
