"""The plan of a transfer: shard maps of trainer and engines, refined into tiles with routes."""

from rose.transfer.plan.coverage import Coverage, check_coverage
from rose.transfer.plan.joining import joined, one_holder_each
from rose.transfer.plan.plan import Plan, make_plan
from rose.transfer.plan.planned import Landing, PlannedTile
from rose.transfer.plan.spec import (
    Holder,
    LocalView,
    Piece,
    Places,
    Region,
    RelayNode,
    Replica,
    ShardMap,
    SourceRanks,
    TensorSpec,
)

__all__ = [
    "Coverage",
    "Holder",
    "Landing",
    "LocalView",
    "Piece",
    "Places",
    "Plan",
    "PlannedTile",
    "Region",
    "RelayNode",
    "Replica",
    "ShardMap",
    "SourceRanks",
    "TensorSpec",
    "check_coverage",
    "joined",
    "make_plan",
    "one_holder_each",
]
