"""`rose profile URL`: a running engine's idle capacity over time, and how much could be lent."""

import math
import shlex
import sys
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from rose.cli.runs import ends_interrupt
from rose.clock import BootClock
from rose.errors import InvalidArgument
from rose.slo import SLO
from rose.units import GIB
from rose_lab.cli.out_folder import try_folder
from rose_lab.cli.profile_report import ProfileAsked, print_profile, profile_report
from rose_lab.demo.progress import phases
from rose_lab.demo.report import write_json
from rose_lab.machine import machine_card

_SLOS: Final = ("200:25", "500:50", "1000:100")
_SECONDS_MAX: Final = 7 * 86_400.0
_READINGS_MAX: Final = 100_000


@click.command()
@click.argument("url")
@click.option(
    "--slo",
    "slo_texts",
    multiple=True,
    metavar="TTFT:TPOT",
    help=f"Targets in ms; may be repeated.  [default: {', '.join(_SLOS)}]",
)
@click.option("--seconds", type=float, default=300.0, help="Duration of the measurement.")
@click.option("--every", "every_s", type=float, default=5.0, help="Interval in seconds.")
@click.option("--model", help="The engine's model: a name that rose knows, or a config.json.")
@click.option(
    "--kv-gib",
    type=float,
    show_default="what the engine reports",
    help="Size of serving's KV pool.",
)
@click.option(
    "--reserve-gib", type=float, default=4.0, help="Part of the KV pool that is never lent."
)
@click.option("--out", "out_dir", default="rose-profile", help="Folder of the report.")
def profile(
    *,
    url: str,
    slo_texts: tuple[str, ...],
    seconds: float,
    every_s: float,
    model: str | None,
    kv_gib: float | None,
    reserve_gib: float,
    out_dir: str,
) -> int:
    """Measure serving's idle resources over time, and report how much could be lent at which SLO.

    URL is a vLLM or SGLang engine (http://localhost:8000). The command only requests its metrics.
    The exit status is 0, or 130 after an interrupt. An interrupt still reports the readings so far.
    """
    out = Path(out_dir)
    try_folder(out)
    _check_times(seconds, every_s)
    asked = ProfileAsked(
        url=url,
        seconds=seconds,
        every_s=every_s,
        slos=tuple(_slo(text) for text in slo_texts or _SLOS),
        model=model,
        kv_bytes=None if kv_gib is None else _bytes("--kv-gib", kv_gib),
        reserve_bytes=_bytes("--reserve-gib", reserve_gib),
    )
    console, clock = Console(highlight=False), BootClock()
    with phases(console, clock) as shown, ends_interrupt():
        # Imported here, because it needs the extra `metrics`.
        from rose_lab.cli.profile_engine import measure_engine  # noqa: PLC0415

        measured = measure_engine(asked, clock, shown)
    if not measured.observations:
        return 130
    if not measured.is_complete:
        console.print("stopped early: reporting the readings so far")
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
            f"--slo must be a pair of targets in ms above 0, such as 500:50, not {text}"
        ) from None


def _check_times(seconds: float, every_s: float) -> None:
    for name, value in (("--seconds", seconds), ("--every", every_s)):
        if not 0 < value <= _SECONDS_MAX:
            raise InvalidArgument(f"{name} must be above 0 and at most a week, not {value:g}")
    if seconds / every_s > _READINGS_MAX:
        raise InvalidArgument(
            f"--seconds {seconds:g} with --every {every_s:g} takes more than {_READINGS_MAX} "
            f"readings; give a larger --every"
        )


def _bytes(option: str, gib: float) -> int:
    if not (math.isfinite(gib) and 0 <= gib <= 1 << 20):
        raise InvalidArgument(f"{option} must be from 0 to {1 << 20} GiB, got {gib:g}")
    return int(gib * GIB)
