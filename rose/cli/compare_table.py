"""A comparison on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from rose.demo.numbers import NO_NUMBER, fixed, number, percent
from rose.demo.rows import print_rows

HEADERS: Final = (
    "scheme",
    "rollouts\nget, of\na device",
    "requests\nlate by\nrollouts",
    "tokens\nlate by\nrollouts",
    "first\ntoken\nms p99",
    "\nx alone\np50/p99",
    "per\ntoken\nms p99",
    "\nx alone\np50/p99",
    "step\nwaits\nms p99",
    "certified\nloans\n/ all",
)


def print_comparison(report: Mapping[str, Any], console: Console) -> None:
    """Print a table of the highest load, one of all loads if there are more, and the verdict."""
    loads = report["loads"]
    if len(loads) > 1:
        title = "Rollouts get, of a device (requests late because of rollouts), by load:"
        console.print(Text(title, style="bold"))
        headers = ("scheme", *(f"{at['load']:g}" for at in loads))
        _print(console, headers, sweep_rows(report))
    if loads:
        at = loads[-1]
        console.print(Text(load_title(at), style="bold"))
        _print(console, HEADERS, scheme_rows(report, at))
    for sentence in report["left_out"]:
        console.print(sentence, markup=False, soft_wrap=True)
    verdict = report["verdict"]
    console.print(Text(verdict["sentence"], style="bold red" if verdict["void"] else "bold"))


def load_title(at: Mapping[str, Any]) -> str:
    """Say what a load is, for the title of its table."""
    busy = percent(at["busy_share_alone"])
    return (
        f"Load {at['load']:g}: {number(at['requests'])} requests, "
        f"serving alone is busy {busy} of the time"
    )


def scheme_rows(report: Mapping[str, Any], at: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of each scheme at one load, under `HEADERS`."""
    return [
        [
            report["schemes"][name]["label"],
            percent(row["harvest"]),
            number(row["excess_misses"]),
            percent(row["excess_late_token_share"]),
            number(row["ttft_ms_p99"]),
            f"{fixed(row['ratios']['ttft_p50'])}/{fixed(row['ratios']['ttft_p99'])}",
            number(row["tpot_ms_p99"]),
            f"{fixed(row['ratios']['tpot_p50'])}/{fixed(row['ratios']['tpot_p99'])}",
            number(row["blocked_ms_p99"]),
            _certificates(row["certificates"]),
        ]
        for name, row in at["schemes"].items()
    ]


def sweep_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of each scheme: what rollouts get at each load, and what it costs."""
    return [
        [scheme["label"], *(_at(at["schemes"].get(name)) for at in report["loads"])]
        for name, scheme in report["schemes"].items()
    ]


def _at(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return NO_NUMBER
    return f"{percent(row['harvest'])} ({number(row['excess_misses'])})"


def _certificates(counts: Mapping[str, int] | None) -> str:
    return "" if counts is None else f"{counts['verified']}/{counts['granted']}"


def _print(console: Console, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print_rows(console, headers, rows, left="scheme")
