"""Describes the GPU: `python -m bench.gpu.card` prints it as JSON, in a separate process.

Everything is read and nothing is set: clocks and limits are reported as found.
"""

import ctypes
import json
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Final

NO_DRIVER: Final = "no NVIDIA driver"
NO_DEVICE: Final = "the NVIDIA driver has no GPU"
EXIT_NO_GPU: Final = 3

# Values of the driver's enumeration CUdevice_attribute.
_MULTIPROCESSORS: Final = 16
_L2_BYTES: Final = 38
_COMPUTE_MAJOR: Final = 75
_COMPUTE_MINOR: Final = 76
_PACKAGES: Final = ("triton", "cupy-cuda13x", "cupy-cuda12x", "nvidia-ml-py", "pybind11", "pytest")


def driver_library() -> ctypes.CDLL | None:
    """Return the CUDA driver, not initialised yet, or None."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def why_no_gpu() -> str | None:
    """Return the reason why no GPU can be used here, or None. Creates no context."""
    cuda = driver_library()
    if cuda is None:
        return NO_DRIVER
    if (answer := cuda.cuInit(0)) != 0:
        return f"{NO_DEVICE}: cuInit answers {answer}"
    count = ctypes.c_int(0)
    answer = cuda.cuDeviceGetCount(ctypes.byref(count))
    return None if answer == 0 and count.value > 0 else NO_DEVICE


def _of_driver(cuda: ctypes.CDLL) -> dict[str, object]:
    def attribute(number: int) -> int:
        value = ctypes.c_int(0)
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        return value.value

    driver, count = ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(driver))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name, len(name), 0)
    total = ctypes.c_size_t(0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    return {
        "gpu": name.value.decode(errors="replace"),
        "gpus": count.value,
        "cuda": f"{driver.value // 1000}.{driver.value % 1000 // 10}",
        "compute_capability": f"{attribute(_COMPUTE_MAJOR)}.{attribute(_COMPUTE_MINOR)}",
        "multiprocessors": attribute(_MULTIPROCESSORS),
        "gpu_memory_gib": round(total.value / (1 << 30), 1),
        "l2_mib": round(attribute(_L2_BYTES) / (1 << 20), 1),
    }


# Reported values: the function of NVML, and the kind of clock or sensor.
_ASKED: Final = {
    "clock_sm_mhz": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    "clock_memory_mhz": ("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
    "clock_sm_max_mhz": ("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
    "clock_memory_max_mhz": ("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_MEM"),
    "power_limit_mw": ("nvmlDeviceGetPowerManagementLimit",),
    "temperature_c": ("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
}


def _of_nvml() -> dict[str, object]:
    """Return the driver's version and the clocks as found; nothing without NVML."""
    try:
        import pynvml
    except ImportError:
        return {}
    found: dict[str, object] = {}
    # A sandbox may refuse some of these, and versions of NVML differ.
    with suppress(pynvml.NVMLError, AttributeError):
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        found["driver"] = driver.decode() if isinstance(driver, bytes) else driver
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        for name, (function, *kinds) in _ASKED.items():
            with suppress(pynvml.NVMLError, AttributeError):
                found[name] = getattr(pynvml, function)(gpu, *(getattr(pynvml, k) for k in kinds))
    return found


def _of_software() -> dict[str, object]:
    found: dict[str, object] = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
        releases = [line for line in done.stdout.splitlines() if "release" in line]
        found["nvcc"] = releases[-1].split("release", 1)[1].strip() if releases else ""
    return found


def gpu_card() -> dict[str, object]:
    """Describe the first GPU and its software; only if `why_no_gpu` is None."""
    cuda = driver_library()
    return (_of_driver(cuda) if cuda is not None else {}) | _of_nvml() | _of_software()


def main() -> int:
    if (why := why_no_gpu()) is not None:
        print(why)
        return EXIT_NO_GPU
    print(json.dumps(gpu_card()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
