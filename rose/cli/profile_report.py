"""What was measured of serving, what the broker would have lent of it, and how that is reported."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from rose.cli.price import PRICE_HEADERS, price_text
from rose.demo.numbers import duration, number, percent, percentile, plain, print_rows, ratio
from rose.errors import InvalidArgument
from rose.scheduler.broker import Broker, Move, Observation, ServingDevice, Unread
from rose.sim.outcome import PRICES
from rose.slo import SLO
from rose.units import GIB, MIB, MS_PER_S

# The size at which whole slabs hardly round: those of a device are between 2 and 128 MiB.
SLAB_BYTES: Final = 32 * MIB


@dataclass(frozen=True, slots=True)
class Pool:
    """The memory that is looked at.

    Args:
        kv_bytes: of serving's KV pool.
        reserve_bytes: of it that no loan touches.
        slab_bytes: the least that is lent.
    """

    kv_bytes: int
    reserve_bytes: int
    slab_bytes: int

    def device(self, slo: SLO) -> ServingDevice:
        """Return the device with this pool and these targets.

        Raises:
            InvalidArgument: the reserve leaves nothing of the pool.
        """
        if self.reserve_bytes >= self.kv_bytes:
            raise InvalidArgument(
                f"a reserve of {self.reserve_bytes / GIB:.1f} GiB leaves nothing of a KV pool of "
                f"{self.kv_bytes / GIB:.1f} GiB; give a smaller --reserve-gib"
            )
        return ServingDevice(
            name="device",
            kv_bytes=self.kv_bytes,
            reserve_bytes=self.reserve_bytes,
            slab_bytes=self.slab_bytes,
            slo=slo,
        )


@dataclass(frozen=True, slots=True)
class ProfileAsked:
    """What is to be measured.

    Args:
        source: URL of an engine, or path of a trace.
        seconds: how long.
        every_s: between two readings.
        slos: that are asked about.
        model: whose KV it is; None for what the engine says, or the 8B of `DeviceModel`.
        kv_bytes: of serving's pool; None for what an engine says, or the standard of a trace.
        reserve_bytes: of the pool that no loan touches.
        load: of a trace: share of the time in which serving alone is busy; None for its own rate.
        gpu: of a trace: a device of the table of rooflines; None for the H200 of `DeviceModel`.
        noise: of a trace: standard deviation of the logarithm of a step's time.
        seed: of the noise.
    """

    source: str
    seconds: float
    every_s: float
    slos: tuple[SLO, ...]
    model: str | None
    kv_bytes: int | None
    reserve_bytes: int
    load: float | None
    gpu: str | None
    noise: float | None
    seed: int

    def pool(self, kv_bytes: int) -> Pool:
        """Return the pool of that size.

        Raises:
            InvalidArgument: the reserve leaves nothing of it.
        """
        pool = Pool(kv_bytes, self.reserve_bytes, SLAB_BYTES)
        pool.device(self.slos[0])
        return pool


@dataclass(frozen=True, slots=True)
class Compute:
    """What rollouts would get of the device's compute under one pair of targets.

    Args:
        share: of the time, 0 to 1; None when it cannot be said.
        met_alone: the share of requests, or of readings, in which serving without rollouts meets
            both targets; None when there were none.
        excess_late_share: of all tokens, late because of rollouts; None where rollouts did not run.
        price: what the share costs serving, as `rose.sim.outcome.price` has it; None likewise.
    """

    share: float | None
    met_alone: float | None
    excess_late_share: float | None = None
    price: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """How serving was over time.

    Args:
        source: the URL, or the name of the trace.
        kind: "engine" or "trace".
        how: one sentence on how compute was found.
        pool: of the device.
        observations: in the order of time; their device's targets are any.
        compute: for each of `slos`.
        slos: that are asked about.
        every_ms: between two observations, as planned.
        failures: readings that failed, as (time, one sentence).
        settings: what it was asked for.
        is_complete: False when it was interrupted.
    """

    source: str
    kind: str
    how: str
    pool: Pool
    observations: tuple[Observation, ...]
    compute: tuple[Compute, ...]
    slos: tuple[SLO, ...]
    every_ms: float
    failures: tuple[tuple[float, str], ...]
    settings: dict[str, object]
    is_complete: bool


_CONFIDENCE: Final = 0.95
_S_PER_HOUR: Final = 3600.0
_FORMAT: Final = 1
_REASONS_MAX: Final = 3


def lent_row(measured: Measured, slo: SLO, compute: Compute) -> dict[str, Any]:
    """Replay what was measured to a broker, and return what a pair of targets would have lent.

    How long each loan was held is the time until the next decision: nobody knows of the last one.
    Of `revocations_per_hour_most`, more are seen in 1 of 20 cases: a short time says little.
    """
    device = measured.pool.device(slo)
    readings = [(one.at_ms, replace(one, device=device)) for one in measured.observations] + [
        (at_ms, Unread(device, why)) for at_ms, why in measured.failures
    ]
    readings.sort(key=lambda one: one[0])
    broker = Broker(device, reading_ms=measured.every_ms)
    decisions = [(at_ms, broker.decide(reading, at_ms)) for at_ms, reading in readings]
    held = [
        ((later_ms - at_ms) / MS_PER_S, one.lend_bytes)
        for (at_ms, one), (later_ms, _) in pairwise(decisions)
    ]
    total_s = sum(s for s, _ in held)
    longest_s = run_s = 0.0
    for s, size in held:
        run_s = run_s + s if size else 0.0
        longest_s = max(longest_s, run_s)
    taken = sum(one.move in {Move.SHRINK, Move.END} for _, one in decisions)
    kept = {Move.SHRINK, Move.END, Move.REFUSE}
    reasons = Counter(_kind(one.why) for _, one in decisions if one.move in kept)
    common = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[:_REASONS_MAX]
    hours = total_s / _S_PER_HOUR
    return {
        "ttft_ms": slo.ttft_ms,
        "tpot_ms": slo.tpot_ms,
        "met_alone": compute.met_alone,
        "compute_share": compute.share,
        "excess_late_share": compute.excess_late_share,
        **(compute.price or dict.fromkeys(PRICES)),
        "lent_gib_mean": sum(s * size for s, size in held) / total_s / GIB if total_s else 0.0,
        "lent_gib_peak": max((one.lend_bytes for _, one in decisions), default=0) / GIB,
        "lent_share": sum(s for s, size in held if size) / total_s if total_s else 0.0,
        "revocations": taken,
        "revocations_per_hour": ratio(taken, hours),
        "revocations_per_hour_most": ratio(poisson_most(taken), hours),
        "longest_lend_s": longest_s,
        "reasons": [{"why": why, "readings": count} for why, count in common],
        "lent": [[at_ms / MS_PER_S, one.lend_bytes / GIB] for at_ms, one in decisions],
    }


def poisson_most(count: int) -> float:
    """Return the largest mean under which so few events are seen in 1 of 20 cases, by bisection."""
    low, high = 0.0, 2.0 * count + 20.0
    for _ in range(60):
        mean = (low + high) / 2
        logs = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1)]
        at_most = sum(math.exp(one) for one in logs)
        low, high = (mean, high) if at_most > 1 - _CONFIDENCE else (low, mean)
    return high


def _kind(why: str) -> str:
    """Return a reason without its numbers, so that it can be counted."""
    if why.startswith("calm must last"):
        return "calm had not lasted long enough"
    if " have a P99 of " in why:
        return f"the tail of {why.split(' have ', maxsplit=1)[0]} came too close to its target"
    if " requests " in why:
        return f"requests {why.split(' requests ')[1]}"
    return why


def profile_report(measured: Measured, *, command: str, machine: dict[str, Any]) -> dict[str, Any]:
    """Return what `profile.json` holds; keys are only ever added while the format is the same."""
    seen = measured.observations
    used = [one.kv_used for one in seen]
    report = {
        "format": _FORMAT,
        "kind": measured.kind,
        "source": measured.source,
        "how": measured.how,
        "complete": measured.is_complete,
        "command": command,
        "kv_gib": measured.pool.kv_bytes / GIB,
        "reserve_gib": measured.pool.reserve_bytes / GIB,
        "measured_s": (seen[-1].at_ms - seen[0].at_ms) / MS_PER_S if seen else 0.0,
        "readings": len(seen),
        "failures": [{"at_s": at_ms / MS_PER_S, "why": why} for at_ms, why in measured.failures],
        "kv_used": {"mean": _mean(used), "p99": percentile(used, 99), "max": max(used, default=0)},
        "rows": [
            lent_row(measured, slo, compute)
            for slo, compute in zip(measured.slos, measured.compute, strict=True)
        ],
        "series": _series(measured),
        "settings": measured.settings,
        "machine": machine,
    }
    report["verdict"] = _verdict(report)
    answer: dict[str, Any] = plain(report)
    return answer


def _series(measured: Measured) -> dict[str, list[float | None]]:
    seen = measured.observations
    kv_gib = measured.pool.kv_bytes / GIB
    return {
        "at_s": [one.at_ms / MS_PER_S for one in seen],
        "used_gib": [one.kv_used * kv_gib for one in seen],
        "running": [float(one.running) for one in seen],
        "waiting": [float(one.waiting) for one in seen],
        "ttft_ms_p99": [one.ttft_ms_p99 for one in seen],
        "tpot_ms_p99": [one.tpot_ms_p99 for one in seen],
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _verdict(report: dict[str, Any]) -> str:
    """Say the most important number in one sentence."""
    rows = [row for row in report["rows"] if row["lent_gib_mean"] > 0]
    early = "" if report["complete"] else "Stopped early: "
    if not rows:
        reasons = [one["why"] for row in report["rows"] for one in row["reasons"][:1]]
        why = f": {reasons[0]}" if reasons else ""
        return f"{early}nothing could have been lent{why}."
    best = max(rows, key=lambda row: (row["compute_share"] or 0.0, row["lent_gib_mean"]))
    share = best["compute_share"]
    compute = "compute unknown" if share is None else f"{share:.0%} of the compute"
    return (
        f"{early}{compute} and {best['lent_gib_mean']:.1f} GiB of KV on average could have been "
        f"lent under targets of {best['ttft_ms']:g} ms to the first token and "
        f"{best['tpot_ms']:g} ms for each later one."
    )


_HEADERS: Final = (
    "targets, ms\nfirst/later",
    "met\nalone",
    "share of\ncompute",
    *PRICE_HEADERS,
    "KV lent\nGiB mean",
    "\nGiB most",
    "lent, of\nthe time",
    "revocations\nan hour",
    "\n95 % below",
    "longest\nlend",
)


def print_profile(report: Mapping[str, Any], console: Console) -> None:
    """Print what was measured, a row for each pair of targets, and the verdict."""
    for sentence in _sentences(report):
        console.print(sentence, markup=False, soft_wrap=True)
    print_rows(console, _HEADERS, _rows(report))
    console.print(report["how"], markup=False, soft_wrap=True)
    console.print(Text(report["verdict"], style="bold"), soft_wrap=True)


def _sentences(report: Mapping[str, Any]) -> list[str]:
    used = report["kv_used"]
    what = (
        f"{report['source']}: {report['readings']} readings in {duration(report['measured_s'])}; "
        f"a KV pool of {report['kv_gib']:.1f} GiB, of which serving held {percent(used['mean'])} "
        f"on average and {percent(used['max'])} at most, and {report['reserve_gib']:.1f} GiB are "
        f"its reserve"
    )
    found = [what]
    if report["failures"]:
        last = report["failures"][-1]["why"]
        count = len(report["failures"])
        found.append(f"{count} reading{'s' * (count > 1)} failed, the last because {last}")
    return found


def _rows(report: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            f"{row['ttft_ms']:g}/{row['tpot_ms']:g}",
            percent(row["met_alone"]),
            percent(row["compute_share"]),
            price_text(row, "ttft"),
            price_text(row, "tpot"),
            number(row["lent_gib_mean"]),
            number(row["lent_gib_peak"]),
            percent(row["lent_share"]),
            number(row["revocations_per_hour"]),
            number(row["revocations_per_hour_most"]),
            duration(row["longest_lend_s"]),
        ]
        for row in report["rows"]
    ]
