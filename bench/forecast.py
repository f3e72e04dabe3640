"""The latency model's calls, measured in C++: from Python the crossing would be most of them."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
_CORE = _HERE.parent / "csrc"


def build_forecasts(folder: Path) -> Callable[[int], tuple[float, float]]:
    """Return a function of rounds that returns the median nanoseconds of (forecast, observe).

    Args:
        folder: where the program goes.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler for the latency model's calls: set CXX")
    program = folder / "latency_forecast"
    parts = ("slo/latency_model.cpp", "slo/conformal_bound.cpp")
    sources = [str(_HERE / "latency_forecast.cpp"), *(str(_CORE / part) for part in parts)]
    flags = ["-std=c++20", "-O3", "-DNDEBUG", "-pthread", f"-I{_CORE}"]  # those of the extension
    subprocess.run([compiler, *flags, *sources, "-o", str(program)], check=True)

    def calls_ns(rounds: int) -> tuple[float, float]:
        done = subprocess.run([program, str(rounds)], check=True, capture_output=True, text=True)
        forecast_ns, observe_ns = map(float, done.stdout.split())
        return forecast_ns, observe_ns

    return calls_ns
