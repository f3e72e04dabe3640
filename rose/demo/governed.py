"""Two engines of their own memory that share a device by a published rule."""

from contextlib import ExitStack
from functools import partial
from typing import Final

from rose.clock import Clock
from rose.demo.governed_lane import GovernedLane
from rose.demo.governed_loops import GovernedRollouts, GovernedServing
from rose.demo.replay import CountIn, uncounted
from rose.demo.settings import BenchSettings, Tenant
from rose.engines.torch import gate_layers
from rose.errors import check
from rose.sim.governor import Governor
from rose.sim.governors import HostWindow, RosePaper, Valve
from rose.slo import SLO
from rose.slo.latency_file import new_latency_model

GOVERNED: Final = ("host_window", "rose_paper", "valve")


class GovernedPair:
    """One pair of engines for all rules: between slices the rules take turns."""

    def __init__(
        self,
        tenants: tuple[Tenant, Tenant],
        slo: SLO,
        settings: BenchSettings,
        clock: Clock,
        *,
        owned: ExitStack,
    ) -> None:
        """Build both engines; neither runs."""
        serving, borrower = tenants
        batch_tokens = serving.config.max_batch_tokens
        self._slo = slo
        self.lane = GovernedLane(
            clock=clock,
            model=new_latency_model(settings.policy, step_tokens=batch_tokens),
            batch_tokens=batch_tokens,
        )
        self.serving = serving.stock(settings.pool_bytes, partial(GovernedServing, self.lane))
        self.rollouts = borrower.stock(settings.pool_bytes, partial(GovernedRollouts, self.lane))
        loop = self.rollouts.processor
        check(isinstance(loop, GovernedRollouts), "the borrower has a loop of another kind")
        loop.on_refused = self.rollouts.wake
        self.rollouts.on_stop(
            gate_layers(self.lane, borrower.model, every=settings.layers_per_segment)
        )
        owned.callback(self.serving.stop)
        owned.callback(self.rollouts.stop)

    def governor(self, name: str) -> Governor:
        """Return the rule of a scheme; what it learns, it keeps from slice to slice."""
        if name == "host_window":
            return HostWindow()
        return Valve() if name == "valve" else RosePaper(self._slo, self.lane.profile_ms)

    def watch(self, governor: Governor) -> CountIn:
        """Follow `governor` in the slice that begins."""
        self.lane.govern(governor)
        return uncounted()
