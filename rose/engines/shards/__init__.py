"""Shard maps of frameworks: the places of a checkpoint's tensors in trainers and engines."""

from rose.engines.shards.computed import ComputedTensors
from rose.engines.shards.dtensors import shard_map_of_dtensors
from rose.engines.shards.megatron import MegatronLayout, MegatronModel, megatron_layout
from rose.engines.shards.placements import (
    Placement,
    Replicate,
    Shard,
    StridedShard,
    pieces_of_placements,
)
from rose.engines.shards.places import views_of
from rose.engines.shards.plain import shard_map_of
from rose.engines.shards.storages import parameters_of
from rose.engines.shards.trace import Loader, LoaderTrace, joined_traces, trace_loader
from rose.transfer.sharded.shards import Shards

__all__ = [
    "ComputedTensors",
    "Loader",
    "LoaderTrace",
    "MegatronLayout",
    "MegatronModel",
    "Placement",
    "Replicate",
    "Shard",
    "Shards",
    "StridedShard",
    "joined_traces",
    "megatron_layout",
    "parameters_of",
    "pieces_of_placements",
    "shard_map_of",
    "shard_map_of_dtensors",
    "trace_loader",
    "views_of",
]
