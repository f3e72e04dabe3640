"""Finds the request that makes a step raise, so that it fails alone."""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

# After this many requests in a row whose steps raised, none of them with others, the engine itself
# is at fault.
FAULTS_MAX: Final = 16


class Suspects:
    """Groups of requests to run apart, after a step with all of them has raised. For one thread.

    Only the first group runs. A group whose step raises is divided; a group of one is guilty. A
    request that took part in a step which did not raise is no longer a suspect.
    """

    def __init__(self) -> None:
        """Start without suspects."""
        self._groups: deque[frozenset[str]] = deque()
        self._faults = 0

    @property
    def group(self) -> frozenset[str] | None:
        """Ids of the requests that may run now; None: all may."""
        return self._groups[0] if self._groups else None

    @property
    def is_engine_at_fault(self) -> bool:
        """True if so many requests were guilty in a row that no request can be the cause."""
        return self._faults >= FAULTS_MAX

    def keep(self, known: Collection[str]) -> None:
        """Forget suspects that have left the engine.

        Args:
            known: ids of all requests of the engine.
        """
        left = (group.intersection(known) for group in self._groups)
        self._groups = deque(group for group in left if group)

    def passed(self, batch: Collection[str]) -> None:
        """Record that a step with these requests did not raise."""
        self._faults = 0
        self._groups = deque(left for group in self._groups if (left := group.difference(batch)))

    def release(self) -> None:
        """Let the first group run with all others, because there is no memory to run it apart."""
        if self._groups:
            self._groups.popleft()

    def raised(self, batch: Sequence[str], fresh: Collection[str]) -> str | None:
        """Record that a step has raised.

        Args:
            batch: ids of the requests in the step, at least one.
            fresh: ids of the requests that have not generated a token yet. They are the likely
                cause, so they run one by one, after all others have run together.

        Returns:
            Id of the guilty request; None if the groups were divided.
        """
        self._groups = deque(left for group in self._groups if (left := group.difference(batch)))
        if len(batch) == 1:
            self._faults += 1
            return batch[0]
        new = [name for name in batch if name in fresh]
        old = [name for name in batch if name not in fresh]
        half = len(old) // 2
        parts = [old, *([name] for name in new)] if new else [old[:half], old[half:]]
        self._groups.extendleft(frozenset(part) for part in reversed(parts) if part)
        return None
