"""Serving's wait when the borrower's kernel fills the device and does not end."""

import random
import statistics
import time
from typing import Any, Final

from bench.gpu.lanes import Lanes
from bench.gpu.report import Report
from bench.gpu.suite_parked import ServingStep
from bench.gpu.timing import event_timed, fresh_seed, median_of
from bench.paired import quantile
from bench.rows import Peer

# Blocks of 4 warps: 16 of them fill the threads of a multiprocessor.
BLOCKS_OF_MULTIPROCESSOR: Final = 16
LENGTH_MS: Final = 2.0
ARRIVALS: Final = 150
ROWS: Final = ("persistent_residual_us_p50", "persistent_residual_us_p99")


def measure(report: Report) -> None:
    import torch

    with report.rows(*ROWS):
        from bench.gpu.spin_kernel import spin

        lanes = Lanes()
        step = ServingStep(lanes)
        threads = 128
        blocks = BLOCKS_OF_MULTIPROCESSOR * lanes.gpu.device.facts.multiprocessors
        out = torch.empty(blocks * threads, device=lanes.torch_device)

        def run(rounds: int) -> None:
            spin[(blocks,)](out, rounds, block=threads, num_warps=4)

        with torch.cuda.stream(lanes.rollout):
            probe_ms = median_of(event_timed(lambda: run(100_000)), rounds=3)
            rounds = int(100_000 * LENGTH_MS / probe_ms)
            length_ms = median_of(event_timed(lambda: run(rounds)), rounds=3)
        late_us = residuals_us(lanes, step, lambda: run(rounds), length_ms)
        for row, share in zip(ROWS, (0.5, 0.99), strict=True):
            report.add(
                row, quantile(late_us, share), "us", peer=Peer("the kernel", length_ms * 1e3, "us")
            )


def residuals_us(lanes: Lanes, step: ServingStep, run: Any, length_ms: float) -> list[float]:
    """Return the additional time of a serving step at random moments of the kernel."""
    import torch

    done = torch.cuda.Event()

    def step_us() -> float:
        began_ns = time.perf_counter_ns()
        with torch.cuda.stream(step.stream):
            step.graph.replay()
            done.record()
        while not done.query():
            pass
        return (time.perf_counter_ns() - began_ns) * 1e-3

    rng = random.Random(fresh_seed("persistent"))
    alone_us = statistics.median(step_us() for _ in range(20))
    late_us = []
    for _ in range(ARRIVALS):
        with torch.cuda.stream(lanes.rollout):
            run()
        time.sleep(rng.uniform(0.1, 0.9) * length_ms * 1e-3)
        late_us.append(step_us() - alone_us)
        lanes.rollout.synchronize()
    return late_us
