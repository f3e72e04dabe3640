"""Turns what an engine says, again and again, into observations of its device."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from rose.scheduler.broker.histogram import Histogram
from rose.scheduler.broker.observation import Observation, ServingDevice

WINDOW_MS: Final = 15_000.0
"""What tails are taken over: hundreds of tokens, and old news are forgotten in three readings."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One reading of one engine.

    Args:
        engine: "vLLM", "SGLang", or "rose" for what its executor says.
        model: what it calls its model; "" if it does not say.
        kv_used: the share of its KV pool that requests hold, of the fullest rank, 0 to 1.
        kv_tokens: that the pool holds, over all ranks; None if it does not say.
        running: requests that it works on.
        waiting: requests that it has not begun.
        preempted: requests that it put back for want of KV, since it started.
        ttft: times to the first token.
        tpot: times between tokens.
    """

    engine: str
    model: str
    kv_used: float
    kv_tokens: int | None
    running: int
    waiting: int
    preempted: float
    ttft: Histogram
    tpot: Histogram


class EngineReader:
    """Keeps the readings of a window, because engines count from their start."""

    def __init__(self, device: ServingDevice) -> None:
        """Start without a reading of the device that the engine serves on."""
        self._device = device
        self._readings: deque[tuple[float, EngineMetrics]] = deque()

    def observe(self, said: EngineMetrics, at_ms: float) -> Observation:
        """Return how serving is now.

        Args:
            said: by the engine.
            at_ms: when.
        """
        self._readings.append((at_ms, said))
        # The oldest that is kept lies at the window's beginning or before it.
        while len(self._readings) > 2 and self._readings[1][0] <= at_ms - WINDOW_MS:
            self._readings.popleft()
        oldest = self._readings[0][1]
        last = self._readings[-2][1] if len(self._readings) > 1 else said
        return Observation(
            device=self._device,
            at_ms=at_ms,
            kv_used=said.kv_used,
            running=said.running,
            waiting=said.waiting,
            preempted=math.ceil(max(0.0, said.preempted - last.preempted)),
            # Nobody knows of when the first reading's latencies are.
            ttft_ms_p99=None if oldest is said else said.ttft.since(oldest.ttft).p99_ms(),
            tpot_ms_p99=None if oldest is said else said.tpot.since(oldest.tpot).p99_ms(),
        )
