"""The pool, its slabs and the KV space of each tenant."""

from rose.memory.geometry import KVGeometry, Layout, choose_slab_bytes
from rose.memory.space import KVSpace

__all__ = ["KVGeometry", "KVSpace", "Layout", "choose_slab_bytes"]
