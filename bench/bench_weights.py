"""The borrower's weights as a lease: cost of keeping them, and of evicting them."""

import numpy as np
import numpy.typing as npt

from bench.conftest import Report
from bench.paired import quantile, timed
from bench.rows import Bar, Peer
from rose.errors import check
from rose.executor import SLO, CoServing, KVGeometry, Policy, WeightsLease
from rose.executor.weights import WeightsState
from rose.units import KIB, MIB

KV = KVGeometry(layers=16, block_tokens=16, bytes_per_token=32 * KIB)
SLAB_BYTES = 32 * MIB
POOL_BYTES = 640 * MIB

# A bf16 decoder with hidden size 2048, reduced to three layers; norms are small.
LAYER = (8 * MIB, 2 * MIB, 2 * MIB, 8 * MIB, 22 * MIB, 22 * MIB, 22 * MIB, 4 * KIB, 4 * KIB)
SIZES = (64 * MIB, *(3 * LAYER), 4 * KIB)


def host_rows() -> list[npt.NDArray[np.uint8]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 256, size, dtype=np.uint8) for size in SIZES]


def test_weight_activation_over_copy(report: Report) -> None:
    rows = host_rows()
    source = np.concatenate(rows)
    evictions_ns: list[float] = []
    with CoServing.open(
        "cpu",
        pool_bytes=POOL_BYTES,
        slab_bytes=SLAB_BYTES,
        policy=Policy(regrow_after_ms=0, aborts_per_s=1e6),
    ) as device:
        device.serving(
            KV,
            slo=SLO(ttft_ms=1000, tpot_ms=100),
            reserve_bytes=SLAB_BYTES,
            step_tokens=256,
            request_tokens=512,
        )
        lane = device.rollout(KV, limit_bytes=POOL_BYTES)
        lease = WeightsLease(lane, rows)

        def activate_ns() -> float:
            took_ns = timed(lease.activate)()
            check(lease.state is WeightsState.ACTIVE, "the weights got no slabs")
            evictions_ns.append(timed(take_back)())
            check(not lease.slabs, "the weights kept slabs")
            device.arbiter.give_back(0, lease.slabs_max)
            return took_ns

        def take_back() -> None:
            deadline_ns = device.arbiter.now_ns() + 10**9
            device.arbiter.revoke(
                lane.kv.partition, lease.slabs_max, deadline_ns=deadline_ns, taker=0
            )
            lease.give_up(lane.leaving())

        # The copy goes into the pool too, because pages of its shared memory may have another size.
        target = device.arbiter.pool_view()[-len(source) :]
        paired = report.pairs(activate_ns, timed(lambda: np.copyto(target, source)), rounds=41)
    report.add_ratio(
        "weight_activation_over_copy",
        paired,
        peer=Peer("one bare copy of the same bytes", paired.peer * 1e-6, "ms"),
        bar=Bar(at_most=1.3),
    )
    report.add("weight_activation_gb_s", sum(SIZES) / paired.subject, "GB/s")
    report.add("weight_eviction_us_p50", quantile(evictions_ns, 0.5) * 1e-3, "us")
    report.add("weight_eviction_us_p99", quantile(evictions_ns, 0.99) * 1e-3, "us")
