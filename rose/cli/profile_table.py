"""A profile on the terminal."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from rose.demo.numbers import NO_NUMBER, number, percent
from rose.demo.rows import print_rows

HEADERS: Final = (
    "targets, ms\nfirst/later",
    "met\nalone",
    "share of\ncompute",
    "KV lent\nGiB mean",
    "\nGiB most",
    "lent, of\nthe time",
    "revocations\nan hour",
    "\n95 % below",
    "longest\nlend",
)


def print_profile(report: Mapping[str, Any], console: Console) -> None:
    """Print what was measured, a row for each pair of targets, and the verdict."""
    for sentence in sentences(report):
        console.print(sentence, markup=False, soft_wrap=True)
    print_rows(console, HEADERS, profile_rows(report), left=HEADERS[0])
    console.print(report["how"], markup=False, soft_wrap=True)
    console.print(Text(report["verdict"], style="bold"), soft_wrap=True)


def sentences(report: Mapping[str, Any]) -> list[str]:
    """Say what was looked at."""
    used = report["kv_used"]
    what = (
        f"{report['source']}: {report['readings']} readings in {duration(report['measured_s'])}; "
        f"a KV pool of {report['kv_gib']:.1f} GiB, of which serving held {percent(used['mean'])} "
        f"on average and {percent(used['max'])} at most, and {report['reserve_gib']:.1f} GiB are "
        f"its reserve"
    )
    found = [what]
    if report["failures"]:
        last = report["failures"][-1]["why"]
        count = len(report["failures"])
        found.append(f"{count} reading{'s' * (count > 1)} failed, the last because {last}")
    return found


def profile_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of each pair of targets, under `HEADERS`."""
    return [
        [
            f"{row['ttft_ms']:g}/{row['tpot_ms']:g}",
            percent(row["met_alone"]),
            percent(row["compute_share"]),
            number(row["lent_gib_mean"]),
            number(row["lent_gib_peak"]),
            percent(row["lent_share"]),
            number(row["revocations_per_hour"]),
            number(row["revocations_per_hour_most"]),
            duration(row["longest_lend_s"]),
        ]
        for row in report["rows"]
    ]


def duration(seconds: float | None) -> str:
    """Write a time in the unit that suits it."""
    if seconds is None:
        return NO_NUMBER
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
