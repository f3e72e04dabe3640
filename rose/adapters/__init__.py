"""The rollout service: an HTTP server for RL frameworks. Needs the extra `serve`."""

from rose.adapters.app import rollout_app
from rose.adapters.sequences import Ask
from rose.adapters.service import Overloaded, PauseMode, RolloutService, ServiceLimits
from rose.adapters.trial import TrialWorker
from rose.scheduler.versions import VersionConflict, VersionRange

__all__ = [
    "Ask",
    "Overloaded",
    "PauseMode",
    "RolloutService",
    "ServiceLimits",
    "TrialWorker",
    "VersionConflict",
    "VersionRange",
    "rollout_app",
]
