"""The circle and the broker of a run: their numbers and their tables."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any, Final

from rose.demo.numbers import NO_NUMBER, fixed, number, percent, percentile, plain, ratio
from rose.demo.record import WORKERS, BrokerRecord, CircleRecord, CommitRecord, VersionRecord
from rose.units import MIB

CIRCLE_HEADERS: Final = (
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


def summarise_circle(circle: CircleRecord | None) -> dict[str, Any]:
    """Return the parts `weights`, `trajectories`, `versions` and `incidents` of `report.json`.

    A number that the record cannot give is None; without a circle, so are the first three parts.
    """
    if circle is None:
        return {"weights": None, "trajectories": None, "versions": None, "incidents": []}
    zero_s = start_s(circle)
    return {
        "weights": _weights(circle),
        "trajectories": _trajectories(circle),
        "versions": {name: getattr(circle, name) for name in _VERSIONS},
        "incidents": [
            {"at_s": plain(at_s - zero_s), "what": what} for at_s, what in sorted(circle.incidents)
        ],
    }


def start_s(circle: CircleRecord) -> float:
    """Return when the circle did its first thing; 0 when it did nothing.

    Times of incidents, and of the figures, count from here: the clock of the run may have started
    with the machine.
    """
    times = [at for at in _times(circle) if plain(at) is not None]
    return min(times, default=0.0)


def circle_row(report: Mapping[str, Any]) -> list[str]:
    """Return the cells of the one row under `CIRCLE_HEADERS`."""
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


def version_rows(circle: CircleRecord) -> list[list[str]]:
    """Return the cells of each version, under `VERSION_HEADERS` and one column for each worker."""
    zero_s = start_s(circle)
    return [
        [
            str(version.n),
            f"{number(plain(version.published_s - zero_s))} s",
            percent(plain(version.density)),
            f"{version.bytes_sent / _KIB:,.0f} KiB",
            percent(ratio(version.bytes_sent, version.dense_bytes)),
            *(_commit_cell(version, worker) for worker in WORKERS),
        ]
        for version in circle.versions
    ]


def _weights(circle: CircleRecord) -> dict[str, Any]:
    commits = [commit for version in circle.versions for commit in version.commits]
    matched = sum(commit.is_match for commit in commits)
    sent, dense = circle.sent or (
        sum(version.bytes_sent for version in circle.versions),
        sum(version.dense_bytes for version in circle.versions),
    )
    crossed, handed_on = circle.relayed or (None, None)
    pauses_ms = [commit.pause_ms for commit in commits]
    return {
        "versions": len(circle.versions),
        "digests_matched": matched,
        "digests_compared": len(commits),
        "bytes_sent": sent,
        "dense_bytes": dense,
        "sent_share": ratio(sent, dense),
        # What crossed the link to the workers' side once, and what all workers got of it there.
        "trainer_to_relay_bytes": crossed,
        "relay_to_workers_bytes": handed_on,
        "density_p50": percentile([version.density for version in circle.versions], 50),
        "pause_ms_p50": percentile(pauses_ms, 50),
        "pause_ms_p99": percentile(pauses_ms, 99),
        # A worker whose digest differs undoes the commit before it generates with it.
        "rolled_back": len(commits) - matched,
    }


def _trajectories(circle: CircleRecord) -> dict[str, Any]:
    counts = circle.trajectories
    return {
        **asdict(counts),
        "per_s": ratio(counts.finished, circle.measured_s),
        "staleness": {str(by): n for by, n in sorted(Counter(circle.staleness).items())},
    }


def _times(circle: CircleRecord) -> Iterator[float]:
    yield from (from_s for from_s, _ in circle.spans)
    yield from (turn.start_s for turn in circle.turns)
    yield from (version.published_s for version in circle.versions)
    yield from (at_s for at_s, _ in circle.incidents)


def _commit_cell(version: VersionRecord, worker: str) -> str:
    """Say of each commit when it came, how long it took and whether its digest matched."""
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
    """Return what `report.json` says of the broker; None where there was none.

    Means are over decisions, which come once a second, in every arm: between its windows the device
    of the arm `rose` is idle.
    """
    if record is None:
        return None
    decisions = record.decisions
    moves = Counter(one.move for one in decisions)
    mean_bytes = fmean(one.cap_bytes for one in decisions) if decisions else None
    return {
        "decisions": len(decisions),
        "pool_bytes": record.pool_bytes,
        "mean_cap_bytes": mean_bytes,
        "mean_cap_share": None if mean_bytes is None else mean_bytes / record.pool_bytes,
        "lent_time_share": fmean(one.lent_bytes > 0 for one in decisions) if decisions else None,
        "begun": moves["LEND"],
        "grown": moves["GROW"],
        "shrunk": moves["SHRINK"],
        "ended": moves["END"],
        "last_why": decisions[-1].why if decisions else None,
    }


def broker_row(broker: Mapping[str, Any]) -> list[str]:
    """Return the cells of the one row under `BROKER_HEADERS`."""
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
    """Say why the broker decided as it did when it last did."""
    return f"The broker's last reason: {broker['last_why'] or NO_NUMBER}."
