"""A borrower's own mapping of what it is lent, kept in step with its loans."""

import threading
from contextlib import ExitStack
from typing import Final

from rose._core import Attachment, MappedWindow
from rose.closing import Closing
from rose.memory import LentSlabs

# Unmapped at once: a step that is about to start waits for so many at most.
_SWEEP_SLABS: Final = 8


class LentWindow(Closing):
    """Maps slabs when they are lent, and unmaps them, at leisure, when they are back.

    Any thread. The lock guards the mapping, and that nothing of a GPU is mapped, and nothing
    unmapped, while a step runs: page tables that change under a running kernel make it fault. A
    step may begin between a wish and its grant; what was lent then is mapped when it has ended.
    """

    def __init__(self, attachment: Attachment, window: MappedWindow) -> None:
        """Join the two, which nobody else changes from here on."""
        self._attachment = attachment
        self._window = window
        self._lock = threading.Lock()
        self._is_in_step = False
        self._late: list[LentSlabs] = []  # lent for a step that had begun by then

    @property
    def can_take(self) -> bool:
        """Whether slabs can be mapped now: a GPU's only between steps, of which one may begin."""
        with self._lock:
            return self._is_still()

    def take(self, lent: LentSlabs) -> bool:
        """Map what was lent, so that its blocks may be used; or do it when the step has ended.

        Args:
            lent: is this object's from now on.

        Returns:
            Whether it is mapped.

        Raises:
            RoseError: a slab could not be mapped; no block of any of them is used.
        """
        with self._lock:
            if not self._is_still():
                self._late.append(lent)
                return False
            self._map(lent)
            return True

    def step_began(self) -> None:
        """Leave the mapping as it is until the step has ended."""
        with self._lock:
            self._is_in_step = True

    def step_ended(self) -> None:
        """Go on, with what was lent and taken back meanwhile first.

        Raises:
            RoseError: as of `take`.
        """
        with self._lock, ExitStack() as lent:
            self._is_in_step = False
            late = [lent.enter_context(one) for one in self._late]
            self._late.clear()
            for one in late:
                self._map(one)
        self.tidy()

    def tidy(self) -> None:
        """Unmap some of what is not the borrower's any more, unless a step runs."""
        with self._lock:
            if not self._is_in_step:
                for slab in self._attachment.retire():
                    self._window.give(slab)
                self._window.sweep(_SWEEP_SLABS)

    def close(self) -> None:
        """Let go of what is not mapped; the mapping itself goes with the window."""
        with self._lock:
            while self._late:
                self._late.pop().close()

    def _is_still(self) -> bool:
        return self._window.is_on_host or not self._is_in_step

    def _map(self, lent: LentSlabs) -> None:
        with lent:
            for slab, fd in lent.fds.items():
                self._window.take(slab, fd=fd)
            self._attachment.reach(list(lent.fds))
