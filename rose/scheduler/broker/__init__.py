"""Size of the loans from serving devices: read their load, decide, and repeat."""

from rose.scheduler.broker.broker import Broker, Decision, LoanChange
from rose.scheduler.broker.observation import Observation, Reading, ServingDevice, Unread

__all__ = [
    "Broker",
    "Decision",
    "LoanChange",
    "Observation",
    "Reading",
    "ServingDevice",
    "Unread",
]
