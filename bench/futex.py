"""A futex round trip, measured in C++, because the interpreter would dominate."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

_HERE = Path(__file__).resolve().parent
_CORE = _HERE.parent / "csrc"


def build_round_trips(folder: Path) -> Callable[[int], list[int]]:
    """Return a function that does n round trips and returns their durations in nanoseconds.

    Args:
        folder: output folder of the shared object.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler for the futex peer: set CXX")
    library = folder / "futex_round_trip.so"
    sources = [str(_HERE / "futex_round_trip.cpp"), str(_CORE / "base" / "futex.cpp")]
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", f"-I{_CORE}"]
    subprocess.run([compiler, *flags, *sources, "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).futex_round_trips
    function.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    function.restype = None

    def round_trips(count: int) -> list[int]:
        out = np.empty(count, np.int64)
        function(out.ctypes.data, count)
        return [int(one) for one in out]

    return round_trips
