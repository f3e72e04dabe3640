"""Replay pieces of a trace against engines, with or without rollouts beside them."""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from rose.clock import Clock
from rose.engines.transformers import Engine, Output
from rose.errors import Unavailable
from rose.executor import ServingLane
from rose.units import NS_PER_MS, NS_PER_S
from rose_lab.demo.governed_lane import GovernedLane
from rose_lab.demo.record import Answered, Slice
from rose_lab.demo.workload import RolloutLoad
from rose_lab.traces import Trace

CountIn = Callable[[Slice], Slice]  # returns the slice with an arm's own counts added

# Number of requests that are drawn from the whole trace and sent at once, to measure the capacity.
_CALIBRATION_REQUESTS: Final = 48
# After the last arrival, the requests are awaited one after the other, each for at most this time.
_DRAIN_S: Final = 60.0


def uncounted() -> CountIn:
    """Return a function that adds nothing to a slice."""
    return lambda found: found


@dataclass(frozen=True, slots=True)
class ArmEngines:
    """The engines of one arm.

    Args:
        name: arm name in records and request ids.
        engine: serving's engine.
        lane: serving's lane, which gets the request events; None if the engine has no lane.
        load: rollouts beside serving; None without rollouts.
        watch: called at the start of a slice; returns a function that adds the arm's counts to the
            finished slice.
    """

    name: str
    engine: Engine
    lane: ServingLane | GovernedLane | None
    load: RolloutLoad | None
    watch: Callable[[], CountIn] = uncounted


class _PendingRequest:
    """One serving request from its planned arrival to its last token."""

    __slots__ = ("arrived_ns", "error", "finished", "first_ns", "last_ns", "late_gaps", "tokens")

    def __init__(self, arrived_ns: int) -> None:
        self.arrived_ns = arrived_ns
        self.first_ns = 0
        self.last_ns = 0
        self.late_gaps = 0
        self.tokens = 0
        self.error: str | None = None
        self.finished = threading.Event()

    def note_token(self, now_ns: int, tokens: int, tpot_ms: float) -> None:
        """Record a new token; `tokens` is the count so far."""
        if not self.first_ns:
            self.first_ns = now_ns
        elif now_ns - self.last_ns > tpot_ms * NS_PER_MS:
            self.late_gaps += 1
        self.last_ns = now_ns
        self.tokens = tokens

    def answered(self) -> Answered:
        """Return the request's record."""
        tpot_ms = None
        if self.tokens > 1:
            tpot_ms = (self.last_ns - self.first_ns) / NS_PER_MS / (self.tokens - 1)
        return Answered(
            arrival_s=self.arrived_ns / NS_PER_S,
            ttft_ms=(self.first_ns - self.arrived_ns) / NS_PER_MS,
            tpot_ms=tpot_ms,
            output_tokens=self.tokens,
            late_gaps=self.late_gaps,
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """Serves pieces of a trace one at a time, open loop: arrivals do not depend on the system.

    Args:
        clock: time source.
        vocabulary: upper bound of drawn token ids, exclusive.
        tpot_ms: serving's TPOT target; a token after a longer gap counts as late.
    """

    clock: Clock
    vocabulary: int
    tpot_ms: float = math.inf

    def slice(self, trace: Trace, arm: ArmEngines, *, number: int, seed: int) -> Slice:
        """Replay `trace` until the last request is answered, with the rollouts of `arm` beside it.

        Args:
            trace: piece of the trace.
            arm: engines that serve it.
            number: round number.
            seed: seed of the prompts.

        Raises:
            Unavailable: an engine died or a request did not finish.
        """
        return self._take(arm, number, partial(self._serve, trace, arm, number, seed))

    def _serve(
        self, trace: Trace, arm: ArmEngines, number: int, seed: int, began_ns: int
    ) -> list[Answered]:
        """Send every request of `trace` at its time and wait until all have finished."""
        # A repeated slice keeps its number, so the start time makes its request ids unique.
        name = f"{arm.name}-{number}-{began_ns}"
        tokens = np.random.default_rng(seed)
        pending_requests: list[_PendingRequest] = []
        began_ns = self.clock.now_ns()
        for place in range(len(trace)):
            due_ns = began_ns + int(trace.arrival_s[place] * NS_PER_S)
            prompt = tokens.integers(self.vocabulary, size=int(trace.prompt_tokens[place]))
            wait_s = (due_ns - self.clock.now_ns()) / NS_PER_S
            if wait_s > 0:
                self.clock.sleep(wait_s)
            pending_requests.append(pending := _PendingRequest(due_ns))
            outputs = int(trace.output_tokens[place])
            self._send(arm, f"{name}-{place}", prompt.tolist(), outputs, pending)
        for pending in pending_requests:
            if not pending.finished.wait(timeout=_DRAIN_S) or pending.error is not None:
                raise Unavailable(
                    f"a serving request of slice {name} did not finish: "
                    f"{pending.error or arm.engine.error or f'no end within {_DRAIN_S:g} s'}"
                )
        return [pending.answered() for pending in pending_requests]

    def _send(
        self,
        arm: ArmEngines,
        request_id: str,
        prompt: list[int],
        outputs: int,
        pending: _PendingRequest,
    ) -> None:
        lane = arm.lane

        def on_output(output: Output) -> None:
            now_ns = self.clock.now_ns()
            pending.note_token(now_ns, len(output.generated_tokens), self.tpot_ms)
            if lane is not None:
                lane.emitted(request_id)
            if output.is_finished():
                if lane is not None:
                    lane.finished(request_id)
                pending.error = output.error
                pending.finished.set()

        if lane is not None:
            lane.arrived(request_id, prompt_tokens=len(prompt))
        arm.engine.submit(request_id, prompt, max_new_tokens=outputs, on_output=on_output)

    def solo(self, arm: ArmEngines, duration_s: float) -> Slice:
        """Run the rollouts of `arm` alone on the device."""

        def wait(_: int) -> list[Answered]:
            self.clock.sleep(duration_s)
            return []

        return self._take(arm, -1, wait)

    def _take(
        self, arm: ArmEngines, number: int, serve: Callable[[int], Sequence[Answered]]
    ) -> Slice:
        engine, load = arm.engine, arm.load
        count_in = arm.watch()
        with ExitStack() as stack:
            if engine.prober is not None:
                # Outside a slice other engines use the device, and probes would slow their steps.
                engine.prober.start()
                stack.callback(engine.prober.stop)
            if load is not None:
                load.resume()
                stack.callback(load.pause)
            tokens, busy_ns = load.tokens if load else 0, engine.busy_ns
            began_ns = self.clock.now_ns()
            requests = serve(began_ns)
            found = Slice(
                arm=arm.name,
                round=number,
                start_s=began_ns / NS_PER_S,
                end_s=self.clock.now_ns() / NS_PER_S,
                requests=tuple(requests),
                serving_busy_s=(engine.busy_ns - busy_ns) / NS_PER_S,
                rollout_tokens=(load.tokens if load else 0) - tokens,
            )
        if load is not None and load.failures:
            raise Unavailable(f"rollouts of arm {arm.name} failed: {'; '.join(load.failures)}")
        return count_in(found)

    def capacity_rps(self, trace: Trace, arm: ArmEngines, *, seed: int) -> float:
        """Measure the throughput of serving alone at saturation, in requests per second."""
        picked = np.random.default_rng(seed).choice(len(trace), size=_CALIBRATION_REQUESTS)
        burst = Trace(
            arrival_s=np.zeros(_CALIBRATION_REQUESTS),
            prompt_tokens=trace.prompt_tokens[picked],
            output_tokens=trace.output_tokens[picked],
            name=trace.name,
        )
        return len(burst) / self.slice(burst, arm, number=-1, seed=seed).seconds
