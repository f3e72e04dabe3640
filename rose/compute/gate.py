"""The borrower's side of a gate, and the gate for GPUs without a gate in their streams."""

from typing import Protocol

from rose._core import CudaStream, Verdict
from rose.errors import DeadlineExceeded


class BorrowerGate(Protocol):
    """The borrower's side of a gate, called by one thread.

    Lifecycle of a step: `begin_step` → `pass_` → `settle` → `pass_`, … → `settle` → `leave` →
    `end_step`.
    """

    def begin_step(self) -> None:
        """Request a step."""
        ...

    def pass_(self, *, timeout_ms: float) -> Verdict:
        """End the previous segment, and start the next once allowed, within the timeout."""
        ...

    def settle(self, *, timeout_ms: float) -> Verdict:
        """Wait until every admitted segment has started."""
        ...

    def leave(self) -> None:
        """End the last segment."""
        ...

    def end_step(self) -> None:
        """End the step."""
        ...


class SynchronousGate:
    """The HOST gate on a GPU: the host waits for each segment, then stops at its own gate.

    It needs no driver feature and stops exactly, but the GPU idles between two segments.
    """

    def __init__(self, gate: BorrowerGate, stream: CudaStream) -> None:
        """Gate the work on `stream`."""
        self._gate = gate
        self._stream = stream

    def begin_step(self) -> None:
        """Request a step."""
        self._gate.begin_step()

    def pass_(self, *, timeout_ms: float) -> Verdict:
        """Wait for the previous segment, then for leave to start the next."""
        try:
            self._stream.wait(timeout_ms=timeout_ms)
        except DeadlineExceeded:
            return Verdict.TIMED_OUT
        return self._gate.pass_(timeout_ms=timeout_ms)

    def settle(self, *, timeout_ms: float) -> Verdict:
        """Return at once: the host stops at the gate, so no admitted segment waits."""
        del timeout_ms
        return Verdict.PASSED

    def leave(self) -> None:
        """End the last segment; `RolloutLane.finish` has waited for its work."""
        self._gate.leave()

    def end_step(self) -> None:
        """End the step."""
        self._gate.end_step()
