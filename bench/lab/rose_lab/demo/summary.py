"""Computes the numbers of `report.json` and `compare.json` from a run's record."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any, Final

from rose.slo import Policy
from rose.units import MIB, MS_PER_S
from rose_lab.broker import LoanChange
from rose_lab.demo.record import (
    WORKERS,
    Answered,
    Audit,
    BrokerRecord,
    CommitRecord,
    RlLoopRecord,
    RunRecord,
    Slice,
    StepSamples,
    VersionRecord,
)
from rose_lab.demo.schemes import ALONE, CONTROL
from rose_lab.demo.targets import HINDSIGHT_RANK, Feasibility, feasibility
from rose_lab.demo.verdict import REQUESTS_MIN, judge, judge_loads
from rose_lab.numbers import NO_NUMBER, fixed, number, percent, percentile, plain, ratio

_PERCENTILES: Final = (50, 90, 99)
_BINDING: Final = ("shape", "predicted_ms", "bound_ms", "target_ms", "sentence")


def summarise(record: RunRecord) -> dict[str, Any]:
    """Return the content of `report.json` of `rose demo`; a missing number is None."""
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
    report |= summarise_rl_loop(record.rl_loop)
    report["verdict"] = judge(report, outlook)
    return report


def summarise_loads(record: RunRecord) -> dict[str, Any]:
    """Return the content of `compare.json`: the arms at each load."""
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

    Percentiles are over all requests of an arm. Ratios are paired, so that drift of the machine
    cancels: in each round, an arm's percentile is divided by that of `alone`; the result is the
    median over rounds. P99 is compared over whole arms, and only if both have enough requests.
    Harvest is the token rate of rollouts relative to the same rollouts running alone.

    Args:
        record: record of the run.
        slices: slices of one load, without void slices.
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
    """Judge by the slices of serving alone whether quanta can be certified; None without slices."""
    alone = [one for one in slices if one.arm == "alone"]
    if not alone:
        return None
    steps = StepSamples(
        record.calibration.chunk_ms + tuple(ms for one in alone for ms in one.chunk_ms),
        record.calibration.decode_ms + tuple(ms for one in alone for ms in one.decode_ms),
    )
    policy = Policy(signal_ms=record.signal_ms)
    # If nothing was lent, no segment was measured. Then use the duration that certificates assume
    # before any measurement.
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
    by_tokens = ratio(tokens_per_s, _alone_rate(record, arm))
    numbers: dict[str, Any] = {}
    for name, values in (("ttft", _ttft_ms(requests)), ("tpot", _tpot_ms(requests))):
        for rank in _PERCENTILES:
            numbers[f"{name}_ms_p{rank}"] = percentile(values, rank)
    numbers["slo_attainment"] = ratio(sum(_is_met(record, r) for r in requests), len(requests))
    numbers["busy_share"] = ratio(sum(one.serving_busy_s for one in mine), seconds)
    numbers["rollout_tokens_per_s"] = tokens_per_s
    numbers["harvested_tokens_share"] = by_tokens
    # Where segments were timed, this is the share of time in segments.
    numbers["harvested_share"] = ratio(sum(segments_s), seconds) if segments_s else by_tokens
    numbers["requests"] = len(requests)
    return numbers


def _alone_rate(record: RunRecord, arm: str) -> float | None:
    """Return tokens/s of an arm's rollouts running alone.

    An arm without solo slices uses those of `share_all`. Where segments were timed, the rate counts
    only the time in segments, because turns of an RL loop also wait for tools and the scheduler.
    """
    own = [one for one in record.solo if one.arm == arm]
    solo = own or [one for one in record.solo if one.arm == "share_all"]
    return ratio(
        sum(one.rollout_tokens for one in solo),
        sum(one.seconds if one.segment_ms is None else _segments_s(one) for one in solo),
    )


def _segments_s(one: Slice) -> float:
    return sum(one.segment_ms or ()) / MS_PER_S


def _ratios(
    slices: Sequence[Slice], arms: dict[str, dict[str, Any]], arm: str
) -> dict[str, float | None]:
    """Return ratios to `alone`: per round for P50 and P90, over all rounds for P99."""
    subject, peer = _by_round(slices, arm), _by_round(slices, "alone")
    has_p99 = min(arms[arm]["requests"], arms["alone"]["requests"]) >= REQUESTS_MIN
    ratios: dict[str, float | None] = {}
    for name, column in (("ttft", _ttft_ms), ("tpot", _tpot_ms)):
        for rank in (50, 90):
            each = [
                ratio(
                    percentile(column(subject[round_]), rank),
                    percentile(column(peer[round_]), rank),
                )
                for round_ in subject.keys() & peer.keys()
            ]
            known = [one for one in each if one is not None]
            ratios[f"{name}_p{rank}"] = median(known) if known else None
        key = f"{name}_ms_p99"
        ratios[f"{name}_p99"] = ratio(arms[arm][key], arms["alone"][key]) if has_p99 else None
    return ratios


def _late_share(record: RunRecord, slices: Iterable[Slice], arm: str) -> float | None:
    """Return the share of tokens that missed their target; certificates bound this share."""
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


# ---- the RL loop and the broker -----------------------------------------------------------------

RL_LOOP_HEADERS: Final = (
    "trajec-\ntories/s",
    "finished\n/lost",
    "turns borr.\n/dedicated",
    "turns\nresumed",
    "versions\npubl./borr./ded.",
    "sent ÷\ndense",
    "commit ms\np50/p99",
    "staleness\nmean/max",
)
VERSION_HEADERS: Final = ("version", "published", "changed", "sent", "sent ÷\ndense")
_VERSIONS: Final = ("published", "committed_borrowed", "committed_dedicated")
_KIB: Final = 1024


def summarise_rl_loop(rl_loop: RlLoopRecord | None) -> dict[str, Any]:
    """Return the parts `weights`, `trajectories`, `versions` and `incidents` of `report.json`.

    Missing numbers are None. Without an RL loop, the first three parts are None.
    """
    if rl_loop is None:
        return {"weights": None, "trajectories": None, "versions": None, "incidents": []}
    zero_s = start_s(rl_loop)
    return {
        "weights": _weights(rl_loop),
        "trajectories": _trajectories(rl_loop),
        "versions": {name: getattr(rl_loop, name) for name in _VERSIONS},
        "incidents": [
            {"at_s": plain(at_s - zero_s), "what": what} for at_s, what in sorted(rl_loop.incidents)
        ],
    }


def start_s(rl_loop: RlLoopRecord) -> float:
    """Return the time of the RL loop's first event; 0 without events.

    Incidents and figures show times relative to this event, since the run's clock may count from
    boot.
    """
    times = [at for at in _times(rl_loop) if plain(at) is not None]
    return min(times, default=0.0)


def rl_loop_row(report: Mapping[str, Any]) -> list[str]:
    """Return the cells of the single row under `RL_LOOP_HEADERS`."""
    weights, trajectories = report["weights"], report["trajectories"]
    staleness = {int(by): n for by, n in trajectories["staleness"].items()}
    learnt = sum(staleness.values())
    mean = ratio(sum(by * n for by, n in staleness.items()), learnt)
    return [
        number(trajectories["per_s"]),
        f"{trajectories['finished']}/{trajectories['lost']}",
        f"{trajectories['turns_borrowed']}/{trajectories['turns_dedicated']}",
        str(trajectories["resumed"]),
        "/".join(str(report["versions"][name]) for name in _VERSIONS),
        percent(weights["sent_share"]),
        f"{number(weights['pause_ms_p50'])}/{number(weights['pause_ms_p99'])}",
        f"{fixed(mean)}/{max(staleness) if staleness else NO_NUMBER}",
    ]


def version_rows(rl_loop: RlLoopRecord) -> list[list[str]]:
    """Return one row per version, for `VERSION_HEADERS` and one column per worker."""
    zero_s = start_s(rl_loop)
    return [
        [
            str(version.n),
            f"{number(plain(version.published_s - zero_s))} s",
            percent(plain(version.density)),
            f"{version.bytes_sent / _KIB:,.0f} KiB",
            percent(ratio(version.bytes_sent, version.dense_bytes)),
            *(_commit_cell(version, worker) for worker in WORKERS),
        ]
        for version in rl_loop.versions
    ]


def _weights(rl_loop: RlLoopRecord) -> dict[str, Any]:
    commits = [commit for version in rl_loop.versions for commit in version.commits]
    matched = sum(commit.is_match for commit in commits)
    sent, dense = rl_loop.sent or (
        sum(version.bytes_sent for version in rl_loop.versions),
        sum(version.dense_bytes for version in rl_loop.versions),
    )
    crossed, handed_on = rl_loop.relayed or (None, None)
    pauses_ms = [commit.pause_ms for commit in commits]
    return {
        "versions": len(rl_loop.versions),
        "digests_matched": matched,
        "digests_compared": len(commits),
        "bytes_sent": sent,
        "dense_bytes": dense,
        "sent_share": ratio(sent, dense),
        # Bytes that the trainer sent to the relay, and bytes that the relay sent to all workers.
        "trainer_to_relay_bytes": crossed,
        "relay_to_workers_bytes": handed_on,
        "density_p50": percentile([version.density for version in rl_loop.versions], 50),
        "pause_ms_p50": percentile(pauses_ms, 50),
        "pause_ms_p99": percentile(pauses_ms, 99),
        # A worker whose digest differs undoes the commit before it generates.
        "rolled_back": len(commits) - matched,
    }


def _trajectories(rl_loop: RlLoopRecord) -> dict[str, Any]:
    counts = rl_loop.trajectories
    return {
        **asdict(counts),
        "per_s": ratio(counts.finished, rl_loop.measured_s),
        "staleness": {str(by): n for by, n in sorted(Counter(rl_loop.staleness).items())},
    }


def _times(rl_loop: RlLoopRecord) -> Iterator[float]:
    yield from (from_s for from_s, _ in rl_loop.spans)
    yield from (turn.start_s for turn in rl_loop.turns)
    yield from (version.published_s for version in rl_loop.versions)
    yield from (at_s for at_s, _ in rl_loop.incidents)


def _commit_cell(version: VersionRecord, worker: str) -> str:
    """Return time, pause and digest match for each commit of a worker."""
    commits = [commit for commit in version.commits if commit.worker == worker]
    return ", ".join(_commit_words(version, commit) for commit in commits) or NO_NUMBER


def _commit_words(version: VersionRecord, commit: CommitRecord) -> str:
    after_s = plain(commit.at_s - version.published_s)
    mark = "✓" if commit.is_match else "✗ undone"
    return f"+{fixed(after_s)} s, {number(plain(commit.pause_ms))} ms {mark}"


BROKER_HEADERS: Final = (
    "broker:\ndecisions",
    "mean cap\nMiB",
    "of the\npool",
    "something\nlent",
    "begun\n/ended",
    "grown\n/shrunk",
)


def summarise_broker(record: BrokerRecord | None) -> dict[str, Any] | None:
    """Return the broker's part of `report.json`; None without a broker.

    Means are over all decisions. The broker decides once a second during all arms, although its
    device is idle outside the slices of the arm `rose`.
    """
    if record is None:
        return None
    decisions = record.decisions
    moves = Counter(one.move for one, _ in decisions)
    mean_bytes = fmean(one.lend_bytes for one, _ in decisions) if decisions else None
    return {
        "decisions": len(decisions),
        "pool_bytes": record.pool_bytes,
        "mean_cap_bytes": mean_bytes,
        "mean_cap_share": None if mean_bytes is None else mean_bytes / record.pool_bytes,
        "lent_time_share": fmean(lent > 0 for _, lent in decisions) if decisions else None,
        "begun": moves[LoanChange.LEND],
        "grown": moves[LoanChange.GROW],
        "shrunk": moves[LoanChange.SHRINK],
        "ended": moves[LoanChange.END],
        "last_why": decisions[-1][0].why if decisions else None,
    }


def broker_row(broker: Mapping[str, Any]) -> list[str]:
    """Return the cells of the single row under `BROKER_HEADERS`."""
    mean_bytes = broker["mean_cap_bytes"]
    return [
        str(broker["decisions"]),
        number(None if mean_bytes is None else mean_bytes / MIB),
        percent(broker["mean_cap_share"]),
        percent(broker["lent_time_share"]),
        f"{broker['begun']}/{broker['ended']}",
        f"{broker['grown']}/{broker['shrunk']}",
    ]


def last_word(broker: Mapping[str, Any]) -> str:
    """Return a sentence with the reason of the broker's last decision."""
    return f"The broker's last reason: {broker['last_why'] or NO_NUMBER}."
