"""Rose is a guest: a program that uses it finds CUDA as it was, and pays nothing on import."""

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rose.units import MIB

pytestmark = pytest.mark.gpu

ROOT: Final = Path(__file__).resolve().parents[2]

IMPORTS: Final = """
import os, sys
import rose, rose.compute, rose.executor, rose.memory, rose.slo, rose.transfer
opened = []
for name in os.listdir("/proc/self/fd"):
    try:
        opened.append(os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass
devices = [path for path in opened if "nvidia" in path]
assert not devices, devices
with open("/proc/self/maps") as maps:
    loaded = [line for line in maps if "libcuda.so" in line or "libcudart" in line]
assert not loaded, loaded
assert "torch" not in sys.modules
"""


def test_import_touches_no_device() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def runtimes() -> Iterator[ctypes.CDLL]:
    """Yield each CUDA runtime that is loaded in this process: torch brings one."""
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        paths = {line.split()[-1] for line in maps if "libcudart.so" in line}
    for path in sorted(paths):
        yield ctypes.CDLL(path)


def check_clean() -> None:
    """The error that the runtime remembers is the host program's: rose leaves none behind."""
    import torch

    found = list(runtimes())
    assert found, "torch loads a CUDA runtime"
    for runtime in found:
        assert runtime.cudaPeekAtLastError() == 0
    torch.cuda.synchronize()
    assert float(torch.ones(8, device="cuda").sum()) == 8.0


def test_no_error_is_left_after_gates_and_a_pool(lanes: Any, device: Any) -> None:
    from rose._core import Arbiter, GateKind

    check_clean()
    arbiter = Arbiter.create(slab_bytes=2 * MIB, slab_count=4, header_slabs=1, device=device)
    lanes.gpu.probe(max_connections=None)
    for kind in (GateKind.MEMOP, GateKind.KERNEL):
        with lanes.borrower(kind, window=2).parked():
            pass
    del arbiter
    check_clean()


def test_no_error_is_left_after_a_call_that_fails(device: Any) -> None:
    from rose._core import Arbiter, CudaDevice
    from rose.errors import InvalidArgument, OutOfMemory

    check_clean()
    _, total = device.memory_info()
    slabs = total // (64 * MIB) + 16
    with pytest.raises(OutOfMemory):
        # In one piece, so that the driver refuses it before it has given any.
        Arbiter.create(
            slab_bytes=64 * MIB,
            slab_count=slabs,
            header_slabs=1,
            object_bytes_max=2 * total,
            device=device,
        )
    with pytest.raises(InvalidArgument, match="999"):
        CudaDevice.open(999)
    check_clean()


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_pool_that_fails_half_way_leaves_all_memory_free(device: Any, failing: int) -> None:
    from rose._core import Arbiter
    from rose.errors import RoseError

    gc.collect()
    before, _ = device.memory_info()
    with pytest.raises(RoseError):
        Arbiter.create(
            slab_bytes=64 * MIB,
            slab_count=8,
            header_slabs=1,
            object_bytes_max=192 * MIB,
            fail_backend_call=failing,
            device=device,
        )
    after, _ = device.memory_info()
    assert before - after < 64 * MIB
    check_clean()


def test_the_current_context_is_the_callers(device: Any) -> None:
    from rose._core import CudaEvent, CudaStream
    from tests.gpu.memory import Memory

    memory = Memory()
    current = memory.current_context()
    stream = CudaStream.create(device, highest=False)
    event = CudaEvent.create(device, has_timing=True)
    event.record(stream.handle)
    stream.wait(timeout_ms=1000)
    assert event.is_done()
    assert memory.current_context() == current
