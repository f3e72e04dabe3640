"""Step loops of engines that share a device by somebody else's rule, each with its own memory."""

import os
from collections.abc import Callable
from typing import Any

from rose.demo.governed_lane import GovernedLane
from rose.engines.transformers.processor import DeviceProcessor


class GovernedServing(DeviceProcessor):
    """Serving's loop: a step begins when the rule's rollouts are off the device."""

    def __init__(self, lane: GovernedLane, **kwargs: Any) -> None:
        """Bind the loop to `lane`."""
        super().__init__(**kwargs)
        self._lane = lane

    def _prepare(self) -> bool:
        """Wait (bounded) until no rollout runs, then prepare."""
        self._lane.begin_step()
        if super()._prepare():
            return True
        self._lane.give_step_up()
        return False

    def update_batch(self) -> None:
        """Say that the step is over, then hand its tokens out."""
        self._lane.end_step()
        super().update_batch()


class GovernedRollouts(DeviceProcessor):
    """The borrower's loop: a step begins when the rule says so."""

    def __init__(self, lane: GovernedLane, **kwargs: Any) -> None:
        """Bind the loop to `lane`."""
        super().__init__(**kwargs)
        self._lane = lane
        # Called when it may not start: the manager would sleep otherwise.
        self.on_refused: Callable[[], None] = lambda: None

    def _prepare(self) -> bool:
        """Ask for a step, then prepare it: preparing takes time of the device too."""
        if not self._lane.try_step():
            self.on_refused()
            return False
        is_ready = False
        try:
            is_ready = super()._prepare()
        finally:
            if not is_ready:
                self._lane.end_rollout_step()
        return is_ready

    def update_batch(self) -> None:
        """Update as any loop; only then is the step over."""
        super().update_batch()
        self._lane.end_rollout_step()


class LeastOfAll(DeviceProcessor):
    """The borrower's loop where the system runs it when nothing else wants its core.

    It stays there: without privileges a thread does not come back.
    """

    _is_lowered = False

    def _prepare(self) -> bool:
        """Lower the loop's thread, once, then prepare."""
        if not self._is_lowered:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            self._is_lowered = True
        return super()._prepare()
