"""Replay pieces of a trace against engines, with or without rollouts beside them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.clock import Clock
from rose.demo.record import Slice, Solo
from rose.demo.workload import OpenLoop, RolloutLoad, Told
from rose.engines.transformers import Engine
from rose.traces import Trace
from rose.units import NS_PER_S

# Requests of the calibration, drawn from the whole trace and sent all at once: the device's
# capacity is what it makes of them.
_CALIBRATION_REQUESTS: Final = 48


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve.

    Args:
        name: in records, and in the ids of requests.
        engine: answers the requests.
        lane: told of them; None for an engine that shares with nobody or everybody.
        load: rollouts beside it, if any.
    """

    name: str
    engine: Engine
    lane: Told | None
    load: RolloutLoad | None


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
        """Replay `trace` until the last request is answered; rollouts run on if they do.

        Args:
            trace: the piece.
            arm: what serves it.
            number: of the round.
            seed: of the prompts.

        Raises:
            Unavailable: an engine died or a request did not finish.
        """
        engine, load = arm.engine, arm.load
        loop = OpenLoop(
            engine=engine,
            lane=arm.lane,
            clock=self.clock,
            vocabulary=self.vocabulary,
            tpot_ms=self.tpot_ms,
        )
        tokens, busy_ns, began_ns = (
            load.tokens if load else 0,
            engine.busy_ns,
            self.clock.now_ns(),
        )
        # A slice that is taken again has the same number; the ids of its requests are others.
        answered = loop.replay(trace, name=f"{arm.name}-{number}-{began_ns}", seed=seed)
        return Slice(
            arm=arm.name,
            round=number,
            start_s=began_ns / NS_PER_S,
            end_s=self.clock.now_ns() / NS_PER_S,
            requests=tuple(answered),
            serving_busy_s=(engine.busy_ns - busy_ns) / NS_PER_S,
            rollout_tokens=(load.tokens if load else 0) - tokens,
        )

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

    def solo(self, arm: str, load: RolloutLoad, duration_s: float) -> Solo:
        """Let rollouts have the device to themselves."""
        with running(load):
            before, began_ns = load.tokens, self.clock.now_ns()
            self.clock.sleep(duration_s)
            tokens, elapsed_ns = load.tokens - before, self.clock.now_ns() - began_ns
        return Solo(arm, elapsed_ns / NS_PER_S, tokens, segments_s=None)


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
