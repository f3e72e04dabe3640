"""How busy GPUs are, through NVML where it is installed; nowhere else is that an error."""

import importlib
from dataclasses import dataclass
from typing import Any, Final

_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How a GPU is used.

    Args:
        sm_busy: the share of the last sampling period (a sixth of a second to a second) in which
            a kernel ran, whoever's.
        memory_used: the share of its memory that is taken.
    """

    sm_busy: float
    memory_used: float


class NvmlMeter:
    """Asks the driver. Any thread: NVML is safe with many."""

    def __init__(self, nvml: Any) -> None:
        """Measure through `nvml`, which is initialised; see `open_nvml`."""
        self._nvml = nvml

    def use(self, gpu: int) -> GpuUse | None:
        """Return how GPU number `gpu` is used; None when the driver does not say."""
        nvml = self._nvml
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(gpu)
            busy = nvml.nvmlDeviceGetUtilizationRates(device).gpu / _PERCENT
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
        except nvml.NVMLError:
            return None
        taken = memory.used / memory.total if memory.total else 1.0
        return GpuUse(sm_busy=_share(busy), memory_used=_share(taken))

    def close(self) -> None:
        """Let go of the driver; one that is gone already is let go of."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return


def open_nvml() -> NvmlMeter | None:
    """Return what measures GPUs; None without the package `nvidia-ml-py`, or without a driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return NvmlMeter(nvml)


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
