"""Time on a device: events around enqueued work, medians, and the copy bandwidth.

Functions import torch, so that the parent of the suites never loads it.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from bench.gpu.report import Cannot
from bench.paired import Measure

GB: Final = 1e9
GIB: Final = 1 << 30
COPY_BYTES: Final = 2 * GIB
COPY_ROUNDS: Final = 20
# Time in which the host enqueues a few calls: with this much work in front, the device never waits
# for the host between two events.
LEAD_CYCLES: Final = 200_000
PROBE_CYCLES: Final = 20_000_000


def fresh_seed(name: str) -> int:
    """Return a new seed in each run, and print it, so that a run can be repeated."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"{name}: seed {seed}", flush=True)
    return seed


def event_timed(
    run: Callable[[], object], *, before: Callable[[], object] | None = None
) -> Measure:
    """Return a measure of the work that `run` enqueues on the current stream, in milliseconds.

    `before` is enqueued first, and not measured.
    """
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def measure() -> float:
        if before is not None:
            before()
        torch.cuda._sleep(LEAD_CYCLES)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return measure


def host_timed(run: Callable[[], object], *, before: Callable[[], object]) -> Measure:
    """Return a measure of a call that waits for its own results, in milliseconds of the host.

    `before` comes first, waits for the device too, and is not measured.
    """

    def measure() -> float:
        before()
        began_ns = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - began_ns) * 1e-6

    return measure


def median_of(measure: Measure, *, rounds: int, warm_up: int = 3) -> float:
    """Return the median of a measure without its first `warm_up` results."""
    for _ in range(warm_up):
        measure()
    return statistics.median(measure() for _ in range(rounds))


def copy_gb_s() -> float:
    """Return the bandwidth of a copy in device memory, bytes read and written, in GB/s."""
    import torch

    source = torch.randint(-(1 << 61), 1 << 61, (COPY_BYTES // 8,), device="cuda")
    target = torch.empty_like(source)
    ms = median_of(event_timed(lambda: target.copy_(source)), rounds=COPY_ROUNDS)
    return 2 * COPY_BYTES / GB / (ms * 1e-3)


def need_free(need_bytes: int) -> None:
    """Refuse work that does not fit: a row that swaps or fails late is meaningless.

    Raises:
        Cannot: less memory is free.
    """
    import torch

    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < need_bytes:
        raise Cannot(f"{need_bytes / GB:.0f} GB are needed, {free_bytes / GB:.0f} GB are free")


def cycles_per_ms() -> float:
    """Return the number of cycles for which torch's sleeping kernel takes a millisecond."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(PROBE_CYCLES)  # the first one loads the kernel

    def measure() -> float:
        start.record()
        torch.cuda._sleep(PROBE_CYCLES)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return PROBE_CYCLES / median_of(measure, rounds=5, warm_up=1)


def sleeper(cycles_each_ms: float, length_ms: float) -> Callable[[], Any]:
    """Return work of a known length for the current stream: one thread that waits."""
    import torch

    cycles = max(1, int(cycles_each_ms * length_ms))
    return lambda: torch.cuda._sleep(cycles)
