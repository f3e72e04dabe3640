"""What an inference engine imports: two models on one device, serving unharmed."""

from rose.events import Reason, Refusal
from rose.executor.device import CoServing
from rose.executor.lender import Lease, OnRevoke
from rose.executor.reading import DeviceReading
from rose.executor.revocation import Cause, Notice, Revocation
from rose.executor.rollout import Quantum, RolloutLane
from rose.executor.serving import ServingLane, ServingStep, StepBatch
from rose.executor.ticket import Ticket
from rose.executor.weights import WeightsLease, WeightsState
from rose.memory import KVGeometry
from rose.slo import SLO, Policy

__all__ = [
    "SLO",
    "Cause",
    "CoServing",
    "DeviceReading",
    "KVGeometry",
    "Lease",
    "Notice",
    "OnRevoke",
    "Policy",
    "Quantum",
    "Reason",
    "Refusal",
    "Revocation",
    "RolloutLane",
    "ServingLane",
    "ServingStep",
    "StepBatch",
    "Ticket",
    "WeightsLease",
    "WeightsState",
]
