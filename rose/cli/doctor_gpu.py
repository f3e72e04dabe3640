"""The GPU checks of `rose doctor`: driver, device code, and the gate's self-test."""

from collections.abc import Iterator
from typing import Final

from rose._core import CudaDriver, GateKind, KindProbe, embedded_kernels
from rose.cli.doctor import Finding, State
from rose.compute import Gpu
from rose.compute.usage import GpuMeter
from rose.config import read_environment
from rose.errors import RoseError

_BYTES_PER_GIB: Final = 1 << 30


def gpu_findings() -> Iterator[Finding]:
    """Find GPUs, open them, and test the gates on each."""
    yield _device_code()
    try:
        driver = CudaDriver.open()
        count = driver.device_count()
    except RoseError as error:
        yield Finding("gpu", State.ABSENT, str(error))
        return
    version = f"{driver.version // 1000}.{driver.version % 1000 // 10}"
    yield Finding("cuda driver", State.ACTIVE, f"for CUDA {version}, {count} GPUs")
    for ordinal in range(count):
        yield from _one_gpu(ordinal)


def _device_code() -> Finding:
    kernels = embedded_kernels()
    if kernels:
        return Finding("device code", State.ACTIVE, f"embedded: {', '.join(sorted(kernels))}")
    why = "built without nvcc, so rose uses Triton kernels; install nvcc and build again with"
    return Finding("device code", State.ABSENT, f"{why} ROSE_CUDA=on")


def _one_gpu(ordinal: int) -> Iterator[Finding]:
    name = f"gpu {ordinal}"
    try:
        gpu = Gpu.open(ordinal)
        facts, memory = gpu.device.facts, gpu.device.memory_info()
        environment = read_environment()
        probe = gpu.probe(max_connections=environment.cuda_max_connections, try_all=True)
    except RoseError as error:
        yield Finding(name, State.ABSENT, str(error))
        return
    yield Finding(
        name,
        State.ACTIVE,
        f"{facts.name}, compute {facts.compute_major}.{facts.compute_minor}, "
        f"{facts.multiprocessors} SMs, {memory[0] / _BYTES_PER_GIB:.1f} of "
        f"{memory[1] / _BYTES_PER_GIB:.1f} GiB free",
    )
    use = GpuMeter(facts.uuid).read()
    yield Finding(f"{name} use", State.ABSENT if use.absent else State.ACTIVE, use.sentence)
    if not (facts.has_virtual_memory and facts.has_posix_fd_handles):
        why = "this GPU has no virtual memory that file descriptors can share; a KV pool needs it"
        yield Finding(f"{name} pool", State.ABSENT, why)
    yield Finding(f"{name} gate", State.ACTIVE, f"{probe.choice.kind.name}: {probe.choice.why}")
    for kind, result in ((GateKind.MEMOP, probe.memop), (GateKind.KERNEL, probe.kernel)):
        yield Finding(f"{name} {kind.name}", *_tried(result))


def _tried(result: KindProbe) -> tuple[State, str]:
    if not result.is_usable:
        return State.ABSENT, result.why
    waits = (
        f"wakes in {result.wake_us:.1f} us; a kernel on serving's stream took at most "
        f"{result.alias_us:.1f} us while a borrower waited"
    )
    return State.ACTIVE, waits
