"""Who sends which change to whom: shard maps of both sides, refined into tiles with routes."""

from rose.transfer.plan.spec import LocalView, Piece, Region, ShardMap, TensorSpec

__all__ = ["LocalView", "Piece", "Region", "ShardMap", "TensorSpec"]
