"""Decides the size of loans from serving devices, anew after each reading of their load."""

from rose_lab.broker.broker import Broker, Decision, LoanChange
from rose_lab.broker.observation import Observation, Reading, ServingDevice, Unread

__all__ = [
    "Broker",
    "Decision",
    "LoanChange",
    "Observation",
    "Reading",
    "ServingDevice",
    "Unread",
]
