"""Checkpoints on disk: what two of them differ in, and a file that turns one into the other.

The formats are in `docs/protocol.md`, "Deltas of checkpoints".
"""

from rose.checkpoints.apply import apply_beside
from rose.checkpoints.checkpoint import Checkpoint, open_checkpoint
from rose.checkpoints.delta_file import DeltaFile
from rose.checkpoints.identity import Identity, identify
from rose.checkpoints.in_place import apply_in_place
from rose.checkpoints.inspection import Inspection, inspect
from rose.checkpoints.make import make_delta_file

__all__ = [
    "Checkpoint",
    "DeltaFile",
    "Identity",
    "Inspection",
    "apply_beside",
    "apply_in_place",
    "identify",
    "inspect",
    "make_delta_file",
    "open_checkpoint",
]
