"""A study on the terminal."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from rose.cli.console_rows import print_rows
from rose.cli.report_numbers import NO_NUMBER, fixed, number, percent

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
    "\npublished",
    "rose rolls\nout x faster",
    "\npublished",
    "$ per\n1,000",
)


def print_study(report: Mapping[str, Any], console: Console) -> None:
    """Print a table for each scenario, and what does not hold."""
    for scenario in report["scenarios"]:
        seeds = len(scenario["seeds"])
        title = f"{scenario['name']}: {scenario['about']} {seeds} seed{'s' * (seeds != 1)}"
        console.print(Text(title, style="bold"), soft_wrap=True)
        print_rows(console, HEADERS, arm_rows(scenario), left="arm")
        for check in scenario["checks"]:
            if check["holds"] is False:
                found = "" if check["found"] is None else f" ({number(check['found'])})"
                console.print(Text(f"does not hold: {check['what']}{found}", style="bold red"))


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
    return f"{fixed(factor['factor'])} ({fixed(factor['low'])}-{fixed(factor['high'])})"
