"""Results of `rose sim`, as JSON and as terminal tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.text import Text

from rose_lab.numbers import NO_NUMBER, fixed, number, percent, print_rows
from rose_lab.sim.outcome import PRICES
from rose_lab.sim.scenario.arms import ROSE
from rose_lab.sim.scenario.scenario import Scenario
from rose_lab.sim.study.figures import ArmFigures
from rose_lab.sim.study.paired import Factor, rollout_time_under, throughput_over
from rose_lab.sim.study.validation import PUBLISHED, validations

# A simulation does not know the share of correct answers, so costs are given for several shares.
_ACCEPT_RATES: Final = (0.1, 0.3, 0.5, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class ScenarioRuns:
    """A scenario with its finished runs.

    Args:
        figures: figures of each finished run (arm and seed).
    """

    scenario: Scenario
    figures: tuple[ArmFigures, ...]


def summarise_study(runs: Sequence[ScenarioRuns]) -> list[dict[str, Any]]:
    """Return the report of each scenario."""
    return [_scenario(one) for one in runs if one.figures]


def summarise_validation(runs: Sequence[ScenarioRuns]) -> list[dict[str, Any]]:
    """Return each published figure of the scenarios beside the simulated figure."""
    found = validations({one.scenario.name: one.figures for one in runs})
    return [{**asdict(one), "error": one.error, "warning": one.warning} for one in found]


def _scenario(runs: ScenarioRuns) -> dict[str, Any]:
    scenario, subject = runs.scenario, runs.scenario.arms[0]
    done = [arm for arm in scenario.arms if any(one.arm == arm for one in runs.figures)]
    return {
        "name": scenario.name,
        "about": scenario.about,
        "subject": subject,
        "seeds": sorted({one.seed for one in runs.figures}),
        "versions": scenario.versions,
        "arms": {arm: _arm(runs, arm, subject) for arm in done},
        "checks": _checks(runs),
        "runs": [_run(one) for one in runs.figures],
    }


def _run(figures: ArmFigures) -> dict[str, Any]:
    row = asdict(figures)
    row["gap"] = _or_none(figures.gap)
    return row


def _arm(runs: ScenarioRuns, arm: str, subject: str) -> dict[str, Any]:
    mine = [one for one in runs.figures if one.arm == arm]
    published = PUBLISHED.get(runs.scenario.name)
    over = published.throughput_over.get(arm) if published else None
    under = published.rollout_time_under.get(arm) if published else None
    return {
        "throughput_per_hour": _mean([one.throughput_per_hour for one in mine]),
        "rollout_s": _mean([one.rollout_mean_s for one in mine]),
        "bound_s": _mean([one.bound_s for one in mine]),
        "gap": _mean([one.gap for one in mine]),
        "borrowed_tokens_share": _mean([_borrowed_share(one) for one in mine]),
        "borrowed_busy": _mean([one.borrowed_busy for one in mine]),
        "revocations": _mean([float(one.revocations) for one in mine]),
        "recalls": _mean([float(one.recalls) for one in mine]),
        "recovery_s": max(one.recovery_s for one in mine),
        "unrecovered": sum(one.unrecovered for one in mine),
        "stale": _mean([one.stale for one in mine]),
        "length_bias": _mean([one.length_bias for one in mine if one.length_bias is not None]),
        "tokens_lost": sum(one.tokens_lost for one in mine),
        "dropped": sum(one.dropped for one in mine),
        "is_complete": all(one.is_complete for one in mine),
        "ttft_ms_p99": _mean([one.served.ttft_ms_p99 for one in mine if one.served]),
        "tpot_ms_p99": _mean([one.served.tpot_ms_p99 for one in mine if one.served]),
        **{
            name: _mean([getattr(one.served, name) for one in mine if one.served])
            for name in PRICES
        },
        "late": _mean([one.served.late for one in mine if one.served]),
        "excess": _sum([one.served.excess for one in mine if one.served]),
        "subject_throughput_over": _factor(
            throughput_over(runs.figures, subject, arm),
            over,
            is_itself=arm == subject,
        ),
        "subject_rollout_time_under": _factor(
            rollout_time_under(runs.figures, subject, arm),
            under,
            is_itself=arm == subject,
        ),
        "cost": _cost(mine),
    }


def _borrowed_share(figures: ArmFigures) -> float:
    total = figures.tokens_borrowed + figures.tokens_dedicated
    return figures.tokens_borrowed / total if total else 0.0


def _factor(
    factor: Factor | None, published: float | None, *, is_itself: bool
) -> dict[str, Any] | None:
    if factor is None or is_itself:
        return None
    return {**asdict(factor), "published": published}


def _cost(mine: Sequence[ArmFigures]) -> dict[str, Any] | None:
    costs = [one.cost for one in mine if one.cost is not None]
    if not costs:
        return None
    lines = ("dedicated", "trainer", "borrowed", "opportunity")
    return {
        **{line: _mean([getattr(one, line) for one in costs]) for line in lines},
        "per_trajectory": _mean(
            [one.per_trajectory for one in costs if one.per_trajectory is not None]
        ),
        "per_correct_answer": [
            {
                "accept_rate": rate,
                "dollars": _mean(
                    [one for cost in costs if (one := cost.per_correct_answer(rate)) is not None]
                ),
            }
            for rate in _ACCEPT_RATES
        ],
    }


def _checks(runs: ScenarioRuns) -> list[dict[str, Any]]:
    """Return the invariants of any study, each with its result."""
    mine = [one for one in runs.figures if one.arm == ROSE]
    excess = _sum([one.served.excess for one in mine if one.served])
    unrecovered = sum(one.unrecovered for one in mine)
    rows: list[tuple[str, bool | None, Any]] = [
        ("no token was lost", sum(one.tokens_lost for one in runs.figures) == 0, None),
        ("rose dropped no trajectory", sum(one.dropped for one in mine) == 0, None),
        ("rose finished every version", all(one.is_complete for one in mine), None),
        ("rose's turns ran again after every revocation", not unrecovered, unrecovered or None),
        (
            "no request missed a target because of rose",
            excess == 0 if excess is not None else None,
            excess,
        ),
    ]
    return [{"what": what, "holds": holds, "found": found} for what, holds, found in rows]


def _mean(values: Sequence[float]) -> float | None:
    return _or_none(float(np.mean(values))) if values else None


def _sum(values: Sequence[int | None]) -> int | None:
    known = [one for one in values if one is not None]
    return sum(known) if known else None


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


_HEADERS: Final = (
    "arm",
    "used\nper hour",
    "rollout\ns",
    "over the\nbound",
    "output on\nborrowed",
    "of lent\ntime busy",
    "TTFT x alone\nP50 / P99",
    "TPOT x alone\nP50 / P99",
    "taken\nback",
    "stale",
    "late\nrequests",
    "rose uses\nx as many",
    "the\npaper's",
    "rose rolls\nout x faster",
    "the\npaper's",
    "$ per\n1,000",
)
_VALIDATION_HEADERS: Final = ("measured", "predicted", "published", "error")


def print_study(report: Mapping[str, Any], console: Console) -> None:
    """Print a table and the failed checks of each scenario, then the validation errors."""
    for scenario in report["scenarios"]:
        seeds = len(scenario["seeds"])
        title = f"{scenario['name']}: {scenario['about']} {seeds} seed{'s' * (seeds != 1)}"
        console.print(Text(title, style="bold"), soft_wrap=True)
        print_rows(console, _HEADERS, [_row(*one) for one in scenario["arms"].items()])
        for check in scenario["checks"]:
            if check["holds"] is None:
                console.print(f"not measured: {check['what']}", soft_wrap=True)
            if check["holds"] is False:
                found = "" if check["found"] is None else f" ({number(check['found'])})"
                console.print(Text(f"does not hold: {check['what']}{found}", style="bold red"))
    if report["validation"]:
        print_rows(console, _VALIDATION_HEADERS, map(_validation_row, report["validation"]))
    for one in report["validation"]:
        if one["warning"] is not None:
            console.print(Text(f"{one['warning']}.", style="yellow"), soft_wrap=True)


def _validation_row(one: Mapping[str, Any]) -> list[str]:
    predicted, published = (
        f"{number(value)} s" if one["unit"] == "s" else fixed(value)
        for value in (one["predicted"], one["published"])
    )
    return [one["name"], predicted, published, f"{100 * one['error']:+.1f} %"]


def _row(name: str, arm: Mapping[str, Any]) -> list[str]:
    over, under = arm["subject_throughput_over"], arm["subject_rollout_time_under"]
    cost = arm["cost"]
    return [
        name,
        number(arm["throughput_per_hour"]),
        fixed(arm["rollout_s"]),
        fixed(arm["gap"]),
        percent(arm["borrowed_tokens_share"]),
        percent(arm["borrowed_busy"]),
        _price_text(arm, "ttft"),
        _price_text(arm, "tpot"),
        number(arm["revocations"]),
        percent(arm["stale"]),
        percent(arm["late"]),
        _factor_text(over),
        NO_NUMBER if over is None else fixed(over["published"]),
        _factor_text(under),
        NO_NUMBER if under is None else fixed(under["published"]),
        NO_NUMBER if cost is None else fixed(_thousand(cost["per_trajectory"])),
    ]


def _thousand(dollars: float | None) -> float | None:
    return None if dollars is None else 1000 * dollars


def _factor_text(factor: Mapping[str, Any] | None) -> str:
    if factor is None:
        return NO_NUMBER
    if factor["low"] is None:
        return fixed(factor["factor"])
    return f"{fixed(factor['factor'])} ({fixed(factor['low'])}-{fixed(factor['high'])})"


def _price_text(row: Mapping[str, Any], what: str) -> str:
    """Return both quantiles of "ttft" or "tpot" as multiples of serving alone."""
    values = [row[name] for name in PRICES if name.startswith(what)]
    return NO_NUMBER if None in values else " / ".join(map(fixed, values))
