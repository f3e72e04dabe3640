"""The rollout service: an HTTP server for RL frameworks. Needs the extra `serve`."""

from rose.adapters.app import rollout_app
from rose.adapters.fleet_limits import FleetLimits
from rose.adapters.keyed import KeyReused
from rose.adapters.limits import ContextTooLong, Overloaded, ServiceLimits
from rose.adapters.pauses import PauseMode, PauseOvertaken
from rose.adapters.sequences import Ask
from rose.adapters.service import RolloutService
from rose.adapters.trial import TrialWorker
from rose.scheduler.versions import VersionConflict, VersionRange

__all__ = [
    "Ask",
    "ContextTooLong",
    "FleetLimits",
    "KeyReused",
    "Overloaded",
    "PauseMode",
    "PauseOvertaken",
    "RolloutService",
    "ServiceLimits",
    "TrialWorker",
    "VersionConflict",
    "VersionRange",
    "rollout_app",
]
