"""Replay pieces of a trace against engines, with or without rollouts beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from rose.clock import Clock
from rose.demo.record import WindowRecord
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
    """

    clock: Clock
    vocabulary: int

    def window(self, trace: Trace, arm: Arm, *, window: int, seed: int) -> WindowRecord:
        """Replay `trace` until the last request is answered; rollouts run on if they do.

        Args:
            trace: the piece.
            arm: what serves it.
            window: number of the piece.
            seed: of the prompts.

        Raises:
            Unavailable: an engine died or a request did not finish.
        """
        engine, load = arm.engine, arm.load
        loop = OpenLoop(engine=engine, lane=arm.lane, clock=self.clock, vocabulary=self.vocabulary)
        tokens, busy_ns, began_ns = (
            load.tokens if load else 0,
            engine.busy_ns,
            self.clock.now_ns(),
        )
        timings = loop.replay(trace, arm=arm.name, window=window, seed=seed)
        return WindowRecord(
            arm=arm.name,
            window=window,
            start_s=began_ns / NS_PER_S,
            end_s=self.clock.now_ns() / NS_PER_S,
            requests=tuple(timings),
            serving_busy_s=(engine.busy_ns - busy_ns) / NS_PER_S,
            rollout_tokens=(load.tokens if load else 0) - tokens,
        )

    def capacity_rps(self, trace: Trace, arm: Arm, *, seed: int, prompts_seed: int) -> float:
        """Measure what serving alone answers at saturation, in requests per second."""
        picked = np.random.default_rng(seed).choice(len(trace), size=_CALIBRATION_REQUESTS)
        burst = Trace(
            arrival_s=np.zeros(_CALIBRATION_REQUESTS),
            prompt_tokens=trace.prompt_tokens[picked],
            output_tokens=trace.output_tokens[picked],
            name=trace.name,
        )
        record = self.window(burst, arm, window=-1, seed=prompts_seed)
        return len(burst) / (record.end_s - record.start_s)

    def tokens_per_s(self, load: RolloutLoad, duration_s: float) -> float:
        """Measure rollouts with the device to themselves, in tokens per second."""
        with running(load):
            before, began_ns = load.tokens, self.clock.now_ns()
            self.clock.sleep(duration_s)
            tokens, elapsed_ns = load.tokens - before, self.clock.now_ns() - began_ns
        return tokens * NS_PER_S / elapsed_ns


@contextmanager
def running(load: RolloutLoad) -> Iterator[None]:
    """Let rollouts run in the block; none does after it."""
    load.resume()
    try:
        yield
    finally:
        load.pause()
