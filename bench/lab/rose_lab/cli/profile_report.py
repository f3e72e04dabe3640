"""Measurements of an engine, the decisions of a broker that reads them, and the report."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from rose.slo import SLO
from rose.units import GIB, MS_PER_S
from rose_lab.broker import Broker, LoanChange, Observation, ServingDevice, Unread
from rose_lab.numbers import duration, number, percent, percentile, plain, print_rows, ratio


@dataclass(frozen=True, slots=True)
class ProfileAsked:
    """The request for a measurement.

    Args:
        url: address of the engine.
        seconds: duration.
        every_s: interval between readings.
        slos: targets to evaluate, at least one.
        model: model that determines KV sizes; None for the model that the engine reports.
        kv_bytes: size of serving's KV pool; None for the size that the engine reports.
        reserve_bytes: part of the pool that is never lent.
    """

    url: str
    seconds: float
    every_s: float
    slos: tuple[SLO, ...]
    model: str | None
    kv_bytes: int | None
    reserve_bytes: int


@dataclass(slots=True)
class Measured:
    """Measurements of serving over time.

    Args:
        asked: the request.
        device: serving's device, with the first pair of targets.
        engine: "vLLM" or "SGLang".
        model: name of the model, if known.
        observations: successful readings in time order.
        failures: (milliseconds since the start, reason in one sentence) of each failed reading.
        is_complete: False after an interrupt, or if the engine disappeared.
    """

    asked: ProfileAsked
    device: ServingDevice
    engine: str
    model: str | None
    observations: list[Observation] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)
    is_complete: bool = False


_S_PER_HOUR: Final = 3600.0
_FORMAT: Final = 2
_REASONS_MAX: Final = 3
_HOW: Final = (
    "The share of compute is an estimate. It counts the whole time in which no request ran; of the "
    "other time it counts the part of the TPOT target that the P99 of TPOT leaves free. "
    "Certificates judge each step separately, and steps take longer when requests stay longer, so "
    "certificates may grant less or more."
)


def lent_row(measured: Measured, slo: SLO) -> dict[str, Any]:
    """Replay the readings to a broker, and return the loans under one pair of targets.

    Each decision holds until the next one, so the last decision has no duration.
    """
    device = replace(measured.device, slo=slo)
    readings = [(one.at_ms, replace(one, device=device)) for one in measured.observations] + [
        (at_ms, Unread(device, why)) for at_ms, why in measured.failures
    ]
    readings.sort(key=lambda one: one[0])
    broker = Broker(device, reading_ms=measured.asked.every_s * MS_PER_S)
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
    taken = sum(one.move in {LoanChange.SHRINK, LoanChange.END} for _, one in decisions)
    kept = {LoanChange.SHRINK, LoanChange.END, LoanChange.REFUSE}
    reasons = Counter(_kind(one.why) for _, one in decisions if one.move in kept)
    common = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[:_REASONS_MAX]
    return {
        "ttft_ms": slo.ttft_ms,
        "tpot_ms": slo.tpot_ms,
        "met_alone": _mean(_is_met(one, slo) for one in measured.observations),
        "compute_share": _mean(_share(one, slo) for one in measured.observations),
        "lent_gib_mean": sum(s * size for s, size in held) / total_s / GIB if total_s else 0.0,
        "lent_gib_peak": max((one.lend_bytes for _, one in decisions), default=0) / GIB,
        "lent_share": sum(s for s, size in held if size) / total_s if total_s else 0.0,
        "revocations": taken,
        "revocations_per_hour": ratio(taken, total_s / _S_PER_HOUR),
        "longest_lend_s": longest_s,
        "reasons": [{"why": why, "readings": count} for why, count in common],
        "lent": [[at_ms / MS_PER_S, one.lend_bytes / GIB] for at_ms, one in decisions],
    }


def _share(seen: Observation, slo: SLO) -> float | None:
    """Return the idle share of the device around one reading; None if unknown."""
    if not (seen.running or seen.waiting):
        return 1.0
    if seen.tpot_ms_p99 is None:
        return None
    if _is_met(seen, slo) is False:
        return 0.0
    # P99 and not the mean, because prefills of other requests and larger batches lengthen steps.
    return max(0.0, 1 - seen.tpot_ms_p99 / slo.tpot_ms)


def _is_met(seen: Observation, slo: SLO) -> bool | None:
    """Return whether serving met its targets around one reading; None if unknown."""
    tails = ((seen.ttft_ms_p99, slo.ttft_ms), (seen.tpot_ms_p99, slo.tpot_ms))
    known = [p99_ms <= target_ms for p99_ms, target_ms in tails if p99_ms is not None]
    return all(known) if known else None


def _kind(why: str) -> str:
    """Return a reason without its numbers, so that equal reasons can be counted."""
    if why.startswith("calm must last"):
        return "calm had not lasted long enough"
    if " have a P99 of " in why:
        return f"the tail of {why.split(' have ', maxsplit=1)[0]} came too close to its target"
    if " requests " in why:
        return f"requests {why.split(' requests ')[1]}"
    return why


def profile_report(measured: Measured, *, command: str, machine: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `profile.json`; within one format, keys are only ever added."""
    seen, device, asked = measured.observations, measured.device, measured.asked
    used = [one.kv_used for one in seen]
    report = {
        "format": _FORMAT,
        "source": asked.url,
        "how": _HOW,
        "complete": measured.is_complete,
        "command": command,
        "kv_gib": device.kv_bytes / GIB,
        "reserve_gib": device.reserve_bytes / GIB,
        "measured_s": (seen[-1].at_ms - seen[0].at_ms) / MS_PER_S if seen else 0.0,
        "readings": len(seen),
        "failures": [{"at_s": at_ms / MS_PER_S, "why": why} for at_ms, why in measured.failures],
        "kv_used": {"mean": _mean(used), "p99": percentile(used, 99), "max": max(used, default=0)},
        "rows": [lent_row(measured, slo) for slo in asked.slos],
        "series": _series(measured),
        "settings": {
            "engine": measured.engine,
            "model": measured.model,
            "seconds": asked.seconds,
            "every_s": asked.every_s,
        },
        "machine": machine,
    }
    report["verdict"] = _verdict(report)
    answer: dict[str, Any] = plain(report)
    return answer


def _series(measured: Measured) -> dict[str, list[float | None]]:
    seen = measured.observations
    kv_gib = measured.device.kv_bytes / GIB
    return {
        "at_s": [one.at_ms / MS_PER_S for one in seen],
        "used_gib": [one.kv_used * kv_gib for one in seen],
        "running": [float(one.running) for one in seen],
        "waiting": [float(one.waiting) for one in seen],
        "ttft_ms_p99": [one.ttft_ms_p99 for one in seen],
        "tpot_ms_p99": [one.tpot_ms_p99 for one in seen],
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return fmean(known) if known else None


def _verdict(report: dict[str, Any]) -> str:
    """Return the most important numbers in one sentence."""
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
    "KV lent\nGiB mean",
    "\nGiB most",
    "lent, of\nthe time",
    "revocations\nan hour",
    "longest\nlend",
)


def print_profile(report: Mapping[str, Any], console: Console) -> None:
    """Print the measurements, a row for each pair of targets, and the verdict."""
    for sentence in _sentences(report):
        console.print(sentence, markup=False, soft_wrap=True)
    print_rows(console, _HEADERS, _rows(report))
    console.print(report["how"], markup=False, soft_wrap=True)
    console.print(Text(report["verdict"], style="bold"), soft_wrap=True)


def _sentences(report: Mapping[str, Any]) -> list[str]:
    used = report["kv_used"]
    what = (
        f"{report['source']}: {report['readings']} readings in {duration(report['measured_s'])}; "
        f"the KV pool has {report['kv_gib']:.1f} GiB, of which serving used "
        f"{percent(used['mean'])} on average and {percent(used['max'])} at most; serving's reserve "
        f"is {report['reserve_gib']:.1f} GiB"
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
            number(row["lent_gib_mean"]),
            number(row["lent_gib_peak"]),
            percent(row["lent_share"]),
            number(row["revocations_per_hour"]),
            duration(row["longest_lend_s"]),
        ]
        for row in report["rows"]
    ]
