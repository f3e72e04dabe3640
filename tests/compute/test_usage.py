"""Readings of a GPU's load, memory and clocks, from a stand-in for pynvml."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rose.compute.usage import FIGURES, GpuMeter, GpuUse
from rose.units import GIB, NS_PER_MS

UUID = "5a0e6c4e-0000-1111-2222-333344445555"
WHOLE = GpuUse(
    busy_share=0.37,
    memory_used_bytes=10 * GIB,
    memory_bytes=80 * GIB,
    sm_clock_mhz=1755,
    memory_clock_mhz=2619,
)


class NVMLError(Exception):
    """The base class of pynvml's errors."""


class LibraryNotFound(NVMLError):
    """The driver's library is not there."""


class DriverNotLoaded(NVMLError):
    """The driver is not loaded."""


class Nvml:
    """The functions of pynvml that rose calls, for one GPU.

    Args:
        named: the GPU's name in NVML.
        fails: error of each failing function, by the function's name; for clocks also by the clock.
    """

    NVMLError = NVMLError
    NVMLError_LibraryNotFound = LibraryNotFound
    NVMLError_DriverNotLoaded = DriverNotLoaded
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __init__(
        self, *, named: str = f"GPU-{UUID}", fails: dict[str, Exception] | None = None
    ) -> None:
        self._named, self.fails = named, fails or {}
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def nvmlInit(self) -> None:
        self._call("nvmlInit")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._call("nvmlDeviceGetHandleByUUID")
        if uuid != self._named:
            raise NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, _handle: str) -> Any:
        self._call("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=37, memory=12)

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> Any:
        self._call("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(total=80 * GIB, used=10 * GIB, free=70 * GIB)

    def nvmlDeviceGetClockInfo(self, _handle: str, which: int) -> int:
        self._call(f"nvmlDeviceGetClockInfo {which}")
        return {self.NVML_CLOCK_SM: 1755, self.NVML_CLOCK_MEM: 2619}[which]


class ManualClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"the meter must not sleep, here {seconds} s")


def meter_of(nvml: Nvml, clock: ManualClock | None = None) -> GpuMeter:
    return GpuMeter(UUID, clock=clock or ManualClock(), load_nvml=lambda: nvml)


def test_all_figures_of_a_gpu_are_read() -> None:
    use = meter_of(Nvml()).read()
    assert use == WHOLE
    assert use.sentence == "37% busy, 10.0 of 80.0 GiB used, SMs at 1755 MHz, memory at 2619 MHz"


def test_a_mig_instance_has_memory_but_neither_load_nor_clocks() -> None:
    unsupported = dict.fromkeys(
        ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetClockInfo 1", "nvmlDeviceGetClockInfo 2"),
        NVMLError("Not Supported"),
    )
    use = meter_of(Nvml(named=f"MIG-{UUID}", fails=unsupported)).read()
    missing = ("busy_share", "sm_clock_mhz", "memory_clock_mhz")
    assert use == GpuUse(
        memory_used_bytes=10 * GIB,
        memory_bytes=80 * GIB,
        absent=dict.fromkeys(missing, "NVML: Not Supported"),
    )
    assert use.sentence == (
        "10.0 of 80.0 GiB used, busy_share, sm_clock_mhz, memory_clock_mhz: NVML: Not Supported"
    )


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (Nvml(fails={"nvmlInit": LibraryNotFound()}), "no NVIDIA driver here"),
        (Nvml(fails={"nvmlInit": DriverNotLoaded()}), "no NVIDIA driver here"),
        (
            Nvml(fails={"nvmlInit": NVMLError("Driver/library version mismatch")}),
            "NVML did not start: Driver/library version mismatch",
        ),
        (Nvml(named="GPU-another"), f"NVML does not know the GPU with UUID {UUID}: Not Found"),
    ],
    ids=["no library", "not loaded", "mismatch", "another GPU"],
)
def test_without_a_readable_gpu_every_figure_is_absent_with_the_reason(
    nvml: Nvml, reason: str
) -> None:
    use = meter_of(nvml).read()
    assert use == GpuUse(absent=dict.fromkeys(FIGURES, reason))
    assert use.sentence == reason


def test_without_the_package_the_reason_names_the_extras() -> None:
    def load() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'", name="pynvml")

    assert GpuMeter(UUID, load_nvml=load).read().sentence == (
        "nvidia-ml-py is not installed; install rose-rl[cuda12] or rose-rl[cuda13]"
    )


def test_a_cpu_is_never_looked_up() -> None:
    def load() -> Any:
        raise AssertionError("pynvml must not be imported for a CPU")

    assert GpuMeter("cpu", load_nvml=load).read().sentence == "the device is a CPU"


def test_a_reading_stays_valid_for_half_a_second() -> None:
    clock, nvml = ManualClock(), Nvml()
    meter = meter_of(nvml, clock)
    first = meter.read()
    calls = list(nvml.calls)
    clock.ns = 500 * NS_PER_MS - 1
    assert meter.read() is first
    assert nvml.calls == calls
    nvml.fails = {"nvmlDeviceGetUtilizationRates": NVMLError("GPU is lost")}
    clock.ns += 1
    assert meter.read().absent == {"busy_share": "NVML: GPU is lost"}
    # NVML was started, and the GPU found, only once.
    assert nvml.calls.count("nvmlInit") == nvml.calls.count("nvmlDeviceGetHandleByUUID") == 1


def test_a_driver_that_is_loaded_later_is_found() -> None:
    clock, nvml = ManualClock(), Nvml(fails={"nvmlInit": DriverNotLoaded()})
    meter = meter_of(nvml, clock)
    assert meter.read().absent
    nvml.fails = {}
    clock.ns = 500 * NS_PER_MS
    assert meter.read() == WHOLE


def test_a_server_exports_its_newest_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape reads nothing itself: it would wait for the driver in the event loop."""
    client = pytest.importorskip("prometheus_client")
    from rose.engines.vllm import gpu_use

    nvml = Nvml(fails={"nvmlDeviceGetClockInfo 2": NVMLError("Not Supported")})
    monkeypatch.setattr(gpu_use, "GpuMeter", lambda _device: meter_of(nvml))
    metrics, registry = gpu_use.GpuUseMetrics(), client.CollectorRegistry()
    registry.register(metrics)
    shown = registry.get_sample_value
    assert shown("rose_gpu_busy_share") is None
    use = asyncio.run(metrics.read(UUID))
    assert use.status()["busy_share"] == 0.37
    calls = list(nvml.calls)
    assert shown("rose_gpu_busy_share") == 0.37
    assert shown("rose_gpu_memory_bytes") == 80 * GIB
    missing = {"figure": "memory_clock_mhz", "reason": "NVML: Not Supported"}
    assert shown("rose_gpu_absent", missing) == 1
    assert shown("rose_gpu_memory_clock_mhz") is None
    assert nvml.calls == calls
