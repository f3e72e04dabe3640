"""Compute: a GPU's streams, and the gate between the borrower's segments."""

from rose.compute.gate import BorrowerGate, SynchronousGate
from rose.compute.gpu import Gpu, device_ordinal, tested_gate

__all__ = [
    "BorrowerGate",
    "Gpu",
    "SynchronousGate",
    "device_ordinal",
    "tested_gate",
]
