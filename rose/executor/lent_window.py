"""A borrower's own mapping of what it is lent, kept in step with its loans."""

import threading
from typing import Final

from rose._core import Attachment
from rose.memory import LentSlabs, SlabWindow

# Unmapped at once: a step that is about to start waits for so many at most.
_SWEEP_SLABS: Final = 8


class LentWindow:
    """Maps slabs when they are lent, and unmaps them, at leisure, when they are back.

    Any thread. The lock guards the mapping, and that nothing is unmapped while a step runs: page
    tables that change under a running kernel make it fault.
    """

    def __init__(self, attachment: Attachment, window: SlabWindow) -> None:
        """Join the two, which nobody else changes from here on."""
        self._attachment = attachment
        self._window = window
        self._lock = threading.Lock()
        self._is_in_step = False

    @property
    def can_take(self) -> bool:
        """Whether slabs can be mapped now: a GPU's only between steps."""
        return self._window.mapping.is_on_host or not self._is_in_step

    def take(self, lent: LentSlabs) -> None:
        """Map what was lent; from here on its blocks may be used.

        Raises:
            RoseError: a slab could not be mapped; no block of any of them is used.
        """
        with self._lock:
            self._window.take(lent)
            self._attachment.reach(list(lent.fds))

    def held(self) -> frozenset[int]:
        """The slabs that are mapped, and were not given up."""
        with self._lock:
            return frozenset(self._window.mapping.held)

    def step_began(self) -> None:
        """Leave the mapping as it is until the step has ended."""
        with self._lock:
            self._is_in_step = True

    def step_ended(self) -> None:
        """Go on, with what was taken back meanwhile first."""
        with self._lock:
            self._is_in_step = False
        self.tidy()

    def tidy(self) -> None:
        """Unmap some of what is not the borrower's any more, unless a step runs."""
        with self._lock:
            if not self._is_in_step:
                self._window.give(self._attachment.retire())
                self._window.sweep(_SWEEP_SLABS)
