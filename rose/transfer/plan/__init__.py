"""Who sends which change to whom: shard maps of both sides, refined into tiles with routes."""

from rose.transfer.plan.coverage import Coverage, check_coverage
from rose.transfer.plan.members import Holder, Relay, Replica, Source
from rose.transfer.plan.plan import Plan, make_plan
from rose.transfer.plan.planned import Landing, PlannedTile
from rose.transfer.plan.replan import Replanned, replan
from rose.transfer.plan.spec import LocalView, Piece, Region, ShardMap, TensorSpec
from rose.transfer.plan.traffic import Traffic, crossing_bytes, fan_out_bytes, observed, traffic

__all__ = [
    "Coverage",
    "Holder",
    "Landing",
    "LocalView",
    "Piece",
    "Plan",
    "PlannedTile",
    "Region",
    "Relay",
    "Replanned",
    "Replica",
    "ShardMap",
    "Source",
    "TensorSpec",
    "Traffic",
    "check_coverage",
    "crossing_bytes",
    "fan_out_bytes",
    "make_plan",
    "observed",
    "replan",
    "traffic",
]
