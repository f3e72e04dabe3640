"""What an observer says could have been lent."""

import pytest

from rose._core import ManualClock
from rose.engines.vllm.spare_meter import SpareMeter
from rose.executor import SLO, CoServing, KVGeometry
from rose.units import NS_PER_S

SLAB = 4096
SLABS = 16
GEOMETRY = KVGeometry(layers=1, block_tokens=16, bytes_per_token=64)  # four blocks a slab


def test_idle_time_and_spare_memory_are_weighted_by_how_long_they_lasted() -> None:
    clock = ManualClock()
    with CoServing.open("cpu", pool_bytes=(SLABS + 2) * SLAB, slab_bytes=SLAB, clock=clock) as one:
        lane = one.serving(
            GEOMETRY,
            slo=SLO(ttft_ms=20_000, tpot_ms=1000),
            reserve_bytes=2 * SLAB,
            step_tokens=16,
            request_tokens=32,
        )
        seen = SpareMeter(one)
        spare = seen.report()["lendable_bytes"]
        assert 0 < spare <= (SLABS - 2) * SLAB
        clock.advance(3 * NS_PER_S)
        assert lane.ensure(SLABS * 4)
        blocks = lane.alloc(SLABS * 4)
        assert blocks is not None
        seen.note(is_idle=False)  # From now on serving has all memory.
        clock.advance(1 * NS_PER_S)
        said = seen.report()
        assert said["observed_s"] == pytest.approx(4)
        assert said["idle_share"] == pytest.approx(0.75)
        assert (said["lendable_bytes"], said["lendable_bytes_least"]) == (0, 0)
        assert said["lendable_bytes_mean"] == pytest.approx(0.75 * spare)
        lane.kv.allocator.free(blocks)
