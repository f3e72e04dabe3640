"""From the record of a run to the numbers of `report.json`."""

from collections.abc import Iterable
from statistics import median
from typing import Any, Final

from rose.demo.broker_summary import summarise_broker
from rose.demo.circle_summary import summarise_circle
from rose.demo.numbers import percentile, plain, ratio
from rose.demo.record import ARMS, RequestTiming, RunRecord, WindowRecord
from rose.demo.verdict import judge

_PERCENTILES: Final = (50, 90, 99)
_RATIO_ARMS: Final = {"aa": "alone_again", "share_all": "share_all", "rose": "rose"}


def summarise(record: RunRecord) -> dict[str, Any]:
    """Return what `report.json` holds; a number that the record cannot give is None.

    Percentiles are over all requests of an arm. Ratios are paired: a window's percentile over that
    of `alone` in the same window, then the median over windows, so that drift of the machine
    cancels.
    """
    report: dict[str, Any] = {
        "arms": {arm: _arm(record, arm) for arm in ARMS},
        "ratios": {name: _ratios(record, arm) for name, arm in _RATIO_ARMS.items()},
        "blocked_by_rollout_ms_p99": percentile(record.blocked_by_rollout_ms, 99),
        "segment_ms_p99": percentile(record.segment_ms, 99),
        "certificates": {
            "granted": record.certificates_granted,
            "verified": record.certificates_verified,
            "violations": record.certificate_violations,
        },
        "revocations": {
            "count": len(record.revocations),
            "latency_ms_p50": percentile([r.latency_ms for r in record.revocations], 50),
            "latency_ms_p99": percentile([r.latency_ms for r in record.revocations], 99),
            "aborted_steps": sum(r.aborted_steps for r in record.revocations),
        },
        "pauses": record.pauses,
        "machine": plain(record.machine),
        "settings": plain(record.settings),
        "slo": {"ttft_ms": plain(record.slo_ttft_ms), "tpot_ms": plain(record.slo_tpot_ms)},
        "rollout_alone_tokens_per_s": plain(record.rollout_alone_tokens_per_s),
        "seed": record.seed,
        "command": record.command,
        "complete": record.complete,
    }
    report["broker"] = summarise_broker(record.broker)
    report |= summarise_circle(record.circle)
    report["verdict"] = judge(report)
    return report


def _arm(record: RunRecord, arm: str) -> dict[str, Any]:
    windows = [w for w in record.windows if w.arm == arm]
    requests = [r for w in windows for r in w.requests]
    seconds = sum(w.end_s - w.start_s for w in windows)
    tokens_per_s = ratio(sum(w.rollout_tokens for w in windows), seconds)
    numbers: dict[str, Any] = {}
    for name, values in (("ttft", _ttft_ms(requests)), ("tpot", _tpot_ms(requests))):
        for percent in _PERCENTILES:
            numbers[f"{name}_ms_p{percent}"] = percentile(values, percent)
    numbers["slo_attainment"] = ratio(sum(_is_met(record, r) for r in requests), len(requests))
    numbers["busy_share"] = ratio(sum(w.serving_busy_s for w in windows), seconds)
    numbers["rollout_tokens_per_s"] = tokens_per_s
    numbers["harvested_share"] = _harvested(record, windows, tokens_per_s, seconds)
    numbers["requests"] = len(requests)
    return numbers


def _harvested(
    record: RunRecord, windows: list[WindowRecord], tokens_per_s: float | None, seconds: float
) -> float | None:
    """Return the share of the device that rollouts got.

    By tokens against rollouts alone, where both generate the same; the turns of a circle have
    prompts of every length, so what counts there is the time in which a segment ran.
    """
    busy_s = [w.rollout_busy_s for w in windows if w.rollout_busy_s is not None]
    if record.circle is not None and busy_s:
        return ratio(sum(busy_s), seconds)
    return ratio(tokens_per_s, record.rollout_alone_tokens_per_s)


def _ratios(record: RunRecord, arm: str) -> dict[str, float | None]:
    """Compare with `alone`, window by window."""
    subject, peer = _by_window(record.windows, arm), _by_window(record.windows, "alone")
    ratios: dict[str, float | None] = {}
    for percent in (50, 90):
        for name, column in (("ttft", _ttft_ms), ("tpot", _tpot_ms)):
            each = [
                ratio(
                    percentile(column(subject[window]), percent),
                    percentile(column(peer[window]), percent),
                )
                for window in subject.keys() & peer.keys()
            ]
            known = [one for one in each if one is not None]
            ratios[f"{name}_p{percent}"] = median(known) if known else None
    return ratios


def _by_window(windows: Iterable[WindowRecord], arm: str) -> dict[int, list[RequestTiming]]:
    requests: dict[int, list[RequestTiming]] = {}
    for window in windows:
        if window.arm == arm:
            requests.setdefault(window.window, []).extend(window.requests)
    return requests


def _ttft_ms(requests: Iterable[RequestTiming]) -> list[float]:
    return [r.ttft_ms for r in requests]


def _tpot_ms(requests: Iterable[RequestTiming]) -> list[float]:
    return [r.tpot_ms for r in requests if r.tpot_ms is not None]


def _is_met(record: RunRecord, request: RequestTiming) -> bool:
    has_tpot = request.tpot_ms is None or request.tpot_ms <= record.slo_tpot_ms
    return request.ttft_ms <= record.slo_ttft_ms and has_tpot
