"""What to borrow of serving devices: read how serving is, decide, and read again."""

from rose.scheduler.broker.broker import Broker
from rose.scheduler.broker.decision import Decision, Move
from rose.scheduler.broker.observation import (
    LatencyWindow,
    Observation,
    Reading,
    ServingDevice,
    Unread,
)
from rose.scheduler.broker.owners import DayCap, OwnerRules
from rose.scheduler.broker.settings import BrokerSettings

__all__ = [
    "Broker",
    "BrokerSettings",
    "DayCap",
    "Decision",
    "LatencyWindow",
    "Move",
    "Observation",
    "OwnerRules",
    "Reading",
    "ServingDevice",
    "Unread",
]
