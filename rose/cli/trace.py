"""`rose trace describe PATH`: what a trace is like."""

from pathlib import Path

import click
from rich.console import Console

from rose.demo.numbers import duration, fixed, print_rows
from rose.traces import TraceFile, TraceStatistics, describe, read_trace_file
from rose.traces.statistics import DISPERSION_BINS_S, RATE_BINS_S


@click.group()
def trace() -> None:
    """Look at traces of requests."""


@trace.command(name="describe")
@click.argument("path", type=click.Path(path_type=Path))
def describe_trace(path: Path) -> None:
    """Say how fast the requests of PATH come, how unevenly, and how long they are.

    PATH is a trace of Azure, BurstGPT, Mooncake or rose, plain or compressed (.gz). The exit status
    is 2 when it cannot be read.
    """
    file = read_trace_file(path)
    _print(Console(highlight=False), file, describe(file.trace))


def _print(console: Console, file: TraceFile, statistics: TraceStatistics) -> None:
    console.print(
        f"{file.trace.name}: {file.format}, {_counted(statistics.requests, 'request')} in "
        f"{duration(statistics.duration_s)}, {_counted(file.skipped_rows, 'row')} skipped",
        markup=False,
        soft_wrap=True,
    )
    mean = statistics.mean_rate_rps
    rates = []
    for bin_s, rate in zip(RATE_BINS_S, statistics.rates, strict=True):
        values = (None,) * 3 if rate is None else (rate.p50, rate.p99, rate.max)
        name = "by the second" if bin_s == 1 else "by the minute"
        rates.append([name, fixed(mean), *(_beside_mean(value, mean) for value in values)])
    print_rows(console, ("requests/s (x mean)", "mean", "p50", "p99", "max"), rates)
    counts = ["variance / mean of the counts (Poisson: 1)", *map(fixed, statistics.dispersion)]
    print_rows(console, ("burstiness", *(f"per {one} s" for one in DISPERSION_BINS_S)), [counts])
    lengths = [
        [name, *(f"{one:.0f}" for one in (of.mean, of.p50, of.p90, of.p99, of.max))]
        for name, of in (("prompt", statistics.prompt), ("output", statistics.output))
    ]
    print_rows(console, ("tokens", "mean", "p50", "p90", "p99", "max"), lengths)


def _beside_mean(value: float | None, mean: float) -> str:
    return fixed(value) if value is None or not mean else f"{value:.2f} ({value / mean:.2f})"


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
