"""Serving alone, with the time of each step by its shape."""

from typing import Any

from rose.demo.record import StepTimes
from rose.engines.transformers.processor import DeviceProcessor
from rose.units import NS_PER_MS


class TimedSteps(DeviceProcessor):
    """The loop of a stock engine that times its steps as rose's serving loop does."""

    def __init__(self, **kwargs: Any) -> None:
        """Start without a step."""
        super().__init__(**kwargs)
        self._chunk_ms: list[float] = []
        self._decode_ms: list[float] = []

    def update_batch(self) -> None:
        """Update as any loop, then note how long the step took; the loop thread alone adds."""
        io = self.inputs_and_outputs
        tokens = int(io.total_seqlen_q)
        is_decode = all(future.query_length == 1 for future in io.requests_in_batch)
        super().update_batch()
        took_ms = (self.clock.now_ns() - self._step_began_ns) / NS_PER_MS
        if is_decode:
            self._decode_ms.append(took_ms)
        elif tokens >= self.cache.max_batch_tokens:
            self._chunk_ms.append(took_ms)

    def drain(self) -> StepTimes:
        """Return the steps since the last call; between two slices, while no step runs."""
        times = StepTimes(tuple(self._chunk_ms), tuple(self._decode_ms))
        self._chunk_ms, self._decode_ms = [], []
        return times
