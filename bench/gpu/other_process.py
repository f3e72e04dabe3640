"""A borrower in a separate process: `python -m bench.gpu.other_process DEVICE GATE_FD MS`.

It prints "ready", then enqueues segments behind the gate until it is shut down. On a CPU a segment
is a sleep, so that this runs without a GPU.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.gpu.children import ROOT, environment, python
from bench.gpu.report import Cannot
from rose._core import HostGate, Verdict
from rose.errors import check

READY_S: Final = 40.0
END_S: Final = 10.0
LONG_MS: Final = 60_000.0


def run(half: Any, work: Callable[[], None]) -> None:
    """Enqueue segments behind a gate until it is shut down."""
    half.begin_step()
    while half.pass_(timeout_ms=LONG_MS) == Verdict.PASSED:
        work()
    half.leave()
    half.end_step()


def on_gpu(gate: HostGate, length_ms: float) -> tuple[Any, Callable[[], None]]:
    """Return the gate in a stream of this process, and segments that fill the device."""
    import torch

    from bench.gpu.timing import event_timed, median_of
    from rose.compute import Gpu
    from rose.engines.torch import stream_of

    device = torch.device("cuda:0")
    left = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(left)
    gpu = Gpu.open(0)
    probe = gpu.probe(max_connections=None, in_one_process=False)
    if not probe.memop.is_usable:
        raise Cannot(probe.memop.why)
    half = gpu.borrower_gate(gate, probe.choice.kind, window=2)
    stream = stream_of(gpu.rollout.handle, device)
    with torch.cuda.stream(stream):
        each_ms = median_of(event_timed(lambda: torch.mm(left, left, out=out)), rounds=5)
    times = max(1, round(length_ms / each_ms))

    def work() -> None:
        with torch.cuda.stream(stream):
            for _ in range(times):
                torch.mm(left, left, out=out)

    return half, work


def main(device: str, descriptor: str, length_ms: str) -> int:
    gate = HostGate.attach(int(descriptor))
    if device == "cpu":
        half, work = gate, lambda: time.sleep(float(length_ms) * 1e-3)
    else:
        try:
            half, work = on_gpu(gate, float(length_ms))
        except Cannot as why:
            print(f"cannot: {why}", flush=True)
            return 0
    print("ready", flush=True)
    run(half, work)
    return 0


@contextmanager
def borrowing(
    gate: HostGate, *, device: str, length_ms: float, **variables: str
) -> Iterator["subprocess.Popen[str]"]:
    """Run a borrower in another process; at the end its gate is shut down.

    Raises:
        Cannot: the process could not start; the message has its output.
    """
    descriptor = gate.fileno()
    child = subprocess.Popen(
        python("-m", "bench.gpu.other_process", device, str(descriptor), str(length_ms)),
        cwd=ROOT,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[descriptor],
    )
    # A child that hangs before "ready" is ended, which ends the read.
    late = threading.Timer(READY_S, child.kill)
    late.start()
    try:
        check(child.stdout is not None, "its output is not a pipe")
        said = child.stdout.readline().strip()  # type: ignore[union-attr]
        late.cancel()
        if said != "ready":
            raise Cannot(said.removeprefix("cannot: ") or "the borrower's process ended at once")
        yield child
    finally:
        late.cancel()
        late.join()
        gate.shut_down()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
