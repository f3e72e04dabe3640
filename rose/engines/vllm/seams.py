"""Replaces the names by which vLLM's constructors find their KV cache manager and block pool."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from vllm.v1.core import kv_cache_coordinator
from vllm.v1.core.sched import scheduler

from rose.engines.lane import KVLane
from rose.engines.vllm.block_pool import LeasedBlockPool
from rose.engines.vllm.guard import check_version
from rose.engines.vllm.kv_slots import LeasedKVCacheManager


@contextmanager
def pool_of(lane: KVLane) -> Iterator[None]:
    """Make a scheduler that is built in this context take its blocks from `lane`.

    The names are globals of vLLM's modules, so build one scheduler at a time.

    Raises:
        Unavailable: the installed vLLM is not supported.
    """
    check_version()
    with ExitStack() as undo:
        _stand_in(undo, scheduler, "KVCacheManager", LeasedKVCacheManager)
        _stand_in(undo, kv_cache_coordinator, "BlockPool", partial(LeasedBlockPool, lane))
        yield


def _stand_in(undo: ExitStack, module: Any, name: str, value: Any) -> None:
    undo.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)
