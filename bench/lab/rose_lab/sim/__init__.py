"""Simulates rose's real decisions, and other schemes, on a modelled device in virtual time.

No GPU, no engine and no clock: equal inputs give equal outcomes. Results are only as good as
`DeviceModel`: a simulation compares schemes and tests rules, but measures no hardware.
"""

from rose_lab.sim.device import DeviceModel
from rose_lab.sim.load import at_load, stretched
from rose_lab.sim.outcome import (
    ArmOutcome,
    RequestOutcome,
    excess_misses,
    missed,
)
from rose_lab.sim.request import Request
from rose_lab.sim.simulation import SCHEMES, default_policy, simulate

__all__ = [
    "SCHEMES",
    "ArmOutcome",
    "DeviceModel",
    "Request",
    "RequestOutcome",
    "at_load",
    "default_policy",
    "excess_misses",
    "missed",
    "simulate",
    "stretched",
]
