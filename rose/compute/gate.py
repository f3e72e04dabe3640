"""What a borrower's lane needs of a gate, and the gate for GPUs without one in their streams."""

from typing import Protocol

from rose._core import CudaStream, Verdict
from rose.errors import DeadlineExceeded


class BorrowerGate(Protocol):
    """The borrower's half of a gate. One thread calls it.

    The life of a step: `begin_step` → `pass_` → `settle` → `pass_`, … → `settle` → `leave` →
    `end_step`.
    """

    def begin_step(self) -> None:
        """Say that a step is asked for."""
        ...

    def pass_(self, *, timeout_ms: float) -> Verdict:
        """End the segment before and start the next, if that is allowed within the time."""
        ...

    def settle(self, *, timeout_ms: float) -> Verdict:
        """Wait until every segment that was let into the stream has started."""
        ...

    def leave(self) -> None:
        """End the last segment."""
        ...

    def end_step(self) -> None:
        """End the step."""
        ...


class SynchronousGate:
    """HOST on a GPU: the host waits for each segment, then stops at its own gate.

    It needs nothing of the driver and holds exactly, but the GPU idles between two segments.
    """

    def __init__(self, gate: BorrowerGate, stream: CudaStream) -> None:
        """Gate what runs on `stream`."""
        self._gate = gate
        self._stream = stream

    def begin_step(self) -> None:
        """Say that a step is asked for."""
        self._gate.begin_step()

    def pass_(self, *, timeout_ms: float) -> Verdict:
        """Wait for the segment before, then for leave to start the next."""
        try:
            self._stream.wait(timeout_ms=timeout_ms)
        except DeadlineExceeded:
            return Verdict.TIMED_OUT
        return self._gate.pass_(timeout_ms=timeout_ms)

    def settle(self, *, timeout_ms: float) -> Verdict:
        """Say that nothing waits: the host stopped at the gate itself."""
        del timeout_ms
        return Verdict.PASSED

    def leave(self) -> None:
        """End the last segment, whose work `RolloutLane.finish` has waited for."""
        self._gate.leave()

    def end_step(self) -> None:
        """End the step."""
        self._gate.end_step()
