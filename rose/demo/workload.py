"""The two loads of an experiment: serving requests that never wait, rollouts that never run out."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rose.clock import Clock
from rose.demo.record import Answered
from rose.engines.transformers import Engine, Output
from rose.errors import Unavailable
from rose.traces import Trace
from rose.units import NS_PER_MS, NS_PER_S

# A request that takes longer than this after the last arrival will not come any more.
_DRAIN_S = 60.0


class Told(Protocol):
    """Who hears of every request of serving: the lane of a device that is shared."""

    def arrived(self, request_id: str, *, prompt_tokens: int) -> None:
        """A request is here; its engine has not seen it."""
        ...

    def emitted(self, request_id: str) -> None:
        """It got a token."""
        ...

    def finished(self, request_id: str) -> None:
        """It is over."""
        ...


class _Flight:
    """One serving request between its planned arrival and its last token."""

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
        """Note that there are `tokens` by now."""
        if not self.first_ns:
            self.first_ns = now_ns
        elif now_ns - self.last_ns > tpot_ms * NS_PER_MS:
            self.late_gaps += 1
        self.last_ns = now_ns
        self.tokens = tokens


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Replays a trace against one engine: arrivals follow the plan, whatever the system does.

    Args:
        engine: the serving engine.
        lane: told of every arrival and end; None for an engine without rose.
        clock: where time comes from.
        vocabulary: token ids are drawn below this.
        tpot_ms: target of the time from a token to the next; longer ones are late.
    """

    engine: Engine
    lane: Told | None
    clock: Clock
    vocabulary: int
    tpot_ms: float

    def replay(self, trace: Trace, *, name: str, seed: int) -> list[Answered]:
        """Send every request of `trace` at its time and wait until all have finished.

        Args:
            trace: the piece.
            name: begins the ids of its requests.
            seed: of the prompts.

        Raises:
            Unavailable: the engine died or requests did not finish.
        """
        tokens = np.random.default_rng(seed)
        flights: list[_Flight] = []
        began_ns = self.clock.now_ns()
        for number in range(len(trace)):
            due_ns = began_ns + int(trace.arrival_s[number] * NS_PER_S)
            prompt = tokens.integers(self.vocabulary, size=int(trace.prompt_tokens[number]))
            request_id = f"{name}-{number}"
            wait_s = (due_ns - self.clock.now_ns()) / NS_PER_S
            if wait_s > 0:
                self.clock.sleep(wait_s)
            flights.append(flight := _Flight(due_ns))
            self._send(request_id, prompt.tolist(), int(trace.output_tokens[number]), flight)
        for flight in flights:
            if not flight.finished.wait(timeout=_DRAIN_S) or flight.error is not None:
                raise Unavailable(
                    f"a serving request of {name} did not finish: "
                    f"{flight.error or self.engine.error or f'nothing for {_DRAIN_S:g} s'}"
                )
        return [self._answered(flight) for flight in flights]

    def _send(self, request_id: str, prompt: list[int], outputs: int, flight: _Flight) -> None:
        lane = self.lane

        def on_output(output: Output) -> None:
            now_ns = self.clock.now_ns()
            flight.note_token(now_ns, len(output.generated_tokens), self.tpot_ms)
            if lane is not None:
                lane.emitted(request_id)
            if output.is_finished():
                if lane is not None:
                    lane.finished(request_id)
                flight.error = output.error
                flight.finished.set()

        if lane is not None:
            lane.arrived(request_id, prompt_tokens=len(prompt))
        self.engine.submit(request_id, prompt, max_new_tokens=outputs, on_output=on_output)

    def _answered(self, flight: _Flight) -> Answered:
        tpot_ms = None
        if flight.tokens > 1:
            tpot_ms = (flight.last_ns - flight.first_ns) / NS_PER_MS / (flight.tokens - 1)
        return Answered(
            arrival_s=flight.arrived_ns / NS_PER_S,
            ttft_ms=(flight.first_ns - flight.arrived_ns) / NS_PER_MS,
            tpot_ms=tpot_ms,
            output_tokens=flight.tokens,
            late_gaps=flight.late_gaps,
        )


class RolloutLoad(Protocol):
    """Rollouts of one arm: they run between `resume` and `pause`."""

    @property
    def tokens(self) -> int:
        """Tokens generated on the device so far."""
        ...

    @property
    def failures(self) -> Sequence[str]:
        """What went wrong; the run ends with it."""
        ...

    def start(self) -> None:
        """Start what is needed; nothing runs before `resume`."""
        ...

    def resume(self) -> None:
        """Let rollouts run."""
        ...

    def pause(self) -> None:
        """Stop rollouts; returns when none runs."""
        ...

    def stop(self) -> None:
        """End what `start` started, but for the engine."""
        ...
