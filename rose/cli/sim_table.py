"""A study on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from rose.demo.numbers import NO_NUMBER, fixed, number, percent
from rose.demo.rows import print_rows

HEADERS: Final = (
    "arm",
    "used\nper hour",
    "rollout\ns",
    "over the\nbound",
    "said on\nborrowed",
    "of lent\ntime busy",
    "taken\nback",
    "stale",
    "late\nrequests",
    "rose uses\nx as many",
    "the\npaper's",
    "rose rolls\nout x faster",
    "the\npaper's",
    "$ per\n1,000",
)
VALIDATION_HEADERS: Final = ("measured", "predicted", "published", "error")


def print_study(report: Mapping[str, Any], console: Console) -> None:
    """Print a table for each scenario, what does not hold, and how far off what is known was."""
    for scenario in report["scenarios"]:
        seeds = len(scenario["seeds"])
        title = f"{scenario['name']}: {scenario['about']} {seeds} seed{'s' * (seeds != 1)}"
        console.print(Text(title, style="bold"), soft_wrap=True)
        print_rows(console, HEADERS, arm_rows(scenario), left="arm")
        for sentence in scenario["differences"]:
            console.print(sentence, markup=False, soft_wrap=True)
        for check in scenario["checks"]:
            if check["holds"] is None:
                console.print(f"not measured: {check['what']}", soft_wrap=True)
            if check["holds"] is False:
                found = "" if check["found"] is None else f" ({number(check['found'])})"
                console.print(Text(f"does not hold: {check['what']}{found}", style="bold red"))
    if report["validation"]:
        print_rows(
            console, VALIDATION_HEADERS, validation_rows(report["validation"]), left="measured"
        )
    for warning in warnings_of(report):
        console.print(Text(f"{warning}.", style="yellow"), soft_wrap=True)


def validation_rows(validation: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of each figure that others measured, under `VALIDATION_HEADERS`."""
    return [
        [one["name"], _measured(one, "predicted"), _measured(one, "published"), _error(one)]
        for one in validation
    ]


def warnings_of(report: Mapping[str, Any]) -> list[str]:
    """Return what to say beside the figures that rest on a prediction that was far off."""
    return [one["warning"] for one in report["validation"] if one["warning"] is not None]


def _measured(one: Mapping[str, Any], which: str) -> str:
    return f"{number(one[which])} s" if one["unit"] == "s" else fixed(one[which])


def _error(one: Mapping[str, Any]) -> str:
    return f"{100 * one['error']:+.1f} %"


def arm_rows(scenario: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of each arm, under `HEADERS`."""
    return [_row(name, arm) for name, arm in scenario["arms"].items()]


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
        number(arm["revocations"]),
        percent(arm["stale"]),
        percent(arm["late"]),
        _factor(over),
        NO_NUMBER if over is None else fixed(over["published"]),
        _factor(under),
        NO_NUMBER if under is None else fixed(under["published"]),
        NO_NUMBER if cost is None else fixed(_thousand(cost["per_trajectory"])),
    ]


def _thousand(dollars: float | None) -> float | None:
    return None if dollars is None else 1000 * dollars


def _factor(factor: Mapping[str, Any] | None) -> str:
    if factor is None:
        return NO_NUMBER
    if factor["low"] is None:
        return fixed(factor["factor"])
    return f"{fixed(factor['factor'])} ({fixed(factor['low'])}-{fixed(factor['high'])})"
