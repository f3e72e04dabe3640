"""`rose profile URL|TRACE`: what serving leaves over time, and how much of it could be lent."""

import math
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rose.cli.interrupts import ends_interrupt
from rose.cli.machine import machine_card
from rose.cli.outputs import try_folder
from rose.cli.profile_device import device_of
from rose.cli.profile_measured import Measured, Pool
from rose.cli.profile_page import write_profile
from rose.cli.profile_report import profile_report
from rose.cli.profile_table import print_profile
from rose.cli.profile_trace import TraceAsked, measure_trace
from rose.clock import BootClock
from rose.config import read_environment
from rose.errors import InvalidArgument, Unavailable
from rose.slo import SLO
from rose.traces import read_trace
from rose.units import GIB, MIB

_SLOS: Final = ("200:25", "500:50", "1000:100")
_TRACE_S: Final = 300.0
_ENGINE_S: Final = 300.0
_TRACE_KV_GIB: Final = 90.0
# The size at which whole slabs hardly round: those of a device are between 2 and 128 MiB.
_SLAB_BYTES: Final = 32 * MIB
_SECONDS_MAX: Final = 7 * 86_400.0
_READINGS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Options:
    """What was asked for, whatever is profiled."""

    seconds: float
    every_s: float
    slos: tuple[SLO, ...]
    model: str | None
    kv_gib: float | None
    reserve_gib: float
    load: float | None
    gpu: str | None
    latency: Path | None
    noise: float | None
    seed: int


@click.command()
@click.argument("source", metavar="URL|TRACE")
@click.option(
    "--slo",
    "slo_texts",
    multiple=True,
    metavar="TTFT:TPOT",
    help=f"Targets in ms; may be repeated.  [default: {', '.join(_SLOS)}]",
)
@click.option(
    "--seconds",
    type=float,
    show_default=f"{_ENGINE_S:g} of an engine, {_TRACE_S:g} of a trace",
    help="How long to look.",
)
@click.option("--every", "every_s", type=float, default=5.0, show_default=True, help="Seconds.")
@click.option("--model", help="Whose KV it is: a model that rose knows, or its config.json.")
@click.option(
    "--kv-gib",
    type=float,
    show_default=f"what an engine says, {_TRACE_KV_GIB:g} for a trace",
    help="Of serving's KV pool.",
)
@click.option("--reserve-gib", type=float, default=4.0, show_default=True, help="Of it never lent.")
@click.option("--load", type=float, help="Of a trace: bring it to this busy share of serving.")
@click.option("--gpu", help="Of a trace: a device of rose's table, with --model.")
@click.option(
    "--latency",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of a trace: step times as rose learned them on your engine.",
)
@click.option(
    "--noise", type=float, show_default="0.1", help="Of a trace: spread of the log of step times."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--out", "out_dir", default="rose-profile", show_default=True, help="Folder of the report."
)
def profile(
    *,
    source: str,
    slo_texts: tuple[str, ...],
    seconds: float | None,
    every_s: float,
    model: str | None,
    kv_gib: float | None,
    reserve_gib: float,
    load: float | None,
    gpu: str | None,
    latency: Path | None,
    noise: float | None,
    seed: int,
    out_dir: str,
) -> int:
    """Measure what serving leaves over time, and say how much could be lent at which SLO.

    URL is a vLLM or SGLang engine (http://localhost:8000): it is asked for its metrics, and nothing
    else is done to it. TRACE is a trace of Azure, BurstGPT, Mooncake or rose, plain or .gz; it is
    served in virtual time. The exit status is 0, or 130 after an interrupt: what was measured until
    then is reported.
    """
    out = Path(out_dir)
    try_folder(out)
    is_url = "://" in source
    options = _Options(
        seconds=_seconds(seconds, every_s, standard=_ENGINE_S if is_url else _TRACE_S),
        every_s=every_s,
        slos=tuple(_slo(text) for text in slo_texts or _SLOS),
        model=model,
        kv_gib=_gib("--kv-gib", kv_gib),
        reserve_gib=_gib("--reserve-gib", reserve_gib) or 0.0,
        load=load,
        gpu=gpu,
        latency=latency,
        noise=noise,
        seed=seed,
    )
    console = Console(highlight=False)
    with ends_interrupt():
        measured = (_engine if is_url else _trace)(source, options, console)
    if not measured.observations:
        return 130
    if not measured.is_complete:
        console.print("stopped early: reporting what there is")
    report = profile_report(
        measured, command=shlex.join(["rose", *sys.argv[1:]]), machine=machine_card()
    )
    write_profile(report, out)
    print_profile(report, console)
    console.print(f"report: {out / 'profile.html'}", markup=False, soft_wrap=True)
    return 0 if measured.is_complete else 130


def _engine(url: str, options: _Options, console: Console) -> Measured:
    """Ask the engine.

    Raises:
        InvalidArgument: an option is of traces only.
        Unavailable: the parser of metrics is not installed, or the engine does not answer.
    """
    for name in ("load", "gpu", "latency", "noise"):
        if getattr(options, name) is not None:
            raise InvalidArgument(f"--{name} is of a trace: an engine has its own")
    try:
        from rose.cli.profile_engine import EngineAsked, measure_engine  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"reading an engine needs {error.name}, which is not installed; "
            f"install rose-rl[metrics]"
        ) from None
    kv_gib = options.kv_gib
    asked = EngineAsked(
        url=url,
        seconds=options.seconds,
        every_s=options.every_s,
        slos=options.slos,
        kv_bytes=None if kv_gib is None else int(kv_gib * GIB),
        model=options.model,
        reserve_bytes=int(options.reserve_gib * GIB),
        slab_bytes=_SLAB_BYTES,
    )
    with _progress(console, "asking the engine", options.seconds) as advance:
        return measure_engine(asked, BootClock(), advance=advance)


def _trace(path: str, options: _Options, console: Console) -> Measured:
    """Serve the trace.

    Raises:
        InvalidArgument: the file cannot be read, or an option makes no sense.
    """
    if options.load is not None and not 0 < options.load < 1:
        raise InvalidArgument(
            f"a load of {options.load:g} is not possible: give more than 0, less than 1"
        )
    modelled = device_of(
        model=options.model, gpu=options.gpu, latency=options.latency, noise=options.noise
    )
    kv_gib = _TRACE_KV_GIB if options.kv_gib is None else options.kv_gib
    pool = Pool(int(kv_gib * GIB), int(options.reserve_gib * GIB), _SLAB_BYTES)
    pool.device(options.slos[0])  # refused now, and not after minutes
    asked = TraceAsked(
        trace=read_trace(path, seed=options.seed),
        seconds=options.seconds,
        every_s=options.every_s,
        load=options.load,
        slos=options.slos,
        device=modelled.device,
        device_name=modelled.name,
        token_bytes=modelled.token_bytes,
        pool=pool,
        seed=options.seed,
    )
    with _progress(console, "serving", 1.0 + len(options.slos)) as advance:
        return measure_trace(asked, advance=advance)


@contextmanager
def _progress(console: Console, what: str, total: float) -> Iterator[Callable[[float, str], None]]:
    """Show how far it is, where somebody looks."""
    is_quiet = read_environment().is_ci or not console.is_terminal
    columns: Sequence[object] = (
        TextColumn("{task.fields[what]}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Progress(*columns, console=console, disable=is_quiet, transient=True) as bar:  # type: ignore[arg-type]
        task = bar.add_task("", total=total, what=what, said="")
        yield lambda done, said: bar.update(task, completed=done, said=said)


def _slo(text: str) -> SLO:
    ttft, _, tpot = text.partition(":")
    try:
        return SLO(ttft_ms=float(ttft), tpot_ms=float(tpot))
    except ValueError:
        raise InvalidArgument(
            f"--slo {text} is no pair of targets in ms above 0, such as 500:50"
        ) from None


def _seconds(seconds: float | None, every_s: float, *, standard: float) -> float:
    found = standard if seconds is None else seconds
    for name, value in (("--seconds", found), ("--every", every_s)):
        if not 0 < value <= _SECONDS_MAX:
            raise InvalidArgument(f"{name} must be above 0 and at most a week, not {value:g}")
    if found / every_s > _READINGS_MAX:
        raise InvalidArgument(
            f"{found:g} s every {every_s:g} s are more than {_READINGS_MAX} readings; "
            f"give a larger --every"
        )
    return found


def _gib(option: str, gib: float | None) -> float | None:
    if gib is not None and not (math.isfinite(gib) and 0 <= gib <= 1 << 20):
        raise InvalidArgument(f"{option} of {gib:g} is no size")
    if option == "--kv-gib" and gib is not None and gib * GIB < _SLAB_BYTES:
        raise InvalidArgument(f"{option} of {gib:g} holds nothing")
    return gib
