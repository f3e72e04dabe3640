"""No kernel spills registers or keeps a stack, on any device we build for."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.building.project import BUILD, NVCC, SETUP, kernels, needs_nvcc, run

pytestmark = [pytest.mark.timeout(600), needs_nvcc]

DEVICES = {f"sm_{architecture}" for architecture in SETUP.ARCHITECTURES}
FUNCTION = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for '(?P<device>\w+)'"
    r"|(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)


@dataclass(frozen=True, slots=True)
class Use:
    """What ptxas says of one kernel, or of a function it calls, on one device."""

    kernel: str
    device: str
    stack_bytes: int
    spill_bytes: int


def uses(log: str) -> list[Use]:
    """Return what `-Xptxas=-v` wrote. A function that is not inlined counts to the kernel above."""
    found: list[Use] = []
    kernel = device = ""
    for match in FUNCTION.finditer(log):
        if match["kernel"]:
            kernel, device = match["kernel"], match["device"]
        else:
            spill_bytes = int(match["stores"]) + int(match["loads"])
            found.append(Use(kernel, device, int(match["stack"]), spill_bytes))
    return found


def test_no_kernel_spills(built: Path) -> None:
    for name in kernels(built):
        found = uses((built / BUILD / "kernels" / f"{name}.fatbin.log").read_text())
        entries = {use.kernel for use in found}
        assert entries, f"ptxas says nothing of {name}.cu"
        assert {(use.kernel, use.device) for use in found} == {
            (kernel, device) for kernel in entries for device in DEVICES
        }
        assert not [use for use in found if use.stack_bytes or use.spill_bytes]


# 64 values are alive across a barrier, and 1,024 threads leave room for 32 registers each at two
# blocks on a multiprocessor.
SPILLS = """
extern "C" __global__ __launch_bounds__(1024, 2) void spills_kernel(float* values) {
  float kept[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) kept[i] = values[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) values[(63 - i) * 1024 + threadIdx.x] = kept[i] * kept[(i * 7) % 64];
}
"""
# Registers cannot be indexed.
KEEPS_A_STACK = """
extern "C" __global__ void keeps_a_stack_kernel(int* values, int at) {
  int kept[256];
  for (int i = 0; i < 256; ++i) kept[(i * at) % 256] = values[i];
  values[threadIdx.x] = kept[(at + threadIdx.x) % 256];
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "text", "spills"),
    [("spills_kernel", SPILLS, True), ("keeps_a_stack_kernel", KEEPS_A_STACK, False)],
)
def test_planted_spill_is_seen(tmp_path: Path, kernel: str, text: str, spills: bool) -> None:
    assert NVCC
    (tmp_path / "planted.cu").write_text(text)
    flags = [*SETUP.DEVICE.split(), *SETUP.device_codes()]
    done = run(NVCC, *flags, "planted.cu", "-o", "planted.fatbin", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = uses(done.stdout + done.stderr)
    assert {(use.kernel, use.device) for use in found} == {(kernel, device) for device in DEVICES}
    assert all(use.stack_bytes > 0 for use in found)
    assert all((use.spill_bytes > 0) == spills for use in found)
