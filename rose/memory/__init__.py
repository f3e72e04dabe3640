"""The memory pool, its slabs and the KV space of each tenant."""

from rose.memory.array import DeviceArray
from rose.memory.attention import AttentionGroup, Reach
from rose.memory.geometry import KVGeometry, Layout, choose_slab_bytes
from rose.memory.mapped import (
    ISOLATIONS,
    Isolation,
    LentSlabs,
    MappedLoans,
    check_isolation,
)
from rose.memory.space import KVArray, KVSpace

__all__ = [
    "ISOLATIONS",
    "AttentionGroup",
    "DeviceArray",
    "Isolation",
    "KVArray",
    "KVGeometry",
    "KVSpace",
    "Layout",
    "LentSlabs",
    "MappedLoans",
    "Reach",
    "check_isolation",
    "choose_slab_bytes",
]
