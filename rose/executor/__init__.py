"""API for inference engines: two models share one device, and serving keeps its latency."""

from rose.events import Reason, Refusal
from rose.executor.device import CoServing
from rose.executor.revocation import Notice
from rose.executor.rollout import Quantum, RolloutLane
from rose.executor.serving import ServingLane, StepBatch
from rose.executor.ticket import Ticket
from rose.memory import KVGeometry
from rose.slo import SLO, Policy

__all__ = [
    "SLO",
    "CoServing",
    "KVGeometry",
    "Notice",
    "Policy",
    "Quantum",
    "Reason",
    "Refusal",
    "RolloutLane",
    "ServingLane",
    "StepBatch",
    "Ticket",
]
