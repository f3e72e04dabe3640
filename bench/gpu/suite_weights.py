"""The borrower's weights on a device: an activation compared with one copy of the same bytes."""

from typing import Any, Final

from bench.gpu.lanes import Lanes
from bench.gpu.report import Report
from bench.paired import Pairs, quantile, timed
from bench.rows import Bar, Peer
from rose.errors import check
from rose.units import KIB, MIB

SLAB_BYTES: Final = 32 * MIB
POOL_BYTES: Final = 2560 * MIB
# A decoder in bf16 with a hidden size of 2048.
LAYER: Final = (8 * MIB, 2 * MIB, 2 * MIB, 8 * MIB, 22 * MIB, 22 * MIB, 22 * MIB, 4 * KIB, 4 * KIB)
SIZES: Final = (64 * MIB, *(11 * LAYER), 4 * KIB)
ROUNDS: Final = 15

ROWS: Final = ("weight_activation_over_copy", "weight_activation_gb_s", "weight_eviction_us_p50")


class Leased:
    """Weights in page-locked host memory, and a lane of a device to lease slabs on."""

    def __init__(self) -> None:
        import torch

        from rose.executor import SLO, CoServing, KVGeometry, Policy, WeightsLease

        self.source = torch.randint(0, 256, (sum(SIZES),), dtype=torch.uint8).pin_memory()
        rows, start = [], 0
        for size in SIZES:
            rows.append(self.source[start : start + size].numpy())
            start += size
        kv = KVGeometry(layers=16, block_tokens=16, bytes_per_token=32 * KIB)
        self.device = CoServing.open(
            "cuda:0",
            pool_bytes=POOL_BYTES,
            slab_bytes=SLAB_BYTES,
            policy=Policy(
                regrow_after_ms=0, aborts_per_s=1e6, latency_prior_ms=(500.0, 0.0, 0.0, 0.0, 0.0)
            ),
        )
        self.device.serving(
            kv,
            slo=SLO(ttft_ms=100_000, tpot_ms=1000),
            reserve_bytes=SLAB_BYTES,
            step_tokens=256,
            request_tokens=512,
        )
        self.lane = self.device.rollout(kv, limit_bytes=POOL_BYTES)
        self.lease = WeightsLease(self.lane, rows)
        self.evictions_ns: list[float] = []

    def activate(self) -> None:
        """Load the weights to the device; all copies are complete on return."""
        from rose.executor.weights import WeightsState

        self.lease.activate()
        check(self.lease.state is WeightsState.ACTIVE, "the weights got no slabs")

    def activate_ns(self) -> float:
        took_ns = timed(self.activate)()
        self.evictions_ns.append(timed(self.lease.evict)())
        return took_ns


def measure(report: Report) -> None:
    with report.rows(*ROWS):
        import torch

        from rose.engines.torch import as_tensor

        Lanes()  # the shared context of torch and rose
        leased = Leased()
        kv: Any = leased.lane.kv
        target = as_tensor(kv.flat(), torch.device("cuda:0"))[-sum(SIZES) :]

        def bare_copy() -> None:
            target.copy_(leased.source, non_blocking=True)
            torch.cuda.current_stream().synchronize()

        pairs = Pairs(leased.activate_ns, timed(bare_copy))
        for _ in range(ROUNDS):
            pairs.round()
        paired = pairs.result()
        report.add_ratio(
            "weight_activation_over_copy",
            paired,
            peer=Peer("one bare copy of the same bytes", paired.peer * 1e-6, "ms"),
            bar=Bar(at_most=1.3),
        )
        report.add("weight_activation_gb_s", sum(SIZES) / paired.subject, "GB/s")
        report.add("weight_eviction_us_p50", quantile(leased.evictions_ns, 0.5) * 1e-3, "us")
        leased.lease.close()
        leased.device.close()
