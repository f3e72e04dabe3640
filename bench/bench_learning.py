"""Judges the runs of `make learn`: whether a policy learns the same through borrowed engines."""

import statistics

import pytest

from bench.conftest import Report
from bench.learning import ARMS, RUNS, SEEDS_MIN, TARGET, Learning, mean_within, read_runs
from bench.learning_plot import draw_learning
from bench.rows import Bar, Term
from rose.whole_file import write_whole

BORROWING = ARMS[1:]


@pytest.fixture
def learning() -> Learning:
    found = Learning(read_runs(RUNS))
    if len(found.seeds) < SEEDS_MIN:
        pytest.skip(f"{len(found.seeds)} of {SEEDS_MIN} seeds have all arms: run `make learn`")
    return found


def test_learning_equivalent(report: Report, learning: Learning) -> None:
    tests = {arm: learning.equivalence(arm) for arm in BORROWING}
    if (why := learning.why_void()) is not None:
        report.say(f"void: {why}")
    report.add(
        "learning_equivalent",
        float(all(one.is_equivalent for one in tests.values())),
        "yes",
        bar=Bar(at_least=1.0),
        is_void=why is not None,
        terms=[
            Term(f"{arm}_{name}", getattr(one, name), "reward" if name == "mean" else "probability")
            for arm, one in tests.items()
            for name in ("mean", "p_value", "power")
        ],
    )


def test_learning_gain_p_value(
    report: Report, learning: Learning, request: pytest.FixtureRequest
) -> None:
    p_value = max(learning.gain_p_value(arm) for arm in ARMS)
    report.add("learning_gain_p_value", p_value, "probability", bar=Bar(at_most=0.01))
    for arm in ARMS:
        for name, at in (("start", 0), ("end", -1)):
            rewards = learning.each(arm, lambda run, at=at: run["curve"][at])
            mean, interval = mean_within(rewards)
            report.add(f"learning_{name}_{arm}_reward", mean, "reward", interval=interval)
        reached = learning.seconds_to_target(arm)
        name = f"learning_{arm}_to_target_s"
        if len(reached) == len(learning.seeds):
            mean, interval = mean_within(reached)
            report.add(name, mean, "s", interval=interval)
        else:
            report.leave_out(
                [name], f"{len(reached)} of {len(learning.seeds)} runs reached {TARGET}"
            )
    document = request.config.getoption("--document")
    if document is not None:
        write_whole(document.with_suffix(".svg"), draw_learning(learning).encode())


def test_borrowed_token_share(report: Report, learning: Learning) -> None:
    shares = {arm: learning.borrowed_share(arm) for arm in BORROWING}
    report.add(
        "borrowed_token_share",
        min(shares.values()),
        "share",
        bar=Bar(at_least=0.5),
        terms=[Term(f"{arm}_share", share, "share") for arm, share in shares.items()],
    )


def test_tokens_lost(report: Report, learning: Learning) -> None:
    lost = sum(run["tokens_lost"] for arm in ARMS for run in learning.of(arm))
    report.add("tokens_lost", lost, "tokens", bar=Bar(at_most=0.0))
    episodes = sum(run["held_out_episodes"] for arm in ARMS for run in learning.of(arm))
    report.add("held_out_episodes", episodes, "episodes", bar=Bar(at_least=2000.0))
    for arm in ARMS:
        runs = learning.of(arm)
        report.add(f"behaviour_{arm}_kl", statistics.fmean(run["kl"] for run in runs), "nats")
        ratio = statistics.fmean(run["ratio"] for run in runs)
        report.add(f"behaviour_{arm}_ratio", ratio, "probability over probability")
        report.add(f"staleness_{arm}_max", max(run["staleness_max"] for run in runs), "versions")
        report.add(f"learning_{arm}_s", statistics.fmean(run["seconds"] for run in runs), "s")


def test_slo_excess_misses(report: Report, learning: Learning) -> None:
    missed = sum(learning.excess_misses(arm) for arm in BORROWING)
    report.add("slo_excess_misses", missed, "requests", bar=Bar(at_most=0.0))
    for arm in BORROWING:
        for metric in ("ttft_ms", "tpot_ms"):
            mean, interval = mean_within(learning.latency_ratios(arm, metric))
            name = f"serving_{arm}_{metric.removesuffix('_ms')}_p50_ratio"
            report.add(name, mean, "ratio to dedicated", interval=interval)
