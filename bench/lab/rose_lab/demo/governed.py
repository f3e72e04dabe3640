"""Two engines with separate memory that share a device by a scheduling rule from a paper."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from rose.clock import Clock
from rose.engines.torch import gate_layers
from rose.engines.transformers.processor import DeviceProcessor
from rose.errors import check
from rose.slo import SLO
from rose.slo.latency_file import new_latency_model
from rose_lab.demo.governed_lane import GovernedLane
from rose_lab.demo.replay import CountIn, uncounted
from rose_lab.demo.settings import LAYERS_PER_SEGMENT, BenchSettings, Tenant
from rose_lab.sim.governor import Governor
from rose_lab.sim.governors import HostWindow, RosePaper, Valve


class GovernedServing(DeviceProcessor):
    """Serving's loop: a step starts once no rollout runs on the device."""

    def __init__(self, lane: GovernedLane, **kwargs: Any) -> None:
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
        """End the step, then deliver its tokens."""
        self._lane.end_step()
        super().update_batch()


class GovernedRollouts(DeviceProcessor):
    """The borrower's loop: a step starts when the rule allows it."""

    def __init__(self, lane: GovernedLane, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lane = lane
        # Called when a step is refused; wakes the engine, which would sleep otherwise.
        self.on_refused: Callable[[], None] = lambda: None

    def _prepare(self) -> bool:
        """Ask for a step before preparing it, because preparing uses the device too."""
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
        """Update the batch; the step ends only after that."""
        super().update_batch()
        self._lane.end_rollout_step()


class LeastOfAll(DeviceProcessor):
    """The borrower's loop under SCHED_IDLE: the loop runs only when nothing else needs its core.

    The thread stays under SCHED_IDLE, since leaving it needs privileges.
    """

    _is_lowered = False

    def _prepare(self) -> bool:
        """Lower the loop's thread, once, then prepare."""
        if not self._is_lowered:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            self._is_lowered = True
        return super()._prepare()


GOVERNED: Final = ("host_window", "rose_paper", "valve")


class GovernedPair:
    """One pair of engines for all rules; each slice follows one rule."""

    def __init__(
        self,
        tenants: tuple[Tenant, Tenant],
        slo: SLO,
        settings: BenchSettings,
        clock: Clock,
        *,
        owned: ExitStack,
    ) -> None:
        """Build both engines without starting them."""
        serving, borrower = tenants
        batch_tokens = serving.config.max_batch_tokens
        self._slo = slo
        self.lane = GovernedLane(
            clock=clock,
            model=new_latency_model(settings.policy, step_tokens=batch_tokens),
            batch_tokens=batch_tokens,
        )
        self.serving = serving.stock(partial(GovernedServing, self.lane))
        self.rollouts = borrower.stock(partial(GovernedRollouts, self.lane))
        loop = self.rollouts.processor
        check(isinstance(loop, GovernedRollouts), "the borrower's loop must be GovernedRollouts")
        loop.on_refused = self.rollouts.wake
        self.rollouts.on_stop(gate_layers(self.lane, borrower.model, every=LAYERS_PER_SEGMENT))
        owned.callback(self.serving.stop)
        owned.callback(self.rollouts.stop)

    def governor(self, name: str) -> Governor:
        """Return a new governor of a scheme.

        A governor learns, so the caller keeps it for all slices.
        """
        if name == "host_window":
            return HostWindow()
        return Valve() if name == "valve" else RosePaper(self._slo, self.lane.profile_ms)

    def watch(self, governor: Governor) -> CountIn:
        """Follow `governor` in the next slice; return a function that adds nothing to the slice."""
        self.lane.govern(governor)
        return uncounted()
