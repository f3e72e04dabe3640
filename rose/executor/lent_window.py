"""A borrower's own mapping of the pool, which maps only the slabs lent to the borrower."""

import threading
from contextlib import ExitStack
from typing import Final

from rose._core import Attachment, MappedWindow
from rose.closing import Closing
from rose.memory import LentSlabs

# Number of slabs that are unmapped at once. A step that is about to start may wait until these are
# unmapped.
_SWEEP_SLABS: Final = 8


class LentWindow(Closing):
    """Maps slabs when they are lent, and unmaps them gradually after they are taken back.

    Any thread may call the methods. During a step no slab is unmapped, and no GPU memory is mapped,
    because a kernel faults if its page tables change. The lock guards the mapping and this rule.
    A step may start while a slab request is in flight; slabs granted in the meantime are mapped
    after that step.
    """

    def __init__(self, attachment: Attachment, window: MappedWindow) -> None:
        """Take over `window`; no other object may change its mapping."""
        self._attachment = attachment
        self._window = window
        self._lock = threading.Lock()
        self._is_in_step = False
        self._late: list[LentSlabs] = []  # granted during the running step

    @property
    def can_take(self) -> bool:
        """True if slabs can be mapped now. GPU memory is mapped only between steps."""
        with self._lock:
            return self._is_still()

    def take(self, lent: LentSlabs) -> bool:
        """Map lent slabs and admit their blocks, now or after the running step.

        Args:
            lent: the slabs and their descriptors; this object takes ownership.

        Returns:
            True if the slabs are mapped now; False if they will be mapped after the step.

        Raises:
            RoseError: a slab could not be mapped; no block of `lent` becomes usable.
        """
        with self._lock:
            if not self._is_still():
                self._late.append(lent)
                return False
            self._map(lent)
            return True

    def step_began(self) -> None:
        """Unmap nothing, and map no GPU memory, until `step_ended`."""
        with self._lock:
            self._is_in_step = True

    def step_ended(self) -> None:
        """Map slabs granted during the step, and unmap some revoked slabs.

        Raises:
            RoseError: as in `take`.
        """
        with self._lock, ExitStack() as lent:
            self._is_in_step = False
            late = [lent.enter_context(one) for one in self._late]
            self._late.clear()
            for one in late:
                self._map(one)
        self.tidy()

    def tidy(self) -> None:
        """Unmap some revoked slabs, unless a step runs."""
        with self._lock:
            if not self._is_in_step:
                for slab in self._attachment.retire():
                    self._window.give(slab)
                self._window.sweep(_SWEEP_SLABS)

    def close(self) -> None:
        """Close the descriptors of slabs that were not mapped; the mapping itself stays."""
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
