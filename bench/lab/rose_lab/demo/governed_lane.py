"""A lane that follows a rule from a paper: a governor of the simulator drives a real gate."""

import threading
from typing import Final

from rose._core import CloseReason, HostGate, LatencyModel, Verdict
from rose.clock import Clock
from rose.errors import check
from rose.units import MS_PER_S, NS_PER_MS
from rose_lab.sim.device import StepWork
from rose_lab.sim.governor import Governor, Grain

# Serving's longest wait under any rule, bounded because the borrower may have died.
_WAIT_MS_MAX: Final = 1000.0
# Interval at which a refused borrower checks for a stop or a pause.
_LOOK_UP_MS: Final = 50.0


class GovernedLane:
    """Both lanes of a device without rose, for two engines with separate memory.

    Serving's engine and its clients call the *serving* methods from any thread; one borrower calls
    the *borrower* methods from its loop. The governor gets all events in time order, under the lock
    `_changed`. Each piece of rollout work that the governor allows passes the gate with one credit.

    Times are milliseconds of `clock`.
    """

    def __init__(self, *, clock: Clock, model: LatencyModel, batch_tokens: int) -> None:
        """Start without a rule: no rollout runs before `govern`.

        Args:
            clock: time source.
            model: latency model that learns the durations of serving's steps, for `profile_ms`.
            batch_tokens: maximum tokens of one serving step.
        """
        self._gate = HostGate()
        self.step_thread = 0
        self._clock = clock
        self._model = model
        self._batch_tokens = batch_tokens
        self._changed = threading.Condition()  # Guards all fields below.
        self._governor = Governor()
        self._numbers: dict[str, int] = {}
        self._prompt_tokens: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._next = 0
        self._step: tuple[StepWork, float, float, float] | None = None
        self._is_running = False
        self._is_wanted = False
        self._committed = 0
        self._is_in_step = False
        self._lending: StepWork | None = None
        self._lent_until_ms = 0.0
        self._is_shut_down = False

    def profile_ms(self, work: StepWork) -> float:
        """Predict the duration of a step from the measured ones."""
        forecast = self._model.forecast(
            decode_sequences=work.decode_sequences,
            context_tokens=work.context_tokens,
            prefill_tokens=work.prefill_tokens,
        )
        return forecast.predicted_ms

    def govern(self, governor: Governor) -> None:
        """Follow `governor` from now on. Call it between slices, while no request is live."""
        with self._changed:
            check(not self._numbers, "the governor may not change while requests are live")
            self._governor = governor
            self._committed = 0
            self._changed.notify_all()

    def shut_down(self) -> None:
        """Let all steps through, so that the engines can be stopped."""
        with self._changed:
            self._is_shut_down = True
            self._changed.notify_all()

    def _now_ms(self) -> float:
        return self._clock.now_ns() / NS_PER_MS

    # ---- serving --------------------------------------------------------------------------------

    def arrived(self, request_id: str, *, prompt_tokens: int) -> None:
        """Report that a request arrived."""
        with self._changed:
            self._numbers[request_id] = self._next
            self._prompt_tokens[request_id] = prompt_tokens
            self._tokens[request_id] = 0
            self._governor.arrived(self._now_ms(), self._next, prompt_tokens=prompt_tokens)
            self._next += 1
            self._gate.close(CloseReason.ARRIVAL)

    def emitted(self, request_id: str) -> None:
        """Report that a request got a token."""
        with self._changed:
            self._tokens[request_id] += 1
            self._governor.tokens(self._now_ms(), [self._numbers[request_id]])

    def finished(self, request_id: str) -> None:
        """Report that a request finished."""
        with self._changed:
            self._governor.finished(self._now_ms(), self._numbers.pop(request_id))
            del self._prompt_tokens[request_id], self._tokens[request_id]
            self._changed.notify_all()

    def begin_step(self) -> None:
        """Let rollouts go first for as long as the rule lends, then wait until no rollout runs.

        Serving then owns the device until `end_step`; the rule is not asked in between.
        """
        with self._changed:
            work, ready_ms = self._planned(), self._now_ms()
            self._lend(work, ready_ms)
            lent_ms = self._now_ms()
            self._governor.step_begins(lent_ms, work)
            self._is_in_step = True
            self._changed.wait_for(self._is_parked, timeout=_WAIT_MS_MAX / MS_PER_S)
            self._step = (work, ready_ms, lent_ms, self._now_ms())

    def _planned(self) -> StepWork:
        """Predict the work of serving's next step from the live requests."""
        running = [one for one, tokens in self._tokens.items() if tokens]
        waiting = sum(
            self._prompt_tokens[one] for one, tokens in self._tokens.items() if not tokens
        )
        return StepWork(
            decode_sequences=len(running),
            context_tokens=sum(self._prompt_tokens[one] + self._tokens[one] for one in running),
            prefill_tokens=min(waiting, max(self._batch_tokens - len(running), 0)),
        )

    def _lend(self, work: StepWork, ready_ms: float) -> None:
        """Let rollouts go first; `_end_piece` asks the rule again after each piece of work."""
        now_ms, self._lending = ready_ms, work
        self._lent_until_ms = (
            self._governor.lends_until(now_ms, work) if self._is_wanted else now_ms
        )
        while self._is_wanted and not self._is_shut_down:
            until_ms = min(self._lent_until_ms, ready_ms + _WAIT_MS_MAX)
            if until_ms <= now_ms:
                break
            self._changed.notify_all()
            self._changed.wait((until_ms - now_ms) / MS_PER_S)
            now_ms = self._now_ms()
        self._lending = None

    def _is_parked(self) -> bool:
        return self._is_shut_down or not (self._is_running or self._committed)

    def end_step(self) -> None:
        """End the step; call it before its tokens are reported."""
        with self._changed:
            self._is_in_step = False
            self._changed.notify_all()
            if self._step is None:
                return
            (work, ready_ms, lent_ms, began_ms), self._step = self._step, None
            now_ms = self._now_ms()
            self._model.observe(
                now_ms - began_ms,
                decode_sequences=work.decode_sequences,
                context_tokens=work.context_tokens,
                prefill_tokens=work.prefill_tokens,
            )
            self._governor.step_ended(
                now_ms,
                work,
                took_ms=now_ms - began_ms,
                blocked_ms=began_ms - lent_ms,
                lent_ms=lent_ms - ready_ms,
            )

    def give_step_up(self) -> None:
        """Cancel the started step, because there is nothing to run."""
        with self._changed:
            self._is_in_step, self._step = False, None
            self._changed.notify_all()

    # ---- borrower -------------------------------------------------------------------------------

    def try_step(self) -> bool:
        """Ask to run a step; False after 50 ms, so that the caller can check for a stop."""
        with self._changed:
            self._is_wanted = True
            self._gate.begin_step()
            if self._pass(self._now_ms() + _LOOK_UP_MS):
                self.step_thread = threading.get_ident()
                return True
            self._gate.end_step()
            self._is_wanted = False
            self._changed.notify_all()
            return False

    def gate(self) -> None:
        """If the rule works by segments, end the segment and wait until the next may start."""
        with self._changed:
            if self._governor.grain is Grain.SEGMENT and not self._is_shut_down:
                self._end_piece(is_last=False)
                while not self._pass(self._now_ms() + _LOOK_UP_MS):
                    pass

    def end_rollout_step(self) -> None:
        """End the borrower's step."""
        with self._changed:
            self.step_thread = 0
            self._end_piece(is_last=True)
            self._gate.end_step()
            # `_is_wanted` stays True, since the borrower wants its next step at once. So a rule
            # that lends continues to lend.

    def _pass(self, deadline_ms: float) -> bool:
        """Start a piece of work as soon as the rule allows it; False at the deadline."""
        while not self._is_shut_down:
            now_ms = self._now_ms()
            is_free = not self._is_in_step
            if self._committed or (is_free and self._governor.may_start(now_ms)):
                self._start_piece(now_ms)
                return True
            if now_ms >= deadline_ms:
                return False
            until_ms = min(self._governor.look_again(now_ms), deadline_ms)
            self._changed.wait(max(until_ms - now_ms, 0.01) / MS_PER_S)
        return True

    def _start_piece(self, now_ms: float) -> None:
        """Let one piece through the gate, and allow the further pieces of the rule's window."""
        self._committed = max(self._committed - 1, 0)
        while self._committed < self._governor.window - 1 and self._governor.may_start(now_ms):
            self._committed += 1
        self._gate.open(self._gate.close_epoch)
        self._gate.grant(1)
        verdict = self._gate.pass_(timeout_ms=_LOOK_UP_MS)
        check(verdict == Verdict.PASSED, "a piece with a credit did not pass its gate")
        self._is_running = True

    def _end_piece(self, *, is_last: bool) -> None:
        self._gate.leave()
        if not self._is_running:
            return
        now_ms = self._now_ms()
        self._is_running = False
        self._governor.segment_ended(now_ms, is_last=is_last)
        if self._lending is not None:
            self._lent_until_ms = self._governor.lends_until(now_ms, self._lending)
        self._changed.notify_all()
