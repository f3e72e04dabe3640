"""`rose demo`: serve a trace, let rollouts borrow what is idle, and report what serving felt."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rose.cli.arms import Bench, BenchSettings, bench, choose_cores
from rose.cli.machine import machine_card
from rose.cli.record import ARMS, RunRecord, WindowRecord
from rose.cli.report import print_table, summarise, write_report
from rose.cli.timeline import read_timeline
from rose.clock import BootClock, Clock
from rose.config import read_environment
from rose.engines.transformers import load_model
from rose.errors import InvalidArgument
from rose.slo import SLO, Policy
from rose.slo.verify import verify_log
from rose.traces import Trace, generate_chat, read_trace
from rose.units import MIB

# The Azure chat trace, whose statistics the generator has, comes at 5.53 requests per second.
_GENERATED_RATE_RPS: Final = 5.53
# Enough requests for a P99 with three beyond it, with some to spare.
_REQUESTS_PER_ARM: Final = 330
# The whole run takes this at most, whatever the rate turns out to be.
_MEASURED_S_MAX: Final = 290.0
# What serving accepts: a request must fit into the pool beside others.
_PROMPT_TOKENS_MAX: Final = 1024
_OUTPUT_TOKENS_MAX: Final = 256
_ALONE_S: Final = 1.5
_WARM_UP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long what runs.

    Args:
        windows: rounds; each replays one piece of the trace under every arm.
        window_s: length of the piece.
        is_quick: a look, not a measurement.
    """

    windows: int
    window_s: float
    is_quick: bool

    @classmethod
    def make(cls, *, rate_rps: float, windows: int, is_quick: bool) -> "Plan":
        """Choose a window length that gives enough requests within the time there is."""
        if is_quick:
            return cls(windows=min(windows, 3), window_s=2.5, is_quick=True)
        wanted_s = _REQUESTS_PER_ARM / rate_rps / windows
        allowed_s = _MEASURED_S_MAX / windows / len(ARMS)
        return cls(windows=windows, window_s=min(max(wanted_s, 6.0), allowed_s), is_quick=False)


@dataclass(slots=True)
class _Measured:
    """What a run has collected so far; an interrupt keeps it."""

    windows: list[WindowRecord] = field(default_factory=list)
    rollouts_alone: list[float] = field(default_factory=list)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise InvalidArgument(f"--{name.replace('_', '-')} must be > 0, not {value:g}")


def _load_trace(path: str | None, *, length_scale: float, seed: int) -> Trace:
    trace = (
        generate_chat(duration_s=3600.0, rate_rps=_GENERATED_RATE_RPS, seed=seed)
        if path is None
        else read_trace(path)
    )
    return trace.with_lengths(
        scale=length_scale, prompt_max=_PROMPT_TOKENS_MAX, output_max=_OUTPUT_TOKENS_MAX
    )


def _pieces(trace: Trace, plan: Plan, *, seed: int) -> list[Trace]:
    """Cut consecutive windows out of the trace, from a seeded start that leaves room for all."""
    room_s = trace.duration_s - plan.windows * plan.window_s
    if room_s < 0:
        raise InvalidArgument(
            f"trace {trace.name} covers {trace.duration_s:.0f} s at this load, less than "
            f"{plan.windows} windows of {plan.window_s:.1f} s: lower --windows or --load"
        )
    start_s = float(np.random.default_rng(seed).uniform(0.0, room_s))
    return [
        trace.window(start_s + number * plan.window_s, plan.window_s)
        for number in range(plan.windows)
    ]


@contextmanager
def _progress(console: Console, *, total: int) -> Iterator[tuple[Progress, TaskID]]:
    columns = (
        TextColumn("{task.description:<34}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} windows"),
        TimeElapsedColumn(),
    )
    is_quiet = read_environment().is_ci or not console.is_terminal
    with Progress(*columns, console=console, disable=is_quiet, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield progress, task


def _measure(
    built: Bench, pieces: list[Trace], plan: Plan, measured: _Measured, console: Console
) -> None:
    """Run every arm of every window, in an order that changes from round to round."""
    for arm in ARMS:
        built.run(pieces[0].window(0.0, min(_WARM_UP_S, plan.window_s)), arm=arm, window=-1)
    with _progress(console, total=len(pieces) * len(ARMS)) as (progress, task):
        for number, piece in enumerate(pieces):
            measured.rollouts_alone.append(built.rollouts_alone(_ALONE_S))
            turn = number % len(ARMS)
            for arm in ARMS[turn:] + ARMS[:turn]:
                progress.update(task, description=f"window {number + 1}: {arm.replace('_', ' ')}")
                measured.windows.append(built.run(piece, arm=arm, window=number))
                progress.advance(task)


@click.command()
@click.option("--trace", "trace_path", metavar="PATH", help="Azure CSV, plain or .gz.")
@click.option("--load", default=0.2, show_default=True, help="Share of the measured capacity.")
@click.option(
    "--length-scale", default=1 / 16, show_default="1/16", help="Factor on the trace's lengths."
)
@click.option("--quick", is_flag=True, help="End within a minute; a look, not a measurement.")
@click.option("--windows", default=8, show_default=True, help="Rounds of all four arms.")
@click.option("--serving-model", default="tiny-qwen2", show_default=True, help="Preset or folder.")
@click.option("--rollout-model", default="tiny-qwen3", show_default=True, help="Preset or folder.")
@click.option("--rollouts", default=8, show_default=True, help="Generations in flight.")
@click.option("--pool-mib", default=64, show_default=True, help="KV memory both engines share.")
@click.option("--reserve-mib", default=8, show_default=True, help="What serving always has.")
@click.option("--ttft-ms", default=200.0, show_default=True, help="Serving's target.")
@click.option("--tpot-ms", default=50.0, show_default=True, help="Serving's target.")
@click.option("--layers-per-segment", default=0.5, show_default=True, help="Between two gates.")
@click.option("--device", default="cpu", show_default=True, help="The device both share.")
@click.option("--cores", default=1, show_default=True, help="Cores that are the device (cpu).")
@click.option("--seed", default=0, show_default=True, help="Of traffic, prompts and weights.")
@click.option(
    "--out", "out_dir", default="rose-demo", show_default=True, help="Folder of the report."
)
def demo(  # noqa: PLR0917 (click passes options by name)
    trace_path: str | None,
    load: float,
    length_scale: float,
    quick: bool,  # noqa: FBT001 (a flag of the command line)
    windows: int,
    serving_model: str,
    rollout_model: str,
    rollouts: int,
    pool_mib: int,
    reserve_mib: int,
    ttft_ms: float,
    tpot_ms: float,
    layers_per_segment: float,
    device: str,
    cores: int,
    seed: int,
    out_dir: str,
) -> int:
    """Run serving and rollouts on one device, and report what serving noticed."""
    _check_positive(
        load=load,
        length_scale=length_scale,
        windows=windows,
        rollouts=rollouts,
        pool_mib=pool_mib,
        reserve_mib=reserve_mib,
        layers_per_segment=layers_per_segment,
    )
    console = Console()
    clock: Clock = BootClock()
    slo = SLO(ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    trace = _load_trace(trace_path, length_scale=length_scale, seed=seed)
    out = Path(out_dir)
    if out.exists() and not out.is_dir():
        raise InvalidArgument(f"--out {out_dir} is a file: name a folder")
    device_cores = choose_cores(cores)
    serving, rollout = load_model(serving_model, seed=seed), load_model(rollout_model, seed=seed)
    settings = BenchSettings(
        device=device,
        cores=device_cores,
        pool_bytes=pool_mib * MIB,
        reserve_bytes=reserve_mib * MIB,
        slo=slo,
        policy=Policy(),
        layers_per_segment=layers_per_segment,
        rollouts=rollouts,
        rollout_prompt_tokens=64,
        rollout_output_tokens=128,
        request_tokens=_PROMPT_TOKENS_MAX,
        log_path=out / "certificates.log",
        seed=seed,
    )
    measured, is_complete = _Measured(), False
    out.mkdir(parents=True, exist_ok=True)
    with bench(serving, rollout, settings, clock) as built:
        console.print(
            f"serving {serving_model}, rollouts {rollout_model}, one device: cores "
            f"{sorted(device_cores)}; trace {trace.name}"
        )
        try:
            capacity_rps = built.capacity_rps(trace)
            rate_rps = load * capacity_rps
            plan = Plan.make(rate_rps=rate_rps, windows=windows, is_quick=quick)
            console.print(
                f"capacity {capacity_rps:.1f} requests/s; load {load:g} is {rate_rps:.1f}; "
                f"{plan.windows} windows of {plan.window_s:.1f} s, {len(ARMS)} arms"
            )
            pieces = _pieces(trace.rescaled(rate_rps=rate_rps), plan, seed=seed)
            _measure(built, pieces, plan, measured, console)
            is_complete = True
        except KeyboardInterrupt:
            console.print("interrupted: reporting what there is")
        felt = built.felt()
    verification = verify_log(settings.log_path)
    record = RunRecord(
        windows=tuple(measured.windows),
        rollout_alone_tokens_per_s=float(np.median(measured.rollouts_alone or [0.0])),
        slo_ttft_ms=slo.ttft_ms,
        slo_tpot_ms=slo.tpot_ms,
        blocked_by_rollout_ms=felt.blocked_ms,
        segment_ms=felt.segment_ms,
        certificates_granted=verification.granted,
        certificates_verified=verification.verified,
        certificate_violations=len(verification.violations),
        revocations=felt.revocations,
        pauses=felt.pauses,
        timeline=read_timeline(settings.log_path, measured.windows),
        machine=machine_card(),
        settings={
            "trace": trace.name,
            "load": load,
            "length_scale": length_scale,
            "quick": quick,
            "windows": windows,
            "serving_model": serving_model,
            "rollout_model": rollout_model,
            "rollouts": rollouts,
            "pool_mib": pool_mib,
            "reserve_mib": reserve_mib,
            "layers_per_segment": layers_per_segment,
            "device": device,
            "cores": sorted(device_cores),
        },
        seed=seed,
        command=shlex.join(["rose", *sys.argv[1:]]),
        complete=is_complete,
    )
    write_report(record, out)
    print_table(summarise(record), console)
    console.print(f"report: {out / 'report.html'}")
    return 0 if is_complete else 130
