"""From the record of a run to the numbers of `report.json` and `compare.json`."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from rose.demo.circle_summary import summarise_broker, summarise_circle
from rose.demo.numbers import percentile, plain, ratio
from rose.demo.record import Answered, Audit, RunRecord, Slice, StepTimes
from rose.demo.schemes import ALONE, CONTROL
from rose.demo.targets import HINDSIGHT_RANK, Feasibility, feasibility
from rose.demo.verdict import REQUESTS_MIN, judge, judge_loads
from rose.slo import Policy
from rose.units import MS_PER_S

_PERCENTILES: Final = (50, 90, 99)
_BINDING: Final = ("shape", "predicted_ms", "bound_ms", "target_ms", "sentence")


def summarise(record: RunRecord) -> dict[str, Any]:
    """Return what `report.json` of `rose demo` holds; a number that is not there is None."""
    slices = [one for one in record.slices if not one.is_void]
    blocked_ms = [wait for one in slices for wait in one.blocked_ms]
    segment_ms = [took for one in slices for took in one.segment_ms or ()]
    compared = compare_arms(record, slices)
    arms = compared["arms"]
    busy_share = arms["alone"]["busy_share"]
    outlook = _hindsight(record, slices, segment_ms)
    certifiable = None
    if busy_share is not None and outlook is not None:
        certifiable = 0.0 if outlook.why else 1.0 - busy_share
    report: dict[str, Any] = {
        **compared,
        "certifiable_idle_share": certifiable,
        "harvest_over_certifiable": ratio(arms["rose"]["harvested_tokens_share"], certifiable),
        "harvested_time_over_certifiable": ratio(arms["rose"]["harvested_share"], certifiable),
        "refusals": dict(record.lending.refusals),
        "refused_s": plain(record.lending.refused_s),
        "granted_s": plain(record.lending.granted_s),
        "binding": None
        if record.lending.binding is None
        else {name: plain(record.lending.binding[name]) for name in _BINDING},
        "setup_s": plain(record.setup_s),
        "blocked_by_rollout_ms_p99": percentile(blocked_ms, 99),
        "segment_ms_p99": percentile(segment_ms, 99),
        "certificates": _certificates(record.audits, "rose", None),
        "revocations": {
            "count": len(record.revocations),
            "latency_ms_p50": percentile([r.latency_ms for r in record.revocations], 50),
            "latency_ms_p99": percentile([r.latency_ms for r in record.revocations], 99),
            "aborted_steps": sum(r.aborted_steps for r in record.revocations),
        },
        "pauses": sum(one.pauses for one in slices),
        "rollout_alone_tokens_per_s": _alone_rate(record, "share_all"),
        **_common(record),
    }
    report["broker"] = summarise_broker(record.broker)
    report |= summarise_circle(record.circle)
    report["verdict"] = judge(report, outlook)
    return report


def summarise_loads(record: RunRecord) -> dict[str, Any]:
    """Return what `compare.json` holds: the arms at each load."""
    slices = [one for one in record.slices if not one.is_void]
    loads = []
    for load in sorted({one.load for one in record.slices}):
        mine = [one for one in slices if one.load == load]
        at = compare_arms(record, mine)
        late = {arm: _late_share(record, mine, arm) for arm in at["arms"]}
        certificates = {
            one.name: _certificates(record.audits, one.name, load)
            for one in record.plan.schemes
            if one.slowdown is not None
        }
        at |= {"late_token_share": late, "certificates": certificates}
        loads.append({"load": load, **at})
    report = {
        "version": 2,
        "mode": "modelled" if record.is_virtual else "measured",
        "schemes": {one.name: one.described() for one in record.plan.schemes},
        "loads": loads,
        **_common(record),
    }
    report["verdict"] = judge_loads(report)
    return report


def _common(record: RunRecord) -> dict[str, Any]:
    return {
        "slices": asdict(record.slice_counts),
        "machine": plain(record.plan.machine),
        "settings": plain(record.plan.settings),
        "slo": {
            "ttft_ms": plain(record.slo.ttft_ms),
            "tpot_ms": plain(record.slo.tpot_ms),
            "from": record.slo_from,
        },
        "seed": record.plan.seed,
        "command": record.plan.command,
        "complete": record.complete,
    }


def compare_arms(record: RunRecord, slices: Sequence[Slice]) -> dict[str, Any]:
    """Return the numbers of every arm, and their ratios to `alone`.

    Percentiles are over all requests of an arm. Ratios are paired: a slice's percentile over that
    of `alone` in the same round, then the median over rounds, so that drift of the machine cancels.
    P99 is compared over whole arms, and only of enough requests. Harvest is rollout tokens over
    those of the same rollouts alone.

    Args:
        record: of the run.
        slices: of one load, none of them void.
    """
    arms = {one.name: _arm(record, slices, one.name) for one in record.plan.schemes}
    ratios = {
        "aa" if arm == CONTROL else arm: _ratios(slices, arms, arm) for arm in arms if arm != ALONE
    }
    return {"arms": arms, "ratios": ratios}


def _certificates(audits: Iterable[Audit], arm: str, load: float | None) -> dict[str, int]:
    found = [one for one in audits if one.arm == arm and one.load in {None, load}]
    return {
        "granted": sum(one.granted for one in found),
        "verified": sum(one.verified for one in found),
        "violations": sum(one.violations for one in found),
    }


def _hindsight(
    record: RunRecord, slices: list[Slice], segment_ms: list[float]
) -> Feasibility | None:
    """Say whether quanta could be certified by what serving alone took; None without its slices."""
    alone = [one for one in slices if one.arm == "alone"]
    if not alone:
        return None
    steps = StepTimes(
        record.calibration.chunk_ms + tuple(ms for one in alone for ms in one.chunk_ms),
        record.calibration.decode_ms + tuple(ms for one in alone for ms in one.decode_ms),
    )
    policy = Policy(signal_ms=record.signal_ms)
    # Where nothing was lent no segment was measured either: then what certificates begin with.
    upper_ms = percentile(segment_ms, 99)
    return feasibility(
        steps,
        record.slo,
        policy,
        segment_ms=policy.segment_prior_ms if upper_ms is None else upper_ms,
        rank=HINDSIGHT_RANK,
    )


def _arm(record: RunRecord, slices: Sequence[Slice], arm: str) -> dict[str, Any]:
    mine = [one for one in slices if one.arm == arm]
    requests = [request for one in mine for request in one.requests]
    seconds = sum(one.seconds for one in mine)
    tokens_per_s = ratio(sum(one.rollout_tokens for one in mine), seconds)
    segments_s = [_segments_s(one) for one in mine if one.segment_ms is not None]
    by_tokens = ratio(tokens_per_s, _alone_rate(record, "rose" if arm == "rose" else "share_all"))
    numbers: dict[str, Any] = {}
    for name, values in (("ttft", _ttft_ms(requests)), ("tpot", _tpot_ms(requests))):
        for percent in _PERCENTILES:
            numbers[f"{name}_ms_p{percent}"] = percentile(values, percent)
    numbers["slo_attainment"] = ratio(sum(_is_met(record, r) for r in requests), len(requests))
    numbers["busy_share"] = ratio(sum(one.serving_busy_s for one in mine), seconds)
    numbers["rollout_tokens_per_s"] = tokens_per_s
    numbers["harvested_tokens_share"] = by_tokens
    # The time in which a segment ran, where there are segments.
    numbers["harvested_share"] = ratio(sum(segments_s), seconds) if segments_s else by_tokens
    numbers["requests"] = len(requests)
    return numbers


def _alone_rate(record: RunRecord, arm: str) -> float | None:
    """Return tokens/s of an arm's rollouts with the device to themselves.

    The turns of a circle wait for tools and for the scheduler, so their rate is that of the time in
    which their segments ran.
    """
    solo = [one for one in record.solo if one.arm == arm]
    return ratio(
        sum(one.rollout_tokens for one in solo),
        sum(one.seconds if one.segment_ms is None else _segments_s(one) for one in solo),
    )


def _segments_s(one: Slice) -> float:
    return sum(one.segment_ms or ()) / MS_PER_S


def _ratios(
    slices: Sequence[Slice], arms: dict[str, dict[str, Any]], arm: str
) -> dict[str, float | None]:
    """Compare with `alone`, round by round; P99 over all rounds."""
    subject, peer = _by_round(slices, arm), _by_round(slices, "alone")
    has_p99 = min(arms[arm]["requests"], arms["alone"]["requests"]) >= REQUESTS_MIN
    ratios: dict[str, float | None] = {}
    for name, column in (("ttft", _ttft_ms), ("tpot", _tpot_ms)):
        for percent in (50, 90):
            each = [
                ratio(
                    percentile(column(subject[number]), percent),
                    percentile(column(peer[number]), percent),
                )
                for number in subject.keys() & peer.keys()
            ]
            known = [one for one in each if one is not None]
            ratios[f"{name}_p{percent}"] = median(known) if known else None
        key = f"{name}_ms_p99"
        ratios[f"{name}_p99"] = ratio(arms[arm][key], arms["alone"][key]) if has_p99 else None
    return ratios


def _late_share(record: RunRecord, slices: Iterable[Slice], arm: str) -> float | None:
    """Return the share of tokens over their target: that is what certificates promise."""
    requests = [one for of_arm in slices if of_arm.arm == arm for one in of_arm.requests]
    late = sum(one.late_gaps + (one.ttft_ms > record.slo.ttft_ms) for one in requests)
    return ratio(late, sum(one.output_tokens for one in requests))


def _by_round(slices: Iterable[Slice], arm: str) -> dict[int, list[Answered]]:
    requests: dict[int, list[Answered]] = {}
    for one in slices:
        if one.arm == arm:
            requests.setdefault(one.round, []).extend(one.requests)
    return requests


def _ttft_ms(requests: Iterable[Answered]) -> list[float]:
    return [r.ttft_ms for r in requests]


def _tpot_ms(requests: Iterable[Answered]) -> list[float]:
    return [r.tpot_ms for r in requests if r.tpot_ms is not None]


def _is_met(record: RunRecord, request: Answered) -> bool:
    has_tpot = request.tpot_ms is None or request.tpot_ms <= record.slo.tpot_ms
    return request.ttft_ms <= record.slo.ttft_ms and has_tpot
