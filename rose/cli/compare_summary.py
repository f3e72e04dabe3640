"""From the record of a comparison to the numbers of `compare.json`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from rose.cli.compare_record import Audit, CompareRecord
from rose.cli.compare_schemes import ALONE, CLAIRVOYANT, CONTROL, Scheme
from rose.cli.compare_verdict import judge_comparison
from rose.demo.numbers import percentile, plain, ratio
from rose.demo.record import Answered, Slice
from rose.errors import check

_PERCENTILES: Final = (50, 99)

Column = Callable[[Sequence[Answered]], list[float]]


def ttft_ms(requests: Sequence[Answered]) -> list[float]:
    """Return the time to the first token of each."""
    return [one.ttft_ms for one in requests]


def tpot_ms(requests: Sequence[Answered]) -> list[float]:
    """Return the time per later token of each that has one."""
    return [one.tpot_ms for one in requests if one.tpot_ms is not None]


_COLUMNS: Final[dict[str, Column]] = {"ttft": ttft_ms, "tpot": tpot_ms}


def summarise_comparison(record: CompareRecord) -> dict[str, Any]:
    """Return what `compare.json` holds; a number that the record cannot give is None.

    Percentiles are over all requests of a scheme at a load. Ratios are paired: a window's
    percentile over that of `alone` in the same window, then the median over windows. A request is
    an *excess* miss when it met its targets alone and misses one here: the time to its first token,
    or the mean time of the later ones, which is how a TPOT is meant. By any gap, it is one when a
    single token was late: a certificate may be wrong for a share epsilon of the steps, so of long
    requests many have such a token. What epsilon bounds is the share of late *tokens*.
    """
    report: dict[str, Any] = {
        "version": 1,
        "mode": "virtual" if record.is_virtual else "engines",
        "command": record.command,
        "complete": record.complete,
        "seed": record.seed,
        "trace": record.trace,
        "slo": {"ttft_ms": plain(record.slo_ttft_ms), "tpot_ms": plain(record.slo_tpot_ms)},
        "schemes": {one.name: _described(one) for one in record.schemes},
        "left_out": list(record.left_out),
        "loads": [_at_load(record, load) for load in _loads(record)],
        "settings": plain(record.settings),
        "machine": plain(record.machine),
        "windows": [plain(asdict(one)) for one in record.windows],
    }
    report["verdict"] = judge_comparison(report)
    return report


def _described(scheme: Scheme) -> dict[str, Any]:
    return {"label": scheme.label, "kind": scheme.kind.value, "rule": scheme.rule}


def _loads(record: CompareRecord) -> list[float]:
    return sorted({one.load for one in record.windows})


def _at_load(record: CompareRecord, load: float) -> dict[str, Any]:
    windows = [one for one in record.windows if one.load == load]
    measured = {
        scheme.name: [one for one in windows if one.arm == scheme.name] for scheme in record.schemes
    }
    rows = {
        name: _scheme(record, found, measured.get(ALONE, []), _audit(record, name, load))
        for name, found in measured.items()
        if found
    }
    best = rows.get(CLAIRVOYANT, {}).get("harvest")
    for row in rows.values():
        row["harvest_over_clairvoyant"] = ratio(row["harvest"], best)
    alone = rows.get(ALONE, {})
    return {
        "load": load,
        "busy_share_alone": alone.get("busy_share"),
        "requests": alone.get("requests"),
        "control": rows.get(CONTROL, {}).get("ratios"),
        "schemes": rows,
    }


def _audit(record: CompareRecord, scheme: str, load: float) -> Audit | None:
    found = [one for one in record.audits if one.scheme == scheme and one.load in {None, load}]
    return found[0] if found else None


def _scheme(
    record: CompareRecord,
    windows: Sequence[Slice],
    alone: Sequence[Slice],
    audit: Audit | None,
) -> dict[str, Any]:
    requests = [request for one in windows for request in one.requests]
    seconds = sum(one.seconds for one in windows)
    row: dict[str, Any] = {"requests": len(requests)}
    for name, column in _COLUMNS.items():
        for rank in _PERCENTILES:
            row[f"{name}_ms_p{rank}"] = percentile(column(requests), rank)
    row["ratios"] = _ratios(windows, alone)
    row |= _excess(record, windows, alone)
    row["slo_attainment"] = ratio(sum(_is_met(record, one) for one in requests), len(requests))
    row["busy_share"] = ratio(sum(one.serving_busy_s for one in windows), seconds)
    row["harvest"] = _harvest(windows)
    blocked_ms = [wait for one in windows for wait in one.blocked_ms]
    pauses_ms = [pause for one in windows for pause in one.pauses_ms]
    row["blocked_ms_p99"] = percentile(blocked_ms, 99)
    row["pauses"] = sum(one.pauses for one in windows)
    row["pause_ms_p99"] = percentile(pauses_ms, 99)
    row["segments"] = sum(one.segments for one in windows)
    row["certificates"] = None if audit is None else _certificates(audit)
    return row


def _certificates(audit: Audit) -> dict[str, int]:
    return {
        "granted": audit.granted,
        "verified": audit.verified,
        "violations": audit.violations,
    }


def _harvest(windows: Sequence[Slice]) -> float | None:
    """Weigh each window by its length; None when one of them has no number."""
    if any(one.harvest is None for one in windows):
        return None
    got_s = sum((one.harvest or 0.0) * one.seconds for one in windows)
    return ratio(got_s, sum(one.seconds for one in windows))


def _ratios(windows: Sequence[Slice], alone: Sequence[Slice]) -> dict[str, float | None]:
    peers = {one.round: one.requests for one in alone}
    ratios: dict[str, float | None] = {}
    for name, column in _COLUMNS.items():
        for rank in _PERCENTILES:
            each = [
                ratio(
                    percentile(column(one.requests), rank),
                    percentile(column(peers[one.round]), rank),
                )
                for one in windows
                if one.round in peers
            ]
            known = [one for one in each if one is not None]
            ratios[f"{name}_p{rank}"] = median(known) if known else None
    return ratios


def _excess(
    record: CompareRecord, windows: Sequence[Slice], alone: Sequence[Slice]
) -> dict[str, Any]:
    """Count what is late here and was not alone, over the requests of both."""
    peers = {one.round: one.requests for one in alone}
    missed = by_any_gap = late = tokens = compared = 0
    for one in windows:
        peer = peers.get(one.round)
        if peer is None:
            continue
        check(len(peer) == len(one.requests), "the windows of two schemes have other requests")
        for mine, theirs in zip(one.requests, peer, strict=True):
            compared += 1
            missed += _is_met(record, theirs) and not _is_met(record, mine)
            by_any_gap += _has_no_gap(record, theirs) and not _has_no_gap(record, mine)
            late += _late_tokens(record, mine) - _late_tokens(record, theirs)
            tokens += mine.output_tokens
    return {
        "excess_misses": missed if compared else None,
        "excess_miss_share": ratio(missed, compared),
        "excess_misses_by_any_gap": by_any_gap if compared else None,
        "excess_late_token_share": ratio(max(late, 0), tokens),
    }


def _is_met(record: CompareRecord, request: Answered) -> bool:
    is_fast = request.tpot_ms is None or request.tpot_ms <= record.slo_tpot_ms
    return request.ttft_ms <= record.slo_ttft_ms and is_fast


def _has_no_gap(record: CompareRecord, request: Answered) -> bool:
    return request.ttft_ms <= record.slo_ttft_ms and not request.late_gaps


def _late_tokens(record: CompareRecord, request: Answered) -> int:
    return request.late_gaps + (request.ttft_ms > record.slo_ttft_ms)
