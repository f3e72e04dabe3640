"""A profile as one value of plain JSON, which table, page and file are made of."""

from typing import Any, Final

from rose.cli.profile_lending import Lent, lend
from rose.cli.profile_measured import Compute, Measured
from rose.demo.numbers import percentile, plain
from rose.slo import SLO
from rose.units import GIB, MS_PER_S

_FORMAT: Final = 1
_REASONS_MAX: Final = 3


def profile_report(measured: Measured, *, command: str, machine: dict[str, Any]) -> dict[str, Any]:
    """Return what `profile.json` holds; keys are only ever added while the format is the same."""
    seen = measured.observations
    rows = [
        (slo, compute, lend(measured, slo))
        for slo, compute in zip(measured.slos, measured.compute, strict=True)
    ]
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
        "rows": [_row(slo, compute, lent) for slo, compute, lent in rows],
        "series": _series(measured),
        "settings": measured.settings,
        "machine": machine,
    }
    report["verdict"] = _verdict(report)
    answer: dict[str, Any] = plain(report)
    return answer


def _row(slo: SLO, compute: Compute, lent: Lent) -> dict[str, Any]:
    return {
        "ttft_ms": slo.ttft_ms,
        "tpot_ms": slo.tpot_ms,
        "met_alone": compute.met_alone,
        "compute_share": compute.share,
        "excess_late_share": compute.excess_late_share,
        "lent_gib_mean": lent.mean_bytes / GIB,
        "lent_gib_peak": lent.peak_bytes / GIB,
        "lent_share": lent.lent_share,
        "revocations": lent.revocations,
        "revocations_per_hour": lent.per_hour,
        "revocations_per_hour_most": lent.per_hour_most,
        "longest_lend_s": lent.longest_s,
        "reasons": [{"why": why, "readings": count} for why, count in lent.reasons[:_REASONS_MAX]],
        "lent": [
            [at_ms / MS_PER_S, size / GIB]
            for at_ms, size in zip(lent.at_ms, lent.lend_bytes, strict=True)
        ],
    }


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
