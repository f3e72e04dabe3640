"""The time between two forward passes of a serving engine while it has requests.

On a GPU the device is idle then: the host reads tokens, updates its books and prepares the next
batch. On a CPU device this host work runs on the device's own core.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from rose.clock import BootClock
from rose.engines.transformers import load_model
from rose.engines.transformers.processor import DeviceProcessor
from rose.errors import check
from rose.slo import Policy
from rose.units import NS_PER_MS, NS_PER_S
from rose_lab.demo.replay import ArmEngines, Replay
from rose_lab.demo.settings import (
    OUTPUT_TOKENS,
    BenchSettings,
    choose_core,
    on_device_cores,
    serving_tenant,
)
from rose_lab.traces import Trace

_MODEL: Final = "tiny-qwen2"
_PROMPT_TOKENS: Final = 64


class TimedGaps(DeviceProcessor):
    """A stock engine's loop that records its forward passes."""

    def __init__(self, **kwargs: Any) -> None:
        """Start without a forward pass."""
        super().__init__(**kwargs)
        # By gap: wall time and the CPU time of the engine's thread, in ns.
        self.gaps_ns: list[tuple[int, int]] = []
        self.forward_ns = 0
        self._ended: tuple[int, int] | None = None  # wall and CPU time of the last pass's end

    def _generation_step(self, model: torch.nn.Module) -> None:
        began_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        if self._ended is not None:
            self.gaps_ns.append((began_ns - self._ended[0], cpu_ns - self._ended[1]))
        super()._generation_step(model)
        self._ended = time.perf_counter_ns(), time.thread_time_ns()
        self.forward_ns += self._ended[0] - began_ns

    def update_batch(self) -> None:
        """Update the batch; without requests the time until the next pass is no gap."""
        super().update_batch()
        if not self.scheduler.has_pending_requests():
            self._ended = None


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps of one run.

    Args:
        wall_ms: durations of the gaps.
        idle_ms: part of each gap in which the engine's thread used no CPU time.
        forward_s: duration of all forward passes.
    """

    wall_ms: Sequence[float]
    idle_ms: Sequence[float]
    forward_s: float

    @property
    def idle_share(self) -> float:
        """The idle part of all gaps, divided by the time of passes and gaps."""
        return sum(self.idle_ms) / (1e3 * self.forward_s + sum(self.wall_ms))


def measure_gaps(requests: int) -> Gaps:
    """Serve `requests` requests that arrive at once, on one core of this machine."""
    clock = BootClock()
    settings = BenchSettings(
        device="cpu",
        cores=choose_core(),
        policy=Policy(),
        log_path=Path,  # Nothing is lent, so no log is written.
        seed=0,
    )
    with on_device_cores(settings), ExitStack() as owned:
        model = load_model(_MODEL, seed=0, device="cpu")
        engine = serving_tenant(model, settings, clock).stock(TimedGaps)
        owned.callback(engine.stop)
        engine.start()
        trace = Trace(
            arrival_s=np.zeros(requests),
            prompt_tokens=np.full(requests, _PROMPT_TOKENS),
            output_tokens=np.full(requests, OUTPUT_TOKENS),
            name="gaps",
        )
        replay = Replay(clock, model.config.vocab_size)
        replay.slice(trace, ArmEngines("alone", engine, None, None), number=0, seed=0)
        loop = engine.processor
    check(isinstance(loop, TimedGaps), "the engine has a loop of another kind")
    return Gaps(
        [wall_ns / NS_PER_MS for wall_ns, _ in loop.gaps_ns],
        [max(0, wall_ns - cpu_ns) / NS_PER_MS for wall_ns, cpu_ns in loop.gaps_ns],
        loop.forward_ns / NS_PER_S,
    )
