"""A serving and a borrower's stream on one GPU with a gate between them, for the gate rows."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.gpu.timing import cycles_per_ms, sleeper
from rose.errors import check

CREDIT_MAX: Final = 1 << 20
LONG_MS: Final = 10_000.0
WINDOW_MAX: Final = 64
# Events of finished segments are reused.
EVENTS: Final = 256
PARK_SEGMENT_MS: Final = 2.0


def spin_until(condition: Callable[[], bool], *, limit_s: float = 5.0, nap_s: float = 0.0) -> None:
    """Poll until the condition holds; without `nap_s`, never sleep between two polls."""
    end_s = time.monotonic() + limit_s
    while not condition():
        check(time.monotonic() < end_s, "the device did not get there in time")
        if nap_s > 0:
            time.sleep(nap_s)


class Lanes:
    """Rose's two streams as torch streams, in torch's context."""

    def __init__(self) -> None:
        import torch

        from rose.compute import Gpu
        from rose.engines.torch import stream_of

        torch.cuda.init()
        self.torch_device = torch.device("cuda:0")
        torch.zeros(1, device=self.torch_device)
        self.gpu = Gpu.open(0)
        self.serving = stream_of(self.gpu.serving.handle, self.torch_device)
        self.rollout = stream_of(self.gpu.rollout.handle, self.torch_device)
        self.cycles_each_ms = cycles_per_ms()

    def sleep_ms(self, length_ms: float) -> Callable[[], Any]:
        return sleeper(self.cycles_each_ms, length_ms)

    def borrower(self, kind: Any, *, window: int) -> "Borrower":
        """Return a borrower with the gate that the executor would choose."""
        from rose._core import HostGate

        host = HostGate()
        return Borrower(self, host, self.gpu.borrower_gate(host, kind, window=window))

    def graph_borrower(self, kind: Any, *, window: int) -> "Borrower":
        """Return a borrower with a bare gate, which can be inserted into graphs."""
        from rose._core import HostGate, StreamGate

        host, stream = HostGate(), self.gpu.rollout.handle
        half = StreamGate.create(self.gpu.device, host, stream=stream, kind=kind, window=window)
        return Borrower(self, host, half)


class Borrower:
    """Both halves of a gate on the rollout stream; `push` enqueues a segment.

    Segments are numbered from 1, as in the gate.
    """

    def __init__(self, lanes: Lanes, host: Any, half: Any) -> None:
        import torch

        from rose._core import Verdict

        self.lanes = lanes
        self.host = host
        self.half = half
        self.pushed = 0
        self._passed = Verdict.PASSED
        self._starts = [torch.cuda.Event(enable_timing=True) for _ in range(EVENTS)]
        self._ends = [torch.cuda.Event(enable_timing=True) for _ in range(EVENTS)]

    def open(self, segments: int = CREDIT_MAX) -> None:
        self.host.grant(segments)
        check(self.host.open(self.host.close_epoch), "something else closed this gate")

    def close(self) -> None:
        from rose._core import CloseReason

        self.host.close(CloseReason.ARRIVAL)

    def push(self, work: Callable[[], Any], *, timeout_ms: float = LONG_MS) -> bool:
        """Enqueue a gate and a segment; False if the gate refused it."""
        import torch

        with torch.cuda.stream(self.lanes.rollout):
            if self.half.pass_(timeout_ms=timeout_ms) != self._passed:
                return False
            at = (self.pushed + 1) % EVENTS
            self._starts[at].record()
            work()
            self._ends[at].record()
        self.pushed += 1
        return True

    def has_ended(self, number: int) -> bool:
        # Until the push is complete, the event is still that of an earlier segment.
        return number <= self.pushed and bool(self._ends[number % EVENTS].query())

    def length_ms(self, number: int) -> float:
        return float(self._starts[number % EVENTS].elapsed_time(self._ends[number % EVENTS]))

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Have a segment in the stream that waits at its closed gate, and no running one."""
        work = self.lanes.sleep_ms(PARK_SEGMENT_MS)
        self.half.begin_step()
        self.open()
        check(self.push(work) and self.push(work), "an open gate refused a segment")
        # The first segment runs for a time that is long for a host, so the second must wait for it.
        spin_until(lambda: self.host.passed == self.pushed - 1)
        self.close()
        spin_until(lambda: self.has_ended(self.pushed - 1))
        check(self.host.passed == self.pushed - 1, "the last segment does not wait at its gate")
        try:
            yield
        finally:
            self.open()
            self.drain()

    def drain(self) -> None:
        """Let everything run to its end with an open gate, and end the step."""
        spin_until(lambda: self.host.passed == self.pushed and self.has_ended(self.pushed))
        self.half.leave()
        self.half.end_step()
        self.close()


class Running:
    """A thread that enqueues segments as fast as its gate permits."""

    def __init__(self, borrower: Borrower, length_ms: float) -> None:
        self.borrower = borrower
        self._work = borrower.lanes.sleep_ms(length_ms)
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None

    def _run(self) -> None:
        try:
            self.borrower.half.begin_step()
            while self.borrower.push(self._work, timeout_ms=LONG_MS):
                pass
            self.borrower.half.leave()
            self.borrower.half.end_step()
        except BaseException as failure:  # noqa: BLE001 (raised again by the thread that joins)
            self._failure = failure

    @classmethod
    @contextmanager
    def of(cls, borrower: Borrower, length_ms: float) -> "Iterator[Running]":
        one = cls(borrower, length_ms)
        one._thread.start()
        try:
            yield one
        finally:
            borrower.host.shut_down()
            one._thread.join(LONG_MS * 1e-3)
            check(not one._thread.is_alive(), "the thread did not end after its gate was shut down")
        if one._failure is not None:
            raise one._failure
