"""Which task the next trajectory gets, so that every group becomes complete."""

from collections import deque


class Groups:
    """Hands out group numbers, each `size` times; one that was dropped is handed out again."""

    def __init__(self, size: int) -> None:
        """Start with group 0."""
        self._size = size
        self._taken = 0
        self._again: deque[int] = deque()

    def take(self) -> int:
        """Return the group of the next trajectory: those that lost one come first."""
        if self._again:
            return self._again.popleft()
        self._taken += 1
        return (self._taken - 1) // self._size

    def give_back(self, group: int) -> None:
        """Say that a trajectory of `group` will never be finished."""
        self._again.append(group)
