"""Load, memory and clocks of a GPU, as the driver's management library (NVML) reports them.

The package nvidia-ml-py of the extras `cuda12` and `cuda13` gives access to NVML. A call can wait
for the driver, so serving's thread and event loop must not read. Observers read, in a thread or a
process of their own.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final

from rose.clock import BootClock, Clock
from rose.errors import Unavailable
from rose.units import GIB, NS_PER_MS

# NVML averages the load over 1/6 to 1 s, so more frequent readings repeat the last one.
_FRESH_NS: Final = 500 * NS_PER_MS
_PERCENT: Final = 100.0
# NVML names a whole GPU or a MIG instance by such a prefix and the UUID that CUDA reports.
_PREFIXES: Final = ("GPU-", "MIG-")
# The figures of a reading, and what they are.
FIGURES: Final[Mapping[str, str]] = {
    "busy_share": "Share of the last sample period in which a kernel ran, 0 to 1.",
    "memory_used_bytes": "Memory that all processes together have allocated.",
    "memory_bytes": "Memory of the GPU or of the MIG instance.",
    "sm_clock_mhz": "Present clock of the multiprocessors.",
    "memory_clock_mhz": "Present clock of the memory.",
}


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One reading of a GPU: the values of `FIGURES`, each None if NVML does not report it.

    Args:
        absent: the reason of each missing figure, by the figure's name.
    """

    busy_share: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def without(cls, reason: str) -> "GpuUse":
        """Return a reading in which every figure is missing for the same reason."""
        return cls(absent=dict.fromkeys(FIGURES, reason))

    def status(self) -> dict[str, Any]:
        """Return figures and reasons, for JSON."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        """The reading in one line, for a terminal."""
        parts = []
        if self.busy_share is not None:
            parts.append(f"{self.busy_share:.0%} busy")
        if self.memory_used_bytes is not None and self.memory_bytes is not None:
            used, size = self.memory_used_bytes / GIB, self.memory_bytes / GIB
            parts.append(f"{used:.1f} of {size:.1f} GiB used")
        if self.sm_clock_mhz is not None:
            parts.append(f"SMs at {self.sm_clock_mhz} MHz")
        if self.memory_clock_mhz is not None:
            parts.append(f"memory at {self.memory_clock_mhz} MHz")
        for reason in dict.fromkeys(self.absent.values()):
            names = [name for name, why in self.absent.items() if why == reason]
            missing = "" if len(names) == len(FIGURES) else f"{', '.join(names)}: "
            parts.append(f"{missing}{reason}")
        return ", ".join(parts)


class GpuMeter:
    """Reads the use of one GPU. Any thread may call it.

    A reading stays valid for half a second. While the first thread reads, others wait for it.
    """

    def __init__(
        self,
        device: str,
        *,
        clock: Clock | None = None,
        load_nvml: Callable[[], Any] = lambda: import_module("pynvml"),
    ) -> None:
        """Read nothing yet.

        Args:
            device: "cpu", or the UUID of a GPU as CUDA reports it. An ordinal would depend on
                CUDA_VISIBLE_DEVICES, which NVML ignores.
            clock: time source for the age of a reading; None: the system's clock.
            load_nvml: imports pynvml.
        """
        self._device, self._load = device, load_nvml
        self._clock = clock or BootClock()
        # Guards the members below. `newest` reads one of them without it, so that it never waits.
        self._lock = threading.Lock()
        self._handle: Any = None
        self._nvml: Any = None
        self._newest: GpuUse | None = None
        self._read_ns = 0

    @property
    def newest(self) -> GpuUse | None:
        """The newest reading, of any age; None before the first. Never waits."""
        return self._newest

    def read(self) -> GpuUse:
        """Return a reading that is at most half a second old. May wait for the driver."""
        with self._lock:
            now_ns = self._clock.now_ns()
            if self._newest is None or now_ns - self._read_ns >= _FRESH_NS:
                self._newest = self._read()
                self._read_ns = now_ns
            return self._newest

    def _read(self) -> GpuUse:
        if self._device == "cpu":
            return GpuUse.without("the device is a CPU")
        try:
            nvml, gpu = self._opened()
        except Unavailable as reason:
            return GpuUse.without(str(reason))
        found: dict[str, Any] = {}
        absent: dict[str, str] = {}
        for names, ask in _questions(nvml, gpu):
            with _caught(nvml, absent, names):
                found.update(zip(names, ask(), strict=True))
        return GpuUse(**found, absent=absent)

    def _opened(self) -> tuple[Any, Any]:
        """Return pynvml and the GPU's handle.

        Raises:
            Unavailable: the package or the driver is missing, or NVML does not know the GPU. The
                next reading tries again, because a driver can be loaded later.
        """
        if self._handle is not None:
            return self._nvml, self._handle
        try:
            nvml = self._load()
        except ImportError:
            raise Unavailable(
                "nvidia-ml-py is not installed; install rose-rl[cuda12] or rose-rl[cuda13]"
            ) from None
        try:
            nvml.nvmlInit()
        except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
            raise Unavailable("no NVIDIA driver here") from None
        except nvml.NVMLError as error:
            raise Unavailable(f"NVML did not start: {error}") from None
        refused = ""
        for prefix in _PREFIXES:
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(prefix + self._device)
            except nvml.NVMLError as error:
                refused = str(error)
                continue
            self._nvml, self._handle = nvml, handle
            return nvml, handle
        raise Unavailable(f"NVML does not know the GPU with UUID {self._device}: {refused}")


@contextmanager
def _caught(nvml: Any, absent: dict[str, str], names: Sequence[str]) -> Iterator[None]:
    """Record an error of NVML as the reason why figures are absent.

    A MIG instance, for example, has memory, but neither load nor clocks of its own.
    """
    try:
        yield
    except nvml.NVMLError as error:
        absent.update(dict.fromkeys(names, f"NVML: {error}"))


def _questions(nvml: Any, gpu: Any) -> Iterator[tuple[Sequence[str], Callable[[], Sequence[Any]]]]:
    """Yield the figures that one call of NVML answers, and the call."""
    yield ("busy_share",), lambda: [nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / _PERCENT]
    yield ("memory_used_bytes", "memory_bytes"), lambda: _used_and_total(nvml, gpu)
    for name, which in (
        ("sm_clock_mhz", nvml.NVML_CLOCK_SM),
        ("memory_clock_mhz", nvml.NVML_CLOCK_MEM),
    ):
        yield (name,), partial(_clock_mhz, nvml, gpu, which)


def _used_and_total(nvml: Any, gpu: Any) -> Sequence[int]:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return memory.used, memory.total


def _clock_mhz(nvml: Any, gpu: Any, which: int) -> Sequence[int]:
    return [nvml.nvmlDeviceGetClockInfo(gpu, which)]
