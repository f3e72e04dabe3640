"""`rose profile URL|TRACE`: what serving leaves over time, and how much of it could be lent."""

import math
import shlex
import sys
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from rose.cli.machine import machine_card
from rose.cli.profile_report import SLAB_BYTES, ProfileAsked, print_profile, profile_report
from rose.cli.profile_trace import TRACE_KV_GIB, measure_trace
from rose.cli.runs import ends_interrupt, try_folder
from rose.clock import BootClock
from rose.demo.progress import phases
from rose.demo.report import write_json
from rose.errors import InvalidArgument
from rose.slo import SLO
from rose.units import GIB

_SLOS: Final = ("200:25", "500:50", "1000:100")
_TRACE_S: Final = 300.0
_ENGINE_S: Final = 300.0
_SECONDS_MAX: Final = 7 * 86_400.0
_READINGS_MAX: Final = 100_000


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
    show_default=f"what an engine says, {TRACE_KV_GIB:g} for a trace",
    help="Of serving's KV pool.",
)
@click.option("--reserve-gib", type=float, default=4.0, show_default=True, help="Of it never lent.")
@click.option("--load", type=float, help="Of a trace: bring it to this busy share of serving.")
@click.option("--gpu", help="Of a trace: a device of rose's table, with --model.")
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
    asked = ProfileAsked(
        source=source,
        seconds=_seconds(seconds, every_s, standard=_ENGINE_S if is_url else _TRACE_S),
        every_s=every_s,
        slos=tuple(_slo(text) for text in slo_texts or _SLOS),
        model=model,
        kv_bytes=None if kv_gib is None else _bytes("--kv-gib", kv_gib, least=SLAB_BYTES),
        reserve_bytes=_bytes("--reserve-gib", reserve_gib),
        load=load,
        gpu=gpu,
        noise=noise,
        seed=seed,
    )
    console, clock = Console(highlight=False), BootClock()
    with phases(console, clock) as shown, ends_interrupt():
        if is_url:
            # Here, because it needs the extra `metrics`.
            from rose.cli.profile_engine import measure_engine  # noqa: PLC0415

            measured = measure_engine(asked, clock, shown)
        else:
            measured = measure_trace(asked, shown)
    if not measured.observations:
        return 130
    if not measured.is_complete:
        console.print("stopped early: reporting what there is")
    report = profile_report(
        measured, command=shlex.join(["rose", *sys.argv[1:]]), machine=machine_card()
    )
    write_json(report, out, "profile")
    print_profile(report, console)
    console.print(f"report: {out / 'profile.json'}", markup=False, soft_wrap=True)
    return 0 if measured.is_complete else 130


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


def _bytes(option: str, gib: float, *, least: int = 0) -> int:
    if not (math.isfinite(gib) and 0 <= gib <= 1 << 20):
        raise InvalidArgument(f"{option} of {gib:g} is no size")
    if gib * GIB < least:
        raise InvalidArgument(f"{option} of {gib:g} holds nothing")
    return int(gib * GIB)
