"""The harvest of a scheme that knows the future: the reference for other schemes."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from rose.slo import SLO
from rose.units import ceil_div
from rose_lab.sim.device import DeviceModel, Noise, StepWork, ns_of
from rose_lab.sim.engine import ServingEngine
from rose_lab.sim.governor import Governor
from rose_lab.sim.request import Request

# Time, in TTFT targets, over which the effects of a delay are simulated. The simulation ends sooner
# if the engine becomes idle. Later effects can still be avoided by lending less.
_HORIZON_TTFTS: Final = 3
_NEVER: Final = 1 << 62


# A request's tokens so far: (time of the first token in ns, time of the last token in ns, number of
# tokens). A plain tuple, because every token of every simulated step makes a new one.
Progress = tuple[int, int, int]
# Returns the time in ns by which a request must have its next token. The arguments are the
# request's number and its progress, which is None before the first token.
Deadline = Callable[[int, Progress | None], int]


def within_targets(
    requests: Sequence[Request], slo: SLO, *, missed_alone: frozenset[int]
) -> Deadline:
    """Return a function that gives each token's deadline; requests in `missed_alone` have none."""
    ttft_ns, tpot_ns = ns_of(slo.ttft_ms), ns_of(slo.tpot_ms)
    arrivals_ns = [ns_of(request.arrival_ms) for request in requests]

    def deadline_ns(number: int, progress: Progress | None) -> int:
        if number in missed_alone:
            return _NEVER
        if progress is None:
            return arrivals_ns[number] + ttft_ns
        return progress[1] + tpot_ns

    return deadline_ns


class Clairvoyant(Governor):
    """Greedy: runs a segment whenever that makes no request miss a deadline.

    It knows all arrivals, lengths and true step times, and simulates the effect of each segment on
    the next steps, as if rollouts stopped after that segment. Greedy is not optimal: it is a
    computable reference, not an upper bound.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        device: DeviceModel,
        deadline_ns: Deadline,
        *,
        patience_ms: float,
        step_noise: Noise,
        rollout_noise: Noise,
    ) -> None:
        """Start at time 0 with an idle engine.

        Args:
            requests: all requests of the trace.
            device: cost model.
            deadline_ns: function that returns the latest time of each token.
            patience_ms: longest wait for a first token; determines how far effects are simulated.
            step_noise: factors of serving's steps, the same as the machine's.
            rollout_noise: factors of rollout steps.
        """
        self._device = device
        self._deadline_ns = deadline_ns
        self._patience_ns = ns_of(patience_ms)
        self._step_noise, self._rollout_noise = step_noise, rollout_noise
        self._ready_ns = [ns_of(one.arrival_ms) + ns_of(device.host_lead_ms) for one in requests]
        self._engine = ServingEngine(requests, device)
        self._admitted = 0
        self._progress: dict[int, Progress] = {}  # Only decoding requests, by number.
        self._steps = 0
        self._rollout_steps = 0
        self._segment = 0  # index within the rollout step
        self._allowed = 0  # segments already allowed to go first

    def lends_until(self, now_ms: float, work: StepWork) -> float:
        """Allow as many segments as are harmless before the step."""
        if self._allowed == 0:
            self._allowed = self._harmless_segments(ns_of(now_ms), work)
            return math.inf if self._allowed else now_ms
        self._allowed -= 1
        return math.inf if self._allowed else now_ms

    def may_start(self, now_ms: float) -> bool:
        """Return True if the next segment was allowed already, or is harmless on an idle engine."""
        if self._allowed:
            return True
        now_ns = ns_of(now_ms)
        self._admit(self._engine, now_ns)
        return not self._engine.has_work() and self._is_harmless(now_ns, 1)

    def step_begins(self, now_ms: float, work: StepWork) -> None:
        """Admit the requests that the real engine has admitted."""
        del work
        self._admit(self._engine, ns_of(now_ms))

    def step_ended(
        self, now_ms: float, work: StepWork, *, took_ms: float, blocked_ms: float, lent_ms: float
    ) -> None:
        """Advance the copy of the engine by this step."""
        del took_ms, blocked_ms, lent_ms
        self._steps += 1
        emitted = self._engine.complete(work)
        now_ns = ns_of(now_ms)
        for number in emitted.tokens:
            self._progress[number] = _one_more(self._progress.get(number), now_ns)
        for number in emitted.finished:
            del self._progress[number]

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
        """Return the largest harmless number of segments before the step `work`."""
        self._admit(self._engine, now_ns)
        due_ns = min(
            (self._deadline_ns(number, one) for number, one in self._progress.items()),
            default=_NEVER,
        )
        room_ns = self._patience_ns
        if due_ns < _NEVER:
            room_ns = due_ns - now_ns - self._step_ns(work, self._steps)
        room_ns -= 2 * ns_of(self._device.signal_ms)
        return _largest(
            most=max(0, room_ns // self._segments_ns(1)),
            is_right=lambda segments: (
                self._segments_ns(segments) <= room_ns and self._is_harmless(now_ns, segments)
            ),
        )

    def _is_harmless(self, now_ns: int, segments: int) -> bool:
        """Return True if serving meets all deadlines when it continues after these segments."""
        start_ns = now_ns + self._segments_ns(segments) + 2 * ns_of(self._device.signal_ms)
        if not self._engine.has_work() and (
            self._admitted == len(self._ready_ns) or self._ready_ns[self._admitted] >= start_ns
        ):
            return True
        horizon_ns = now_ns + _HORIZON_TTFTS * self._patience_ns
        engine, admitted = self._engine.copy(), self._admitted
        progress = dict(self._progress)
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
                before = progress.get(number)
                if at_ns > self._deadline_ns(number, before):
                    return False
                progress[number] = _one_more(before, at_ns)
            work = None
            admitted = self._admit_from(engine, admitted, at_ns)
        return True


def _one_more(before: Progress | None, now_ns: int) -> Progress:
    """Return a request's progress after its next token."""
    return (before[0], now_ns, before[2] + 1) if before else (now_ns, now_ns, 1)


def _largest(*, most: int, is_right: Callable[[int], bool]) -> int:
    """Return the largest n up to `most` with `is_right(n)`; 0 if there is none.

    `is_right` must be monotone: if it is true for n, it is true for all smaller numbers.
    """
    if most == 0 or is_right(most):
        return most
    least = 0
    while least < most - 1:
        middle = (least + most) // 2
        if is_right(middle):
            least = middle
        else:
            most = middle
    return least
