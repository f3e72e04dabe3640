"""`rose demo`: serve a trace beside rollouts, and report their interference with serving."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click
import jinja2  # noqa: F401 - imported before msgspec, so that an error names the extra `demo`
from rich.console import Console

from rose._core import CudaDriver
from rose.cli.ranges import FiniteRange
from rose.cli.runs import ends_interrupt
from rose.clock import BootClock
from rose.compute import device_ordinal
from rose.engines.transformers import load_model
from rose.errors import InvalidArgument
from rose.slo import SLO, Policy
from rose_lab.cli.out_folder import try_folder
from rose_lab.cli.traffic import load_trace, traffic_options
from rose_lab.demo.experiment import (
    SHARE_ALL_SOLO_S,
    SLICE_S,
    Experiment,
    folder_of,
    run_experiment,
)
from rose_lab.demo.progress import phases
from rose_lab.demo.record import RunPlan, RunRecord
from rose_lab.demo.report import print_arms, print_table, write_report
from rose_lab.demo.schemes import demo_schemes
from rose_lab.demo.settings import (
    IN_FLIGHT,
    LR,
    OUTPUT_TOKENS,
    REQUEST_TOKENS,
    BenchSettings,
    check_policy,
    choose_core,
    rl_loop_settings,
)
from rose_lab.demo.summary import summarise
from rose_lab.machine import machine_card

# (rounds, seconds per slice). Twelve rounds take 5.5 minutes; set-up and repetitions take up to 3
# minutes more.
_ROUNDS: Final = (12, SLICE_S)
_ROUNDS_QUICK: Final = (2, 4.0)
_ROSE_SOLO_S: Final = 3.0
# A conformal bound at level epsilon needs at least 1 / epsilon - 1 steps with a full prefill chunk;
# a run has a few hundred.
_EPSILON: Final = 0.02
_GENERATED_S: Final = 3600.0
_VOID_STATUS: Final = 3


@click.command()
@traffic_options
@click.option("--load", default=0.2, help="Share of serving's measured capacity.")
@click.option(
    "--length-scale", default=1 / 16, show_default="1/16", help="Factor on the trace's lengths."
)
@click.option("--quick", is_flag=True, help="End within two minutes; too short to measure.")
@click.option("--serving-model", default="tiny-qwen2", help="Preset or folder.")
@click.option("--rollout-model", default="tiny-policy", help="Preset or folder.")
@click.option(
    "--synthetic",
    is_flag=True,
    help="Rollouts of a fixed length, without tools, trainer or second worker.",
)
@click.option(
    "--ttft-ms",
    type=float,
    show_default="3 x P99 of serving alone",
    help="Serving's target for TTFT.",
)
@click.option(
    "--tpot-ms",
    type=float,
    show_default="3 x P99 of serving alone",
    help="Serving's target for TPOT.",
)
@click.option(
    "--slowdown",
    type=FiniteRange(min=0, max=10),
    default=0.0,
    help="Share by which rollouts may slow running requests down; 0: idle time only.",
)
@click.option("--device", default="cpu", help="Shared device: cpu, cuda:0.")
@click.option("--broker", "has_broker", is_flag=True, help="Let a broker limit the device's loans.")
@click.option("--seed", default=0, help="Seed of traffic, prompts and weights.")
@click.option("--out", "out_dir", default="rose-demo", help="Folder of the report.")
def demo(  # noqa: PLR0917 (click passes options by name)
    trace_path: str | None,
    profile: str | None,
    load: float,
    length_scale: float,
    quick: bool,  # noqa: FBT001 (a flag of the command line)
    serving_model: str,
    rollout_model: str,
    synthetic: bool,  # noqa: FBT001 (a flag of the command line)
    ttft_ms: float | None,
    tpot_ms: float | None,
    slowdown: float,
    device: str,
    has_broker: bool,  # noqa: FBT001 (a flag of the command line)
    seed: int,
    out_dir: str,
) -> int:
    """Run serving and rollouts on one device, and report the interference with serving.

    The exit status is 0, 3 when the verdict is void, or 130 after an interrupt. An interrupt still
    reports the measurements so far.
    """
    for name, value in (("--load", load), ("--length-scale", length_scale)):
        if not value > 0:
            raise InvalidArgument(f"{name} must be > 0, not {value:g}")
    # Invalid targets are refused here, before anything runs.
    SLO(ttft_ms=1.0 if ttft_ms is None else ttft_ms, tpot_ms=1.0 if tpot_ms is None else tpot_ms)
    out = Path(out_dir)
    try_folder(out)
    console, clock = Console(), BootClock()
    ordinal = device_ordinal(device)
    if ordinal is not None:
        CudaDriver.open().facts(ordinal)  # Fails before the models are loaded.
    on_cores = choose_core() if ordinal is None else frozenset()
    log_path = out / "certificates.log"
    bench = BenchSettings(
        device=device,
        cores=on_cores,
        policy=Policy(epsilon=_EPSILON),
        log_path=lambda _: log_path,
        seed=seed,
        has_broker=has_broker,
    )
    trace = load_trace(
        trace_path,
        profile,
        generated_s=_GENERATED_S,
        length_scale=length_scale,
        prompt_max=REQUEST_TOKENS,
        output_max=OUTPUT_TOKENS,
        seed=seed,
    )
    console.print(
        f"serving {serving_model}, rollouts {rollout_model}, one device: {device} "
        f"{sorted(bench.cores) or ''}; trace {trace.name}"
    )
    with phases(console, clock) as shown, TemporaryDirectory(prefix="rose-demo-") as scratch:
        shown.begin("loading the models")
        policy_model = load_model(rollout_model, seed=seed, device=device)
        # On a GPU there is no RL loop, because its dedicated worker would have no device.
        if not synthetic and ordinal is None:
            check_policy(rollout_model, policy_model)
            rl_loop = rl_loop_settings(
                model=rollout_model,
                seed=seed,
                folder=Path(scratch),
            )
            bench = replace(bench, rl_loop=rl_loop)
        plan = RunPlan(
            schemes=demo_schemes(slowdown),
            loads=(load,),
            seed=seed,
            settings={
                "trace": trace.name,
                "load": load,
                "length_scale": length_scale,
                "quick": quick,
                "serving_model": serving_model,
                "rollout_model": rollout_model,
                "in_flight": IN_FLIGHT,
                "lr": LR,
                "synthetic": synthetic,
                "slowdown": slowdown,
                "broker": has_broker,
                **bench.described(),
            },
            command=shlex.join(["rose", *sys.argv[1:]]),
            machine=machine_card(),
        )
        rounds, slice_s = _ROUNDS_QUICK if quick else _ROUNDS
        experiment = Experiment(
            plan=plan,
            serving_model=load_model(serving_model, seed=seed, device=device),
            rollout_model=policy_model,
            trace=trace,
            rounds=rounds,
            slice_s=slice_s,
            solo_s=(("share_all", SHARE_ALL_SOLO_S), ("rose", _ROSE_SOLO_S)),
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            bench=bench,
        )

        def on_interim(record: RunRecord) -> None:
            console.print("Interim, after two rounds; nothing is judged yet:")
            print_arms(summarise(record), console)

        with ends_interrupt(), folder_of(log_path):
            record = run_experiment(experiment, clock, shown, on_interim)
    report = summarise(record)
    write_report(record, out)
    print_table(report, console)
    console.print(f"report: {out / 'report.html'}", soft_wrap=True)
    if not record.complete:
        return 130
    return _VOID_STATUS if report["verdict"]["void"] else 0
