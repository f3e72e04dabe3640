"""The borrower's gate where each segment may have another share of the device."""

from collections.abc import Callable

from rose._core import CudaStream, Verdict
from rose.compute.confinement import Confinement
from rose.compute.gate import BorrowerGate


class ConfinedGate:
    """A gate that puts the next segment into the stream of the share that was asked for.

    The streams are ordered behind one another by events: changing the share drains nothing, and the
    segments keep one sequence of numbers. `confine` is for any thread; all else is for the
    borrower's.

    Args:
        gate: its segments are in `confinement.plain`.
        confinement: outlives the gate.
        use_stream: moves the segments to come behind those before.
    """

    def __init__(
        self,
        gate: BorrowerGate,
        confinement: Confinement,
        *,
        use_stream: Callable[[CudaStream], None],
    ) -> None:
        # Python drops them in this order, and the gate ends before the streams it is in.
        self._use_stream = use_stream
        self._gate = gate
        self._confinement = confinement
        self._now = confinement.plain
        self._wanted: int | None = None

    @property
    def stream(self) -> int:
        """The handle of the stream that the segment which runs must be put into."""
        return self._now.handle

    def confine(self, multiprocessors: int | None) -> None:
        """Say what segments within a step may have from the next on; None is the whole device."""
        self._wanted = multiprocessors

    def rejoin(self) -> None:
        """Go back to the plain stream, behind all segments: what reads results is there."""
        self._move_to(self._confinement.plain)

    def _move_to(self, stream: CudaStream) -> None:
        if stream.handle == self._now.handle:
            return
        self._use_stream(stream)
        self._now = stream

    def begin_step(self) -> None:
        """Say that a step is asked for."""
        self._gate.begin_step()

    def pass_(self, *, timeout_ms: float) -> Verdict:
        """End the segment before and start the next in the plain stream.

        For the first segment of a step and what follows the last: preparation and results belong
        there, whatever the segments between them have.
        """
        self.rejoin()
        return self._gate.pass_(timeout_ms=timeout_ms)

    def pass_confined(self, *, timeout_ms: float) -> Verdict:
        """End the segment before and start the next in the stream of its share."""
        self._move_to(self._confinement.stream_for(self._wanted))
        return self._gate.pass_(timeout_ms=timeout_ms)

    def settle(self, *, timeout_ms: float) -> Verdict:
        """Wait until every segment that was let into a stream has started."""
        return self._gate.settle(timeout_ms=timeout_ms)

    def leave(self) -> None:
        """End the last segment."""
        self._gate.leave()

    def end_step(self) -> None:
        """End the step."""
        self._gate.end_step()
