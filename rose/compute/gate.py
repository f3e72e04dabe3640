"""The borrower's interface to a gate, and a gate at which the host waits instead of a stream."""

from typing import Protocol

from rose._core import Attachment, CudaStream, Verdict
from rose.errors import DeadlineExceeded


class BorrowerGate(Protocol):
    """The borrower's interface to a gate, called by one thread.

    The calls of a step: `start`; then `pass_` before every further segment; `settle` before
    `leave`, and whenever the host must wait; `leave`; `end_step`.
    """

    def start(self, tenant: Attachment, *, timeout_ms: float) -> Verdict | None:
        """Wait for a quantum, and start a step with its first segment.

        Args:
            tenant: the borrower's attachment.
            timeout_ms: longest wait for permission.

        Returns:
            The verdict; with any but PASSED no step runs. None: the borrower has slabs past their
            deadline.
        """
        ...

    def pass_(self, *, timeout_ms: float) -> Verdict:
        """End the previous segment, wait for permission, and start the next segment.

        Args:
            timeout_ms: longest wait for permission.
        """
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
    """The HOST gate on a GPU: the host waits for each segment, then for permission to go on.

    It needs no driver feature, and no segment starts after a close. But the GPU idles between two
    segments.
    """

    def __init__(self, gate: BorrowerGate, stream: CudaStream) -> None:
        """Gate the work on `stream`."""
        self._gate = gate
        self._stream = stream

    def start(self, tenant: Attachment, *, timeout_ms: float) -> Verdict | None:
        """Wait for the previous step's work, then for a quantum."""
        if not self._is_idle(timeout_ms):
            return Verdict.TIMED_OUT
        return self._gate.start(tenant, timeout_ms=timeout_ms)

    def pass_(self, *, timeout_ms: float) -> Verdict:
        """Wait for the previous segment, then for permission to start the next."""
        if not self._is_idle(timeout_ms):
            return Verdict.TIMED_OUT
        return self._gate.pass_(timeout_ms=timeout_ms)

    def _is_idle(self, timeout_ms: float) -> bool:
        """Wait for the stream; return False if it is still busy after `timeout_ms`."""
        try:
            self._stream.wait(timeout_ms=timeout_ms)
        except DeadlineExceeded:
            return False
        return True

    def settle(self, *, timeout_ms: float) -> Verdict:
        """Return at once: the host itself waits at the gate, so no admitted segment is queued."""
        del timeout_ms
        return Verdict.PASSED

    def leave(self) -> None:
        """End the last segment; `RolloutLane.finish` has already waited for the stream."""
        self._gate.leave()

    def end_step(self) -> None:
        """End the step."""
        self._gate.end_step()
