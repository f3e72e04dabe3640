"""One device in virtual time: serving's steps, rollout segments, and their governor."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rose.errors import check
from rose.slo import SLO
from rose.units import NS_PER_MS
from rose_lab.sim.device import DeviceModel, Noise, Sharing, StepWork, ns_of
from rose_lab.sim.engine import ServingEngine
from rose_lab.sim.governor import Governor, Grain
from rose_lab.sim.request import Request

_NEVER: Final = 1 << 62
_PERMILLE: Final = 1000
_PS_PER_NS: Final = 1000

# Called with the time in ns, the name of the event, and a number: the number of the request, step
# or segment; for "layers" the count of layers of the segment that ended; for "context" the count of
# tokens in serving's KV cache after a step.
Observer = Callable[[int, str, int], None]


@dataclass(slots=True)
class _Task:
    """Work on the device; `left_ps` is its remaining time in ps if it runs alone."""

    left_ps: int
    began_ns: int
    layers: int = 0  # number of layers, if the task is a segment
    slowdown: int = _PERMILLE  # in thousandths

    def ends_in_ns(self) -> int:
        """Return the ns to its end if nothing changes, rounded up."""
        return -(-self.left_ps * self.slowdown // (_PERMILLE * _PS_PER_NS))

    def run(self, ns: int) -> None:
        """Let the task run for `ns` nanoseconds."""
        self.left_ps -= ns * _PS_PER_NS * _PERMILLE // self.slowdown


@dataclass(slots=True)
class Served:
    """Times of a request's tokens."""

    arrived_ns: int
    first_ns: int = -1
    last_ns: int = -1
    longest_gap_ns: int = 0
    late_gaps: int = 0
    tokens: int = 0

    def token(self, now_ns: int, *, tpot_ns: int) -> None:
        """Record a token, which should come within `tpot_ns` of the previous token."""
        if self.tokens == 0:
            self.first_ns = now_ns
        else:
            gap_ns = now_ns - self.last_ns
            self.longest_gap_ns = max(self.longest_gap_ns, gap_ns)
            self.late_gaps += gap_ns > tpot_ns
        self.last_ns = now_ns
        self.tokens += 1


@dataclass(slots=True)
class Tally:
    """Sums of a run; times in ns."""

    served: list[Served]
    ended_ns: int = 0
    serving_busy_ns: int = 0
    harvest_ns: int = 0
    segments: int = 0
    pauses_ns: list[int] = field(default_factory=list)
    blocked_ns: list[int] = field(default_factory=list)
    lent_ns: int = 0


@dataclass(slots=True)
class _Turn:
    """A serving step that is ready and waits for the device."""

    asked_ns: int
    work: StepWork  # the batch as scheduled when the step became ready
    lend_end_ns: int  # end of the time that serving lent
    lend_until_ns: int = -1  # time until which serving lends, while a lent segment runs; else -1


class Machine:
    """The event loop, in whole nanoseconds.

    1. Equal inputs give bit-identical outcomes.
    2. Of events at the same time, ends are processed first, then arrivals, then starts.
    3. While engines take turns, a segment never runs beside a step.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        device: DeviceModel,
        governor: Governor,
        *,
        slo: SLO,
        step_noise: Noise,
        rollout_noise: Noise,
        observer: Observer | None = None,
        until_ms: float = 0.0,
    ) -> None:
        """Start at time 0 with nothing on the device.

        Args:
            requests: requests that pass `check_requests`.
            device: cost model.
            governor: decides when rollouts run; only this machine may use it.
            slo: targets, used only to count late gaps.
            step_noise: factors of serving's steps.
            rollout_noise: factors of rollout steps; all segments of a step share a factor.
            observer: called at every start and end.
            until_ms: time until which rollouts run at least, even after every request is served.
        """
        self._until_ns = ns_of(until_ms)
        self._requests = requests
        self._arrivals_ns = [ns_of(request.arrival_ms) for request in requests]
        self._device = device
        self._governor = governor
        self._sharing = governor.sharing
        self._tpot_ns = ns_of(slo.tpot_ms)
        self._step_noise = step_noise
        self._rollout_noise = rollout_noise
        self._observer = observer
        self._engine = ServingEngine(requests, device)
        # Only engines that take turns hand the device over.
        hands_over = governor.sharing is Sharing.TURNS
        self._signal_ns = ns_of(device.signal_ms) if hands_over else 0
        self._has_pauses = hands_over
        self._lead_ns = ns_of(device.host_lead_ms)
        self._now_ns = 0
        self._arrived = 0
        self._admitted = 0
        self._live = len(requests)
        self._look_ns = _NEVER
        self._steps = 0
        self._step: _Task | None = None
        self._is_probe = False
        self._work = StepWork(0, 0, 0)
        self._turn: _Turn | None = None
        self._segment: _Task | None = None
        self._launched = 0  # queued units of rollout work, including the running one
        self._layer = 0  # first layer of the next segment
        self._rollout_steps = 0
        self._segment_ended_ns = -_NEVER
        self._pause_from_ns = -1
        self._tally = Tally([Served(arrived_ns=ns) for ns in self._arrivals_ns])

    @property
    def now_ms(self) -> float:
        """Current time in ms."""
        return self._now_ns / NS_PER_MS

    def run(self) -> Tally:
        """Serve every request, run until the end, and return the sums."""
        self._settle()  # Requests may arrive at time 0.
        while self._live or self._now_ns < self._until_ns:
            self._dispatch()
            self._advance(self._next_ns())
            self._settle()
        self._tally.ended_ns = self._now_ns
        return self._tally

    # ---- time

    def _next_ns(self) -> int:
        next_ns = self._look_ns
        if self._arrived < len(self._requests):
            next_ns = min(next_ns, self._arrivals_ns[self._arrived])
        if self._admitted < self._arrived:
            next_ns = min(next_ns, self._arrivals_ns[self._admitted] + self._lead_ns)
        for task in (self._step, self._segment):
            if task is not None:
                next_ns = min(next_ns, self._now_ns + task.ends_in_ns())
        if next_ns == _NEVER and self._now_ns < self._until_ns:
            return self._until_ns
        check(next_ns < _NEVER, "requests are left, but no event is due")
        return next_ns

    def _advance(self, to_ns: int) -> None:
        passed_ns = to_ns - self._now_ns
        for task in (self._step, self._segment):
            if task is not None:
                task.run(passed_ns)
        self._now_ns = to_ns

    def _settle(self) -> None:
        """Process all due events."""
        if self._segment is not None and self._segment.left_ps <= 0:
            self._end_segment(self._segment)
        if self._step is not None and self._step.left_ps <= 0:
            self._end_step(self._step)
        arrivals_ns = self._arrivals_ns
        while self._arrived < len(arrivals_ns) and arrivals_ns[self._arrived] <= self._now_ns:
            self._arrive()
        while (
            self._admitted < self._arrived
            and arrivals_ns[self._admitted] + self._lead_ns <= self._now_ns
        ):
            self._engine.admit(self._admitted)
            self._admitted += 1

    def _dispatch(self) -> None:
        """Start all work that may start."""
        self._governor.tick(self.now_ms)
        if self._step is None and self._engine.has_work():
            self._take_turn()
        elif self._is_idle():
            self._probe()
        if self._sharing is not Sharing.TURNS or (self._step is None and self._turn is None):
            self._feed()
        self._set_slowdowns()
        self._look_ns = self._ns_from_now(self._governor.look_again(self.now_ms))

    def _set_slowdowns(self) -> None:
        is_step, is_segment = self._step is not None, self._segment is not None
        if self._step is not None:
            slowdown = self._device.serving_slowdown(self._sharing, is_beside=is_segment)
            self._step.slowdown = round(slowdown * _PERMILLE)
        if self._segment is not None:
            slowdown = self._device.rollout_slowdown(self._sharing, is_beside=is_step)
            self._segment.slowdown = round(slowdown * _PERMILLE)

    # ---- serving

    def _arrive(self) -> None:
        number = self._arrived
        self._arrived += 1
        self._notify("arrived", number)
        prompt_tokens = self._requests[number].prompt_tokens
        self._governor.arrived(self.now_ms, number, prompt_tokens=prompt_tokens)
        if self._segment is None:
            return
        if self._pause_from_ns < 0 and self._has_pauses:
            self._pause_from_ns = self._now_ns
        if self._turn is not None and self._turn.lend_until_ns >= 0:
            # From here on serving no longer lends: its wait counts as blocked.
            self._turn.lend_end_ns = min(self._now_ns, self._turn.lend_until_ns)
            self._turn.lend_until_ns = -1

    def _is_idle(self) -> bool:
        """Return True if nothing runs, and no request waits for its first step."""
        is_empty = self._step is None and self._segment is None and not self._launched
        return is_empty and self._admitted == self._arrived and not self._engine.has_work()

    def _probe(self) -> None:
        probe = self._governor.probe_due(self.now_ms)
        if probe is None:
            return
        self._governor.step_begins(self.now_ms, probe.work)
        self._work, self._is_probe = probe.work, True
        self._blocked_ns = self._lent_ns = 0
        wait_ns = self._handover_ns()
        took_ns = max(1, ns_of(probe.took_ms))
        self._step = _Task((wait_ns + took_ns) * _PS_PER_NS, self._now_ns + wait_ns)

    def _take_turn(self) -> None:
        """Let rollouts go first if the governor lends, then begin the step."""
        if self._turn is None:
            self._turn = _Turn(self._now_ns, self._engine.plan(), lend_end_ns=self._now_ns)
        if self._segment is not None and self._sharing is Sharing.TURNS:
            return
        if self._segment is None and self._launched:
            self._start_segment()
            return
        work = self._turn.work if self._device.commits_batch else self._engine.plan()
        until_ms = self._governor.lends_until(self.now_ms, work)
        until_ns = _NEVER if math.isinf(until_ms) else ns_of(until_ms)
        if until_ns > self._now_ns and self._segment is None and self._may_start():
            self._turn.lend_until_ns = until_ns
            self._launched += 1
            self._start_segment()
            return
        turn, self._turn = self._turn, None
        self._governor.step_begins(self.now_ms, work)
        wait_ns = self._handover_ns()
        self._begin_step(
            work,
            wait_ns=wait_ns,
            blocked_ns=self._now_ns + wait_ns - turn.lend_end_ns,
            lent_ns=turn.lend_end_ns - turn.asked_ns,
        )

    def _handover_ns(self) -> int:
        """Return how many ns serving waits for the signal that the last segment has ended."""
        return max(0, self._segment_ended_ns + self._signal_ns - self._now_ns)

    def _begin_step(self, work: StepWork, *, wait_ns: int, blocked_ns: int, lent_ns: int) -> None:
        factor = self._step_noise.factor(self._steps)
        took_ns = max(1, ns_of(self._device.step_ms(work) * factor))
        self._notify("step", self._steps)
        self._steps += 1
        self._work = work
        if self._segment is None:
            self._end_pause()
        self._step = _Task((wait_ns + took_ns) * _PS_PER_NS, self._now_ns + wait_ns)
        self._blocked_ns, self._lent_ns = blocked_ns, lent_ns
        self._tally.blocked_ns.append(blocked_ns)
        self._tally.lent_ns += lent_ns

    def _end_step(self, step: _Task) -> None:
        self._step = None
        took_ns = self._now_ns - step.began_ns
        is_probe, self._is_probe = self._is_probe, False
        if not is_probe:
            self._tally.serving_busy_ns += took_ns
            self._notify("step_end", self._steps - 1)
        self._governor.step_ended(
            self.now_ms,
            self._work,
            took_ms=took_ns / NS_PER_MS,
            blocked_ms=self._blocked_ns / NS_PER_MS,
            lent_ms=self._lent_ns / NS_PER_MS,
        )
        if is_probe:
            return
        emitted = self._engine.complete(self._work)
        self._notify("context", self._engine.context_tokens)
        for number in emitted.tokens:
            self._tally.served[number].token(self._now_ns, tpot_ns=self._tpot_ns)
        if emitted.tokens:
            self._governor.tokens(self.now_ms, emitted.tokens)
        for number in emitted.finished:
            self._notify("finished", number)
            self._governor.finished(self.now_ms, number)
        self._live -= len(emitted.finished)

    # ---- rollouts

    def _feed(self) -> None:
        """Launch work that the governor permits, and run it in order."""
        while self._launched < self._governor.window:
            if not self._may_start():
                break
            self._launched += 1
        if self._segment is None and self._launched:
            self._start_segment()

    def _start_segment(self) -> None:
        device = self._device
        left = device.layers - self._layer
        is_whole = self._governor.grain is Grain.STEP
        layers = left if is_whole else min(left, device.layers_per_segment)
        factor = self._rollout_noise.factor(self._rollout_steps)
        took_ns = ns_of(layers * device.layer_ms * factor + (0 if is_whole else device.gate_ms))
        # A segment directly after another segment starts at once; otherwise it waits for a signal.
        wait_ns = 0 if self._segment_ended_ns == self._now_ns else self._signal_ns
        self._segment = _Task(
            (wait_ns + took_ns) * _PS_PER_NS,
            self._now_ns + wait_ns,
            layers=layers,
        )
        self._notify("segment", self._tally.segments)
        self._tally.segments += 1

    def _may_start(self) -> bool:
        return self._governor.may_start(self.now_ms)

    def _end_segment(self, segment: _Task) -> None:
        self._segment = None
        self._launched -= 1
        self._segment_ended_ns = self._now_ns
        self._tally.harvest_ns += ns_of(segment.layers * self._device.layer_ms)
        self._notify("segment_end", self._tally.segments - 1)
        self._notify("layers", segment.layers)
        self._layer = (self._layer + segment.layers) % self._device.layers
        self._rollout_steps += self._layer == 0
        if self._turn is not None and self._turn.lend_until_ns >= 0:
            self._turn.lend_end_ns = min(self._now_ns, self._turn.lend_until_ns)
            self._turn.lend_until_ns = -1
        if self._step is not None:
            self._end_pause()
        self._governor.segment_ended(self.now_ms, is_last=self._layer == 0)

    def _ns_from_now(self, ms: float) -> int:
        """Convert a governor's wake-up time; a time not in the future becomes the next ns."""
        return _NEVER if math.isinf(ms) else max(self._now_ns + 1, math.ceil(ms * NS_PER_MS))

    def _end_pause(self) -> None:
        """Record how long rollouts ran on after an arrival, if there was one."""
        if self._pause_from_ns >= 0:
            self._tally.pauses_ns.append(self._segment_ended_ns - self._pause_from_ns)
            self._pause_from_ns = -1

    def _notify(self, what: str, number: int) -> None:
        if self._observer is not None:
            self._observer(self._now_ns, what, number)
