"""Replay pieces of a trace against engines, with or without rollouts beside them."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.clock import Clock
from rose.demo.record import Answered, Slice
from rose.demo.workload import OpenLoop, RolloutLoad, Told
from rose.engines.transformers import Engine
from rose.errors import Unavailable
from rose.traces import Trace
from rose.units import NS_PER_S

CountIn = Callable[[Slice], Slice]

# Requests of the calibration, drawn from the whole trace and sent all at once: the device's
# capacity is what it makes of them.
_CALIBRATION_REQUESTS: Final = 48


def uncounted() -> CountIn:
    """Add nothing to a slice."""
    return lambda found: found


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve.

    Args:
        name: in records, and in the ids of requests.
        engine: answers the requests.
        lane: told of them; None for an engine that shares with nobody or everybody.
        load: rollouts beside it, if any.
        watch: called when a slice begins; its result adds to the slice what was counted in it.
    """

    name: str
    engine: Engine
    lane: Told | None
    load: RolloutLoad | None
    watch: Callable[[], CountIn] = uncounted


@dataclass(frozen=True, slots=True)
class Replay:
    """Serves pieces of a trace, one at a time.

    Args:
        clock: where time comes from.
        vocabulary: token ids are drawn below this.
        tpot_ms: serving's target; tokens that take longer are late.
    """

    clock: Clock
    vocabulary: int
    tpot_ms: float = math.inf

    def slice(self, trace: Trace, arm: Arm, *, number: int, seed: int) -> Slice:
        """Replay `trace` until the last request is answered, with the rollouts of `arm` beside it.

        Args:
            trace: the piece.
            arm: what serves it.
            number: of the round.
            seed: of the prompts.

        Raises:
            Unavailable: an engine died or a request did not finish.
        """
        loop = OpenLoop(arm.engine, arm.lane, self.clock, self.vocabulary, self.tpot_ms)

        def serve(began_ns: int) -> list[Answered]:
            # A slice that is taken again has the same number; the ids of its requests are others.
            return loop.replay(trace, name=f"{arm.name}-{number}-{began_ns}", seed=seed)

        return self._take(arm, number, serve)

    def solo(self, arm: Arm, duration_s: float) -> Slice:
        """Let the rollouts of `arm` have the device to themselves."""

        def wait(_: int) -> list[Answered]:
            self.clock.sleep(duration_s)
            return []

        return self._take(arm, -1, wait)

    def _take(self, arm: Arm, number: int, serve: Callable[[int], Sequence[Answered]]) -> Slice:
        engine, load = arm.engine, arm.load
        count_in = arm.watch()
        with ExitStack() as stack:
            stack.enter_context(probing(engine))
            if load is not None:
                stack.enter_context(running(load))
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

    def capacity_rps(self, trace: Trace, arm: Arm, *, seed: int) -> float:
        """Measure what serving alone answers at saturation, in requests per second."""
        picked = np.random.default_rng(seed).choice(len(trace), size=_CALIBRATION_REQUESTS)
        burst = Trace(
            arrival_s=np.zeros(_CALIBRATION_REQUESTS),
            prompt_tokens=trace.prompt_tokens[picked],
            output_tokens=trace.output_tokens[picked],
            name=trace.name,
        )
        return len(burst) / self.slice(burst, arm, number=-1, seed=seed).seconds


@contextmanager
def running(load: RolloutLoad) -> Iterator[None]:
    """Let rollouts run in the block; none does after it."""
    load.resume()
    try:
        yield
    finally:
        load.pause()


@contextmanager
def probing(engine: Engine) -> Iterator[None]:
    """Let a serving engine under rose probe in the block only.

    Outside it other engines have the device: their steps and its probes would slow each other.
    """
    if engine.prober is None:
        yield
        return
    engine.prober.start()
    try:
        yield
    finally:
        engine.prober.stop()
