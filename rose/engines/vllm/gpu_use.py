"""The use of a server's GPU, for `/rose/status` and vLLM's `/metrics`."""

import asyncio
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rose.compute.usage import FIGURES, GpuMeter, GpuUse

_PREFIX: Final = "rose_gpu_"


class GpuUseMetrics(Collector):
    """Exports the newest reading of one GPU.

    NVML is called in a thread of asyncio's pool, so neither a request nor a scrape waits for the
    driver in the event loop, through which serving's tokens leave.
    """

    def __init__(self) -> None:
        self._meter: GpuMeter | None = None

    async def read(self, device: str) -> GpuUse:
        """Return a reading that is at most half a second old.

        Args:
            device: "cpu", or the UUID of the GPU; the same at every call.
        """
        if self._meter is None:
            self._meter = GpuMeter(device)
        return await asyncio.to_thread(self._meter.read)

    def describe(self) -> list[Metric]:
        """Return nothing: the figures are known only at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of the newest reading, and the reason of each missing figure."""
        use = None if self._meter is None else self._meter.newest
        if use is None:
            return
        for name, text in FIGURES.items():
            if (value := getattr(use, name)) is not None:
                yield GaugeMetricFamily(f"{_PREFIX}{name}", text, value=value)
        missing = GaugeMetricFamily(
            f"{_PREFIX}absent", "Figures that NVML does not report.", labels=["figure", "reason"]
        )
        for name, reason in use.absent.items():
            missing.add_metric([name, reason], 1)
        yield missing
