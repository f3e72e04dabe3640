"""Compute: the streams of a GPU, and the gate between the borrower's segments."""

from rose.compute.gate import BorrowerGate, SynchronousGate
from rose.compute.gpu import Gpu, device_ordinal, tested_gate

__all__ = [
    "BorrowerGate",
    "Gpu",
    "SynchronousGate",
    "device_ordinal",
    "tested_gate",
]
