"""Counts kernel launches per segment: they limit how far a host may run ahead of its stream."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch.utils._python_dispatch import TorchDispatchMode

from rose.executor import RolloutLane

# Assumed kernel launches per operator. A sort or an indexed write launches more, but the average
# over a segment rarely exceeds two.
_LAUNCHES_OF_OPERATOR: Final = 2
# Number of measured steps, enough for a prefill and some decode steps.
_MEASURED_STEPS: Final = 4


class LaunchCounter(TorchDispatchMode):  # type: ignore[misc]
    """While active, estimates the kernel launches of each segment in one thread, erring high.

    Every operator that is not a view counts as `_LAUNCHES_OF_OPERATOR` launches. Operators in
    compiled code and in replayed graphs are not counted: an engine that uses these must call
    `RolloutLane.set_launches` itself.

    Args:
        passes: function that returns a number that changes at each gate.
    """

    def __init__(self, passes: Callable[[], int]) -> None:
        super().__init__()
        self._passes = passes
        self._segment = -1
        self._launches = 0
        # Launches of the longest segment so far.
        self.longest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count an operator, then run it."""
        del types
        if self._segment != self._passes():
            self._segment, self._launches = self._passes(), 0
        if not func.is_view:
            self._launches += _LAUNCHES_OF_OPERATOR
            self.longest = max(self.longest, self._launches)
        return func(*args, **(kwargs or {}))


class LaunchMeasurement:
    """Counts kernel launches in a borrower's first steps; then the host may run ahead of its GPU.

    For the loop thread. If the lane's gates stop the host, nothing is measured.
    """

    def __init__(self, lane: RolloutLane) -> None:
        self._lane = lane
        self._counter = LaunchCounter(lambda: lane.passes)
        self._steps = 0

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """Count the launches of one forward pass, which runs in this context.

        Raises:
            InvalidArgument: a segment has more launches than the launch queue holds.
        """
        if self._lane.runs_ahead:
            yield
            return
        with self._counter:
            yield
        self._steps += 1
        if self._steps == _MEASURED_STEPS:
            self._lane.set_launches(self._counter.longest)
