"""Settings with other constants than those of production, and all values of one."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from rose.scheduler import SchedulerSettings

OWN = frozenset({"max_staleness", "batch_trajectories", "worker_lag_max"})
STANDARD = SchedulerSettings()


def tuned(base: SchedulerSettings = STANDARD, **values: float) -> SchedulerSettings:
    own: dict[str, Any] = {name: values.pop(name) for name in OWN & values.keys()}
    return replace(base, **own, tuning={**base.tuning, **values})


def values_of(settings: SchedulerSettings) -> SimpleNamespace:
    return SimpleNamespace(**settings.values())
