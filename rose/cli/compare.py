"""`rose compare`: every scheme on the same requests, what rollouts get and what serving pays."""

import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rose.cli.compare_page import write_comparison
from rose.cli.compare_record import Audit, CompareRecord
from rose.cli.compare_run import Asked, Listener, Run
from rose.cli.compare_schemes import MECHANISMS, SCHEMES, chosen
from rose.cli.compare_summary import summarise_comparison
from rose.cli.compare_table import print_comparison
from rose.cli.interrupts import ends_interrupt
from rose.cli.machine import machine_card
from rose.cli.traffic import load_trace, traffic_options
from rose.config import read_environment
from rose.demo.record import Slice
from rose.errors import InvalidArgument, Unavailable
from rose.slo import SLO

# What is generated lasts so long at the rate of its profile: room for any load and any piece.
_GENERATED_S: Final = 7200.0
_VIRTUAL_LOAD: Final = 0.9
_ENGINES_LOAD: Final = 0.3
_VIRTUAL_S: Final = 120.0
_ENGINES_S: Final = 24.0
_NOISE: Final = 0.1


@dataclass(slots=True)
class _Kept:
    """What there is so far; an interrupt keeps it."""

    windows: list[Slice] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)


def _loads(load: float | None, sweep: str | None, *, standard: float) -> list[float]:
    if sweep is None:
        loads = [standard if load is None else load]
    elif load is not None:
        raise InvalidArgument("--load and --sweep both say how busy serving is; give one")
    else:
        try:
            loads = sorted({float(one) for one in sweep.split(",")})
        except ValueError:
            raise InvalidArgument(
                f"--sweep {sweep} is not a list of numbers such as 0.3,0.5,0.7"
            ) from None
    for one in loads:
        if not 0 < one < 1:
            raise InvalidArgument(
                f"a load of {one:g} is not possible: give more than 0, less than 1"
            )
    return loads


def _virtual(noise: float) -> Run:
    from rose.cli.compare_virtual import VirtualRun  # noqa: PLC0415 (no engine is needed)

    return VirtualRun(noise=noise)


def _engines() -> Run:
    """Say how real engines are run.

    Raises:
        Unavailable: the packages for it are not installed.
    """
    try:
        from rose.cli.compare_engines import EnginesRun  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"real engines need {error.name}, which is not installed; install rose-rl[demo], or "
            f"add --virtual"
        ) from None
    return EnginesRun()


def _measured(
    run: Run, asked: Asked, console: Console, *, settings: dict[str, object]
) -> CompareRecord:
    """Run all there is to run; an interrupt ends it early and is not an error."""
    kept, is_complete = _Kept(), False
    with (
        tempfile.TemporaryDirectory(prefix="rose-compare-") as logs,
        _progress(console) as say,
        ends_interrupt(),
    ):
        listener = Listener(
            window=kept.windows.append, audit=kept.audits.append, say=say, logs=Path(logs)
        )
        try:
            run.run(asked, listener)
            is_complete = True
        except KeyboardInterrupt:
            console.print("interrupted: reporting what there is")
    return CompareRecord(
        is_virtual=bool(settings["virtual"]),
        schemes=tuple(asked.schemes),
        windows=tuple(kept.windows),
        audits=tuple(kept.audits),
        left_out=run.left_out,
        slo_ttft_ms=asked.slo.ttft_ms,
        slo_tpot_ms=asked.slo.tpot_ms,
        trace=asked.trace.name,
        machine=machine_card(),
        settings={**settings, **run.settings},
        seed=asked.seed,
        command=shlex.join(["rose", *sys.argv[1:]]),
        complete=is_complete,
    )


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Show what is done next, where somebody looks."""
    is_quiet = read_environment().is_ci or not console.is_terminal
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=is_quiet, transient=True) as progress:
        task = progress.add_task("", total=None)

        def say(what: str) -> None:
            progress.update(task, description=what)

        yield say


@click.command()
@traffic_options
@click.option("--virtual", is_flag=True, help="A model of a GPU in virtual time; needs no engine.")
@click.option(
    "--load",
    type=float,
    show_default="0.9 virtual, 0.3 otherwise",
    help="Busy share of serving alone; without --virtual, share of its measured capacity.",
)
@click.option("--sweep", metavar="A,B,…", help="Several loads instead of one.")
@click.option("--tpot-ms", type=float, default=25.0, show_default=True, help="Serving's target.")
@click.option("--ttft-ms", type=float, default=500.0, show_default=True, help="Serving's target.")
@click.option(
    "--schemes",
    "scheme_names",
    metavar="A,B,…",
    help=f"Of {', '.join(SCHEMES)}; all that can run by default.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NAME",
    help=f"Also rose slack without a mechanism: {', '.join(MECHANISMS)}. May be repeated.",
)
@click.option(
    "--seconds",
    type=float,
    show_default=f"{_VIRTUAL_S:g} virtual, {_ENGINES_S:g} otherwise",
    help="Traffic of each scheme at each load.",
)
@click.option(
    "--length-scale",
    type=float,
    show_default="1 virtual, 1/16 otherwise",
    help="Factor on the trace's lengths.",
)
@click.option(
    "--noise",
    type=float,
    show_default=f"{_NOISE:g}",
    help="Standard deviation of the logarithm of step times, in virtual time.",
)
@click.option("--seed", default=0, show_default=True, help="Of traffic, prompts and noise.")
@click.option(
    "--out", "out_dir", default="rose-compare", show_default=True, help="Folder of the report."
)
def compare(  # noqa: PLR0917 (click passes options by name)
    trace_path: str | None,
    profile: str | None,
    virtual: bool,  # noqa: FBT001 (a flag of the command line)
    load: float | None,
    sweep: str | None,
    tpot_ms: float,
    ttft_ms: float,
    scheme_names: str | None,
    without: tuple[str, ...],
    seconds: float | None,
    length_scale: float | None,
    noise: float | None,
    seed: int,
    out_dir: str,
) -> int:
    """Run all schemes of sharing a device on the same requests, and say what each costs.

    The exit status is 0, or 130 after an interrupt: what was measured until then is reported.
    """
    out = Path(out_dir)
    if out.exists() and not out.is_dir():
        raise InvalidArgument(f"--out {out_dir} is a file: name a folder")
    if seconds is None:
        seconds = _VIRTUAL_S if virtual else _ENGINES_S
    if not seconds > 0:
        raise InvalidArgument(f"--seconds must be > 0, not {seconds:g}")
    if noise is not None and not virtual:
        raise InvalidArgument("--noise is of virtual time: real engines have their own")
    if length_scale is None:
        length_scale = 1.0 if virtual else 1 / 16
    loads = _loads(load, sweep, standard=_VIRTUAL_LOAD if virtual else _ENGINES_LOAD)
    slo = SLO(ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    console = Console(highlight=False)
    run = _virtual(_NOISE if noise is None else noise) if virtual else _engines()
    asked = Asked(
        trace=load_trace(
            trace_path,
            profile,
            generated_s=_GENERATED_S,
            length_scale=length_scale,
            prompt_max=run.prompt_tokens_max,
            output_max=run.output_tokens_max,
            seed=seed,
        ),
        loads=loads,
        seconds=seconds,
        slo=slo,
        schemes=chosen(scheme_names, without, possible=run.possible),
        seed=seed,
    )
    console.print(f"trace {asked.trace.name}; {len(asked.schemes)} schemes", markup=False)
    settings: dict[str, object] = {
        "virtual": virtual,
        "loads": loads,
        "seconds": seconds,
        "length_scale": length_scale,
        "schemes": [one.name for one in asked.schemes],
    }
    record = _measured(run, asked, console, settings=settings)
    report = summarise_comparison(record)
    write_comparison(report, out)
    print_comparison(report, console)
    console.print(f"report: {out / 'compare.json'}", soft_wrap=True)
    return 0 if record.complete else 130
