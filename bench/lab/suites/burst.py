"""All borrowed GPUs are revoked at once: time until their turns run again, and its bound."""

from dataclasses import dataclass, replace
from typing import Final

from rose.errors import check
from rose.units import MS_PER_S
from rose_lab.sim.cluster.simulate import native_world, new_core, outcome_of
from rose_lab.sim.cluster.world import ClusterOutcome, ClusterWorld
from rose_lab.sim.scenario.parts import RevokeAll
from rose_lab.sim.scenario.scenario import Scenario

_MOMENT_MS: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Burst:
    """Result of one burst of revocations.

    Args:
        recovery_s: time from the burst until every affected turn ran again; NaN if the
            simulation ended first, 0 without affected turns.
        bound_s: the scheduler's bound right before the burst.
    """

    recovery_s: float
    bound_s: float


def burst_of(scenario: Scenario, world: ClusterWorld) -> Burst:
    """Return the recovery from the scenario's burst, and the scheduler's bound.

    The scenario runs three times: up to the burst, for the bound; with the burst, to see whether it
    affects a turn; and to its end.
    """
    bursts = [one for one in scenario.stress if isinstance(one, RevokeAll)]
    check(len(bursts) == 1, f"a scenario must have one burst, got {len(bursts)}")
    # Events at the horizon are included.
    burst_ms = MS_PER_S * bursts[0].at_s
    before, bound_s = _run(replace(world, horizon_ms=max(0.0, burst_ms - _MOMENT_MS)))
    until, _ = _run(replace(world, horizon_ms=burst_ms))
    # Earlier revocations are the same in all runs. A burst without affected turns has no entry, so
    # the next entry belongs to another revocation.
    place = len(before.recovery_ms)
    if place == len(until.recovery_ms):
        return Burst(0.0, bound_s)
    whole, _ = _run(world)
    return Burst(float(whole.recovery_ms[place]) / MS_PER_S, bound_s)


def _run(world: ClusterWorld) -> tuple[ClusterOutcome, float]:
    core = new_core(world)
    outcome = outcome_of(native_world(world).run(core.native, None))
    return outcome, core.stats().recovery_bound_s
