"""Compute: the streams of a GPU, and the gate between the borrower's segments."""

from rose.compute.confined_gate import ConfinedGate
from rose.compute.confinement import SHARES, Confinement
from rose.compute.gate import BorrowerGate, SynchronousGate
from rose.compute.gpu import Gpu, device_ordinal, tested_gate
from rose.compute.ranks import Voter, rank_gate

__all__ = [
    "SHARES",
    "BorrowerGate",
    "ConfinedGate",
    "Confinement",
    "Gpu",
    "SynchronousGate",
    "Voter",
    "device_ordinal",
    "rank_gate",
    "tested_gate",
]
