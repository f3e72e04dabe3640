"""What the connector relies on in vLLM, and what is refused."""

from pathlib import Path

import pytest

from rose.errors import Unavailable
from tests.engines.vllm.rig import Pair

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("found", ["0.31.9", "0.330.0", "1.0.0"])
def test_another_version_is_unavailable(vllm, monkeypatch, log_path: Path, found: str) -> None:
    from rose.engines.vllm import guard

    monkeypatch.setattr(guard, "__version__", found)
    with pytest.raises(Unavailable, match=f"vLLM {found} is not supported"):
        Pair(vllm, log_path, slabs=64)


def test_another_signature_is_unavailable(vllm, monkeypatch) -> None:
    from rose.engines.vllm import guard

    guard.check_version()
    for name in list(guard._SIGNATURES):
        with monkeypatch.context() as one:
            one.setitem(guard._SIGNATURES, name, "self surprise")
            with pytest.raises(Unavailable, match=f"changed {name}: .* 'self surprise', got"):
                guard.check_version()


def test_vllm_is_as_it_was_when_a_scheduler_is_built(vllm, log_path: Path) -> None:
    from vllm.v1.core import kv_cache_coordinator
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched import scheduler

    from rose.engines.vllm.block_pool import LeasedBlockPool

    with Pair(vllm, log_path, slabs=64) as pair:
        assert scheduler.KVCacheManager is KVCacheManager
        assert kv_cache_coordinator.BlockPool is BlockPool
        pools = [one.kv_cache_manager.block_pool for one in (pair.serving, pair.borrower)]
        assert [type(pool) for pool in pools] == [LeasedBlockPool, LeasedBlockPool]
        for one, pool in zip((pair.serving, pair.borrower), pools, strict=True):
            managers = one.kv_cache_manager.coordinator.single_type_managers
            assert all(manager.block_pool is pool for manager in managers)
        stock = vllm.scheduler(**vllm.of_scheduler(blocks=64))
        assert type(stock.kv_cache_manager.block_pool) is BlockPool
