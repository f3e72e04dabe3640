"""The scheduler in simulated clusters: drawn scenarios, a burst, and serving's guarantee.

Without FULL=1 only the first drawn scenarios are judged.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.conftest import Report
from bench.lab.suites.burst import Burst, burst_of
from bench.lab.suites.drawn_runs import drawn_seeds, simulated
from bench.lab.suites.drawn_verdict import verdict_of
from bench.rows import Bar, Peer
from rose_lab.sim.scenario.arms import ROSE
from rose_lab.sim.scenario.build import build
from rose_lab.sim.scenario.loans import ServingGroups
from rose_lab.sim.scenario.scenario import Scenario
from rose_lab.sim.scenario.traffic import Inputs
from rose_lab.sim.scenario.yaml_file import read_scenarios
from rose_lab.sim.study.figures import ArmFigures
from rose_lab.sim.study.paired import by_seed

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
NONE = Bar(at_most=0.0)
PROCESSES = 2
DRAWN_BRIEF = 8


def read(name: str) -> tuple[Scenario, ...]:
    return read_scenarios(SCENARIOS / f"{name}.yaml")


def word(name: str) -> str:
    """Return a name in the form that row names use."""
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower()).strip("_")


def test_drawn_scenarios(report: Report) -> None:
    figures: list[ArmFigures] = []
    seeds = drawn_seeds(report.count(len(drawn_seeds(None)), brief=DRAWN_BRIEF))

    def run() -> None:
        for number, done in enumerate(simulated(seeds, processes=PROCESSES), 1):
            figures.extend(done)
            report.say(f"{number} of {len(seeds)}: seed {done[0].seed}")

    report.once(run)
    verdict = verdict_of(figures)
    report.add("drawn_scenarios_count", len(verdict.best), "scenarios")
    good = verdict.share_at_least(1.0)
    report.add("scenarios_at_least_as_good_ratio", good, "ratio", bar=Bar(at_least=0.95))
    report.add(
        "scenarios_at_least_as_good_within_1_percent_ratio", verdict.share_at_least(0.99), "ratio"
    )
    worst = 1.0 - verdict.worst[0]
    report.add("worst_loss_ratio", worst, "ratio", bar=Bar(at_most=0.02))
    for one in verdict.against:
        name = word(one.arm)
        report.add(f"throughput_over_{name}_geometric_mean_ratio", one.geometric_mean, "ratio")
        report.add(f"scenarios_as_good_as_{name}_ratio", one.share_at_least(1.0), "ratio")
        report.add(f"throughput_over_{name}_worst_ratio", one.worst[0], "ratio")
    add_kept_promises(report, list(by_seed(figures, ROSE).values()))


def add_kept_promises(report: Report, mine: Sequence[ArmFigures]) -> None:
    """Report rose's own results, without comparison."""
    report.add("tokens_lost_sum", sum(one.tokens_lost for one in mine), "tokens", bar=NONE)
    report.add("trajectories_dropped_sum", sum(one.dropped for one in mine), "count", bar=NONE)
    late = sum(not one.is_complete for one in mine)
    report.add("scenarios_not_ended_count", late, "scenarios", bar=NONE)
    report.add("time_over_bound_median_ratio", float(np.median([m.gap for m in mine])), "ratio")
    report.add("stale_fraction_mean", float(np.mean([one.stale for one in mine])), "ratio")
    biases = [abs(one.length_bias) for one in mine if one.length_bias is not None]
    report.add("length_bias_mean_ratio", float(np.mean(biases)) if biases else 0.0, "ratio")


def test_a_correlated_burst(report: Report) -> None:
    """Revoke all borrowed GPUs at once. The bound is the scheduler's estimate right before."""
    (scenario,) = read("stress_revoke_all")
    bursts: dict[str, list[Burst]] = {}

    def run() -> None:
        for arm in ("rose", "rose-published", "least-loaded-sticky"):
            bursts[arm] = [
                burst_of(scenario, build(scenario, arm, seed=seed, inputs=Inputs()).world)
                for seed in scenario.seeds
            ]

    report.once(run)
    for arm, found in bursts.items():
        worst = max(found, key=lambda one: one.recovery_s / one.bound_s)
        report.add(
            f"correlated_burst_recovery_{word(arm)}_s",
            worst.recovery_s,
            "s",
            peer=Peer("the scheduler's own bound", worst.bound_s, "s"),
            bar=Bar(at_most=worst.bound_s) if arm == ROSE else None,
        )


def test_serving_keeps_its_promise(report: Report) -> None:
    """Every quantum of rose was certified, so no request may be late because of a loan."""
    (scenario,) = read("paper_8b")
    excess: Counter[str] = Counter()

    def run() -> None:
        serving = ServingGroups(scenario, seed=scenario.seeds[0], inputs=Inputs())
        for arm in ("rose", "rose@0.05", "rose@inf", "rose-published", "share-all"):
            for loan in serving.loans(arm):
                assert loan.excess is not None, f"{arm} has no count of excess misses"
                excess[arm] += loan.excess

    report.once(run)
    for arm, found in excess.items():
        bar = NONE if arm == ROSE else None
        report.add(f"excess_slo_misses_{word(arm)}_count", found, "requests", bar=bar)
