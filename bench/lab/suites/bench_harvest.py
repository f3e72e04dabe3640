"""Harvest of rollouts in virtual time and harm to serving: rose and a clairvoyant scheduler.

The trace is bursty and has the lengths of the Azure chat trace. It is stretched until serving alone
is busy for 87.5 % of the time. A request counts as a miss if its first token is late or its longest
gap exceeds the target, and as an excess miss if it would have met its targets with serving alone.
Shares are medians over the seeds, misses are sums over them.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import pytest

from bench.conftest import Report
from bench.rows import Bar, Peer
from rose.slo import SLO, Policy
from rose_lab.sim import (
    ArmOutcome,
    DeviceModel,
    Request,
    RequestOutcome,
    at_load,
    default_policy,
    excess_late_share,
    excess_misses,
    stretched,
)
from rose_lab.sim import simulate as simulate_one
from rose_lab.traces import generate

SECONDS, SECONDS_QUICK = 60, 10
SEEDS: Final = (0, 1, 2)
RATE_RPS: Final = 2.5  # before the load is scaled
BUSY: Final = 0.875
PROMPT_MAX: Final = 4096  # 99 % of the Azure trace's prompts are shorter
TTFT_MS: Final = 500.0
TPOTS_MS: Final = (25.0, 50.0)
HARVESTS: Final = {25.0: Bar(at_least=0.40), 50.0: Bar(at_least=0.60)}
DEVICE: Final = DeviceModel()
NOISY: Final = replace(DEVICE, noise=0.1)


@cache
def trace(seed: int, seconds: int) -> tuple[Request, ...]:
    """Return requests; the rate of each second is drawn from an exponential distribution."""
    random = np.random.default_rng(seed)
    counts = random.poisson(RATE_RPS * random.exponential(1.0, seconds))
    arrival_s = np.sort(np.repeat(np.arange(seconds), counts) + random.random(counts.sum()))
    lengths = generate("chat", duration_s=2 * seconds, rate_rps=2 * RATE_RPS, seed=seed)
    lengths = lengths.with_lengths(prompt_max=PROMPT_MAX)
    columns = zip(arrival_s, lengths.prompt_tokens, lengths.output_tokens, strict=False)
    requests = [
        Request(1e3 * float(at), int(prompt), int(output)) for at, prompt, output in columns
    ]
    return tuple(at_load(stretched(requests), DEVICE, busy=BUSY, seed=seed))


@dataclass(frozen=True, slots=True)
class Arms:
    """Outcomes of a scheme, and of serving alone, on the traces of all seeds."""

    outcomes: tuple[ArmOutcome, ...]
    alone: tuple[ArmOutcome, ...]
    slo: SLO

    @property
    def harvest(self) -> float:
        return statistics.median(one.harvest for one in self.outcomes)

    @property
    def excess(self) -> int:
        pairs = zip(self.outcomes, self.alone, strict=True)
        return sum(len(excess_misses(one, alone, slo=self.slo)) for one, alone in pairs)

    @property
    def excess_late_share(self) -> float:
        pairs = zip(self.outcomes, self.alone, strict=True)
        return max(excess_late_share(one, alone, slo=self.slo) for one, alone in pairs)

    @property
    def excess_by_mean(self) -> int:
        """Excess misses by the mean gap instead of the longest."""
        pairs = zip(self.outcomes, self.alone, strict=True)
        return sum(
            self._meets_by_mean(before) and not self._meets_by_mean(now)
            for one, alone in pairs
            for now, before in zip(one.requests, alone.requests, strict=True)
        )

    def _meets_by_mean(self, one: RequestOutcome) -> bool:
        return one.ttft_ms <= self.slo.ttft_ms and one.mean_tpot_ms <= self.slo.tpot_ms

    @property
    def requests(self) -> int:
        return sum(len(one.requests) for one in self.outcomes)

    def over(self, other: "Arms") -> float:
        """Return the median of the paired ratios of their harvests."""
        pairs = zip(self.outcomes, other.outcomes, strict=True)
        return statistics.median(mine.harvest / theirs.harvest for mine, theirs in pairs)


class Traffic:
    """Runs schemes on the same traces, each arm once."""

    def __init__(self, seconds: int, seeds: Sequence[int]) -> None:
        self._seconds = seconds
        self._seeds = seeds
        self._run = cache(self._simulate)

    def arms(
        self,
        scheme: str,
        *,
        tpot_ms: float,
        device: DeviceModel = DEVICE,
        policy: Policy | None = None,
    ) -> Arms:
        slo = SLO(ttft_ms=TTFT_MS, tpot_ms=tpot_ms)
        return Arms(
            outcomes=self._run(scheme, slo, device, policy),
            alone=self._run("alone", slo, device, None),
            slo=slo,
        )

    def _simulate(
        self, scheme: str, slo: SLO, device: DeviceModel, policy: Policy | None
    ) -> tuple[ArmOutcome, ...]:
        return tuple(
            simulate_one(
                trace(seed, self._seconds), device, scheme, slo=slo, policy=policy, seed=seed
            )
            for seed in self._seeds
        )


@pytest.fixture(scope="module")
def traffic(request: pytest.FixtureRequest) -> Traffic:
    is_quick = bool(request.config.getoption("--quick"))
    return Traffic(SECONDS_QUICK, SEEDS[:1]) if is_quick else Traffic(SECONDS, SEEDS)


def test_serving_alone_is_busy(report: Report, traffic: Traffic) -> None:
    report.once(lambda: traffic.arms("alone", tpot_ms=25.0))
    busy = [one.busy for one in traffic.arms("alone", tpot_ms=25.0).outcomes]
    report.add("serving_alone_busy", statistics.median(busy), "share", bar=Bar(0.85, 0.90))


def test_harvest(report: Report, traffic: Traffic) -> None:
    def run() -> None:
        for tpot_ms in TPOTS_MS:
            traffic.arms("rose_slack", tpot_ms=tpot_ms)
            traffic.arms("clairvoyant", tpot_ms=tpot_ms)

    report.once(run)
    excess = 0
    for tpot_ms, bar in HARVESTS.items():
        rose = traffic.arms("rose_slack", tpot_ms=tpot_ms)
        clairvoyant = traffic.arms("clairvoyant", tpot_ms=tpot_ms)
        peer = Peer("clairvoyant", clairvoyant.harvest, "share")
        name = f"tpot{tpot_ms:.0f}"
        report.add(f"harvest_{name}", rose.harvest, "share", peer=peer, bar=bar)
        ratio = rose.over(clairvoyant)
        report.add(f"harvest_over_clairvoyant_{name}", ratio, "ratio", bar=Bar(at_least=0.90))
        report.add(f"excess_slo_misses_clairvoyant_{name}", clairvoyant.excess, "requests")
        excess += rose.excess
    report.add("excess_slo_misses", excess, "requests", bar=Bar(at_most=0))


def test_harvest_of_other_engines(report: Report, traffic: Traffic) -> None:
    """An engine that plans its step late leaves room for a chunk; smaller chunks need less room."""
    late = replace(DEVICE, commits_batch=False)
    devices = {"late_batch": late, "late_batch_chunk256": replace(late, chunk_tokens=256)}

    def run() -> None:
        for device in devices.values():
            traffic.arms("rose_slack", tpot_ms=25.0, device=device)

    report.once(run)
    for name, device in devices.items():
        arms = traffic.arms("rose_slack", tpot_ms=25.0, device=device)
        report.add(f"harvest_{name}_tpot25", arms.harvest, "share")
        report.add(f"excess_slo_misses_{name}_tpot25", arms.excess, "requests")


def test_harvest_with_noise(report: Report, traffic: Traffic) -> None:
    """Count late tokens, because a certificate may be wrong for a share epsilon of the steps."""
    report.once(lambda: traffic.arms("rose_slack", tpot_ms=25.0, device=NOISY))
    epsilon = default_policy(NOISY).epsilon
    for tpot_ms in TPOTS_MS:
        name = f"noise_tpot{tpot_ms:.0f}"
        rose = traffic.arms("rose_slack", tpot_ms=tpot_ms, device=NOISY)
        report.add(f"harvest_{name}", rose.harvest, "share")
        late = rose.excess_late_share
        report.add(f"excess_late_tokens_share_{name}", late, "share", bar=Bar(at_most=epsilon))
        requests = rose.excess / rose.requests
        report.add(f"excess_slo_misses_share_{name}", requests, "share")
        mean = rose.excess_by_mean / rose.requests
        report.add(f"excess_mean_tpot_misses_share_{name}", mean, "share", bar=Bar(at_most=epsilon))


def test_idle_mode(report: Report, traffic: Traffic) -> None:
    report.once(lambda: traffic.arms("rose_idle", tpot_ms=25.0))
    rose = traffic.arms("rose_idle", tpot_ms=25.0)
    pairs = zip(rose.outcomes, rose.alone, strict=True)
    idle = statistics.median(one.harvest / (1 - alone.busy) for one, alone in pairs)
    report.add("idle_harvested", idle, "share", bar=Bar(at_least=0.90))
    report.add("idle_excess_slo_misses", rose.excess, "requests", bar=Bar(at_most=0))
