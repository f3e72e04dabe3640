"""The drawn scenarios on the terminal: rows of baselines, and of scenarios where rose loses."""

from collections.abc import Sequence

from rich.console import Console

from bench.lab.suites.drawn_scenarios import drawn
from bench.lab.suites.drawn_verdict import LEAST, Verdict, first_runs, median_over_bound, verdict_of
from rose_lab.numbers import fixed, percent, print_rows
from rose_lab.sim.scenario.parts import SyntheticTraffic
from rose_lab.sim.study.figures import ArmFigures
from rose_lab.sim.study.paired import by_seed

_BASELINES = (
    *("rose over", "geometric\nmean"),
    *(f"at least\n{least:g}" for least in LEAST),
    *("worst", "\nscenario"),
)
_LOSSES = (
    "scenario", "over the\nbest", "which is", "mode", "batch", "dedicated", "borrowed", "load",
    "trouble", "over the\nbound", "its\nown", "rollout\ns", "its\nown", "recalls",
)  # fmt: skip


def print_drawn(figures: Sequence[ArmFigures], console: Console) -> None:
    """Print a row for each baseline, and a row for each scenario that rose loses to one."""
    verdict = verdict_of(figures)
    if not verdict.best:
        console.print("nothing to compare")
        return
    print_rows(console, _BASELINES, _baseline_rows(verdict))
    runs = len(by_seed(figures, "rose")) / len(verdict.best)
    console.print(f"{len(verdict.best)} scenarios, {runs:g} runs of each. {_sums(figures)}")
    lost = sorted((ratio, scenario) for scenario, ratio in verdict.best.items() if ratio < 1.0)
    # After an interrupt a scenario may have only a later run, and rows need the first one.
    first = first_runs(figures)
    known = verdict_of(first).best
    rows = [_loss_row(first, *one) for one in lost if one[1] in known]
    if rows:
        console.print("Scenarios where the best baseline has more throughput than rose:")
        print_rows(console, _LOSSES, rows, words=("which is",))
    if len(rows) < len(lost):
        console.print(f"{len(lost) - len(rows)} more, whose first run was not simulated")


def _baseline_rows(verdict: Verdict) -> list[list[str]]:
    return [
        [
            one.arm,
            fixed(one.geometric_mean),
            *(percent(one.share_at_least(least)) for least in LEAST),
            f"{one.worst[0]:.3f}",
            str(one.worst[1]),
        ]
        for one in verdict.rows
    ]


def _sums(figures: Sequence[ArmFigures]) -> str:
    mine = list(by_seed(figures, "rose").values())
    return (
        f"Rose: median duration over the bound {median_over_bound(figures):.2f}, "
        f"tokens lost {sum(one.tokens_lost for one in mine)}, "
        f"dropped {sum(one.dropped for one in mine)}, "
        f"incomplete {sum(not one.is_complete for one in mine)}."
    )


def _loss_row(figures: Sequence[ArmFigures], ratio: float, seed: int) -> list[str]:
    """Return the description of a scenario, and the events of its first run."""
    mine = by_seed(figures, "rose")[seed]
    best = max(
        (one for one in figures if one.seed == seed and one.arm != "rose"),
        key=lambda one: one.throughput_per_hour,
    )
    scenario = drawn(seed)
    job = scenario.jobs[0]
    loads = [
        group.traffic.load
        for group in scenario.borrowed
        if isinstance(group.traffic, SyntheticTraffic)
    ]
    return [
        str(seed),
        f"{ratio:.3f}",
        best.arm,
        job.mode.value,
        str(job.batch),
        str(sum(group.count for group in scenario.dedicated)),
        str(sum(group.count for group in scenario.borrowed)),
        "/".join(f"{load:.2f}" for load in loads),
        ", ".join(type(one).__name__ for one in scenario.stress) or "-",
        fixed(mine.gap),
        fixed(best.gap),
        fixed(mine.rollout_mean_s),
        fixed(best.rollout_mean_s),
        f"{mine.recalls}/{best.recalls}",
    ]
