"""`rose trace describe PATH`: what a trace is like, as a table and as a plot."""

from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rose.errors import InvalidArgument, Unavailable
from rose.traces import TraceFile, TraceStatistics, describe, read_trace_file
from rose.traces.statistics import DISPERSION_BINS_S, RATE_BINS_S
from rose.whole_file import write_output

_NO_NUMBER = "-"


@click.group()
def trace() -> None:
    """Look at traces of requests."""


@trace.command(name="describe")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw it too.")
def describe_trace(path: Path, out: Path | None) -> None:
    """Say how fast the requests of PATH come, how unevenly, and how long they are.

    PATH is a trace of Azure, BurstGPT, Mooncake or rose, plain or compressed (.gz). The exit status
    is 2 when it cannot be read.
    """
    if out is not None and out.suffix != ".png":
        raise InvalidArgument(f"--out {out} does not end in .png; name a PNG file")
    file = read_trace_file(path)
    statistics = describe(file.trace)
    # Drawn before anything is said, so that a failure leaves one sentence and no half of a result.
    if out is not None:
        _draw(file, out)
    console = Console(highlight=False)
    _print(console, file, statistics)
    if out is not None:
        console.print(f"plot: {out}", markup=False, soft_wrap=True)


def _draw(file: TraceFile, out: Path) -> None:
    try:
        from rose.cli.trace_plot import draw_trace  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"a plot needs {error.name}, which is not installed; install rose-rl[demo], or leave "
            f"--out away"
        ) from None
    write_output(out, draw_trace(file.trace, file.format))


def _print(console: Console, file: TraceFile, statistics: TraceStatistics) -> None:
    console.print(
        f"{file.trace.name}: {file.format}, {_counted(statistics.requests, 'request')} in "
        f"{_duration(statistics.duration_s)}, {_counted(file.skipped_rows, 'row')} skipped",
        markup=False,
        soft_wrap=True,
    )
    for table in (_rates(statistics), _burstiness(statistics), _lengths(statistics)):
        console.print(table)


def _rates(statistics: TraceStatistics) -> Table:
    table = _table("requests/s (x mean)", "mean", "p50", "p99", "max")
    mean = statistics.mean_rate_rps
    for bin_s, rate in zip(RATE_BINS_S, statistics.rates, strict=True):
        values = (None,) * 3 if rate is None else (rate.p50, rate.p99, rate.max)
        name = "by the second" if bin_s == 1 else "by the minute"
        table.add_row(name, _number(mean), *(_beside_mean(value, mean) for value in values))
    return table


def _burstiness(statistics: TraceStatistics) -> Table:
    table = _table("burstiness", *(f"per {bin_s} s" for bin_s in DISPERSION_BINS_S))
    values = [_number(value) for value in statistics.dispersion]
    table.add_row("variance / mean of the counts (Poisson: 1)", *values)
    return table


def _lengths(statistics: TraceStatistics) -> Table:
    table = _table("tokens", "mean", "p50", "p90", "p99", "max")
    for name, length in (("prompt", statistics.prompt), ("output", statistics.output)):
        cells = (length.mean, length.p50, length.p90, length.p99, length.max)
        table.add_row(name, *(f"{value:.0f}" for value in cells))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(escape(first), no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return _NO_NUMBER if value is None else f"{value:.2f}"


def _beside_mean(value: float | None, mean: float) -> str:
    return _number(value) if value is None or not mean else f"{value:.2f} ({value / mean:.2f})"


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
