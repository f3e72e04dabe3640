"""`rose compare`: serving's slowdown and rollouts' harvest under each scheme, on equal requests."""

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click
from rich.console import Console

from rose.cli.runs import ends_interrupt
from rose.clock import BootClock
from rose.errors import InvalidArgument, Unavailable
from rose.slo import SLO, Policy
from rose_lab.cli.out_folder import try_folder
from rose_lab.cli.traffic import load_trace, traffic_options
from rose_lab.demo.progress import Phases, phases
from rose_lab.demo.record import RunPlan, RunRecord
from rose_lab.demo.report import print_loads, write_compared
from rose_lab.demo.schemes import MECHANISMS, ON_ENGINES, SCHEMES, SHARE_ALL, choose_schemes
from rose_lab.demo.summary import summarise_loads
from rose_lab.demo.virtual import VirtualExperiment, piece_of, run_virtual
from rose_lab.machine import machine_card
from rose_lab.sim.device import DeviceModel
from rose_lab.sim.load import at_load
from rose_lab.sim.simulation import SCHEMES as SIMULATED
from rose_lab.traces import Trace

# Duration of the generated trace at its profile's rate; long enough for any load.
_GENERATED_S: Final = 7200.0
_NOISE: Final = 0.1
_SECONDS_MAX: Final = 86_400.0
_VIRTUAL_OUTPUT_MAX: Final = 1 << 17  # tokens; no engine lets a request have more
_SERVING_MODEL: Final = "tiny-qwen2"
_ROLLOUT_MODEL: Final = "tiny-policy"
_LEFT_OUT: Final = (
    "Left out: static_split, which needs a device of several cores (this device has one), and "
    "clairvoyant, which must know all arrivals in advance. --virtual runs both."
)


def _loads(load: float | None, sweep: str | None, *, standard: float) -> tuple[float, ...]:
    if sweep is not None and load is not None:
        raise InvalidArgument("--load and --sweep both define how busy serving is; give only one")
    try:
        loads = [standard if load is None else load]
        loads = loads if sweep is None else sorted({float(one) for one in sweep.split(",")})
    except ValueError:
        raise InvalidArgument(
            f"--sweep must be a list of numbers such as 0.3,0.5,0.7, not {sweep}"
        ) from None
    for one in loads:
        if not 0 < one < 1:
            raise InvalidArgument(f"a load must be more than 0 and less than 1, not {one:g}")
    return tuple(loads)


@click.command()
@traffic_options
@click.option("--virtual", is_flag=True, help="Simulate a GPU in virtual time; needs no engine.")
@click.option(
    "--load",
    type=float,
    show_default="0.9 virtual, 0.3 otherwise",
    help="Busy share of serving's time; without --virtual, share of its measured capacity.",
)
@click.option("--sweep", metavar="A,B,…", help="Several loads instead of one.")
@click.option(
    "--ttft-ms",
    type=float,
    show_default="500 virtual, 3 x P99 of serving alone otherwise",
    help="Serving's target for TTFT.",
)
@click.option(
    "--tpot-ms",
    type=float,
    show_default="25 virtual, 3 x P99 of serving alone otherwise",
    help="Serving's target for TPOT.",
)
@click.option(
    "--schemes",
    "scheme_names",
    metavar="A,B,…",
    help=f"Schemes to run: {', '.join(SCHEMES)}; by default all that can run here.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NAME",
    help=f"Also run rose_slack without a mechanism: {', '.join(MECHANISMS)}. May be repeated.",
)
@click.option(
    "--seconds",
    type=float,
    show_default="120 virtual, 24 otherwise",
    help="Duration of each scheme at each load.",
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
    help="Standard deviation of the logarithm of step times; only with --virtual.",
)
@click.option("--seed", default=0, help="Seed of traffic, prompts and noise.")
@click.option("--out", "out_dir", default="rose-compare", help="Folder of the report.")
def compare(  # noqa: PLR0917 (click passes options by name)
    trace_path: str | None,
    profile: str | None,
    virtual: bool,  # noqa: FBT001 (a flag of the command line)
    load: float | None,
    sweep: str | None,
    ttft_ms: float | None,
    tpot_ms: float | None,
    scheme_names: str | None,
    without: tuple[str, ...],
    seconds: float | None,
    length_scale: float | None,
    noise: float | None,
    seed: int,
    out_dir: str,
) -> int:
    """Run every scheme for sharing a device on the same requests, and report the cost of each.

    The exit status is 0, or 130 after an interrupt. An interrupt still reports the measurements so
    far.
    """
    out = Path(out_dir)
    try_folder(out)
    if seconds is None:
        seconds = 120.0 if virtual else 24.0
    if not 0 < seconds <= _SECONDS_MAX:
        raise InvalidArgument(f"--seconds must be above 0 and at most a day, not {seconds:g}")
    if noise is not None and not virtual:
        raise InvalidArgument("--noise needs --virtual: real engines have noise of their own")
    # Invalid targets are refused here, before anything runs.
    slo = SLO(
        ttft_ms=500.0 if ttft_ms is None else ttft_ms, tpot_ms=25.0 if tpot_ms is None else tpot_ms
    )
    loads = _loads(load, sweep, standard=0.9 if virtual else 0.3)
    possible = frozenset(SIMULATED) if virtual else ON_ENGINES
    schemes = choose_schemes(scheme_names, without, possible=possible)
    if length_scale is None:
        length_scale = 1.0 if virtual else 1 / 16
    trace = load_trace(
        trace_path,
        profile,
        generated_s=_GENERATED_S,
        length_scale=length_scale,
        prompt_max=None if virtual else 1024,
        output_max=None if virtual else 256,
        seed=seed,
    )
    longest = int(trace.output_tokens.max(initial=0))
    if virtual and longest > _VIRTUAL_OUTPUT_MAX:
        raise InvalidArgument(
            f"--virtual simulates every token of an output, so it must have at most "
            f"{_VIRTUAL_OUTPUT_MAX} tokens, not {longest}; lower --length-scale"
        )
    plan = RunPlan(
        schemes=schemes,
        loads=loads,
        seed=seed,
        settings={
            "trace": trace.name,
            "loads": loads,
            "seconds": seconds,
            "length_scale": length_scale,
        },
        command=shlex.join(["rose", *sys.argv[1:]]),
        machine=machine_card(),
    )
    console = Console(highlight=False)
    console.print(f"trace {trace.name}; {len(schemes)} schemes", markup=False)
    with (
        phases(console, BootClock()) as shown,
        TemporaryDirectory(prefix="rose-compare-") as scratch,
        ends_interrupt(),
    ):
        if virtual:
            device = DeviceModel(noise=_NOISE if noise is None else noise)
            piece = partial(piece_of, trace, seconds=seconds, seed=seed)
            experiment = VirtualExperiment(
                plan,
                lambda busy: at_load(piece, device, busy=busy, seed=seed, rate=trace.mean_rate_rps),
                slo,
                device,
            )
            record = run_virtual(experiment, Path(scratch), shown.begin)
        else:
            record = on_engines(
                plan, trace, seconds, Path(scratch), shown, targets_ms=(ttft_ms, tpot_ms)
            )
    report = summarise_loads(record)
    written = write_compared(report, out)
    print_loads(report, console)
    if not virtual:
        console.print(_LEFT_OUT, soft_wrap=True)
    console.print(f"report: {', '.join(map(str, written))}", soft_wrap=True)
    return 0 if record.complete else 130


def on_engines(
    plan: RunPlan,
    trace: Trace,
    seconds: float,
    logs: Path,
    shown: Phases,
    *,
    targets_ms: tuple[float | None, float | None] = (None, None),
    solo: tuple[str, ...] = (SHARE_ALL,),
) -> RunRecord:
    """Run every scheme on two small models, on one core of this machine.

    Args:
        plan: arms and loads; a load is a share of the saturation throughput of serving alone.
        trace: source of request lengths.
        seconds: duration of traffic for each scheme at each load.
        logs: folder for certificate logs.
        shown: progress display, which gets the name of each part of the run when it starts.
        targets_ms: TTFT and TPOT targets; None for 3 x the P99 of serving alone.
        solo: arms whose rollouts also run alone in every round.

    Raises:
        Unavailable: a required package is not installed.
    """
    try:
        from rose.engines.transformers import load_model  # noqa: PLC0415
        from rose_lab.demo import experiment, settings  # noqa: PLC0415 (--virtual needs no engine)
    except ImportError as error:
        raise Unavailable(
            f"real engines need {error.name}, which is not installed; install rose-lab[demo], or "
            f"add --virtual"
        ) from None
    bench = settings.BenchSettings(
        device="cpu",
        cores=settings.choose_core(),
        policy=Policy(),
        log_path=lambda arm: logs / f"{arm}.log",
        seed=plan.seed,
        has_turns=True,
    )
    models = {"serving_model": _SERVING_MODEL, "rollout_model": _ROLLOUT_MODEL}
    rounds = max(1, round(seconds / experiment.SLICE_S))
    return experiment.run_experiment(
        experiment.Experiment(
            plan=replace(plan, settings={**plan.settings, **models, **bench.described()}),
            serving_model=load_model(_SERVING_MODEL, seed=plan.seed, device="cpu"),
            rollout_model=load_model(_ROLLOUT_MODEL, seed=plan.seed, device="cpu"),
            trace=trace,
            rounds=rounds,
            slice_s=seconds / rounds,
            solo_s=tuple((arm, experiment.SHARE_ALL_SOLO_S) for arm in solo),
            ttft_ms=targets_ms[0],
            tpot_ms=targets_ms[1],
            bench=bench,
        ),
        BootClock(),
        shown,
        lambda _: None,
    )
