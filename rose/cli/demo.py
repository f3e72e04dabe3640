"""`rose demo`: serve a trace, let rollouts borrow what is idle, and report what serving felt."""

import os
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from rose._core import CudaDriver
from rose.cli.interrupts import ends_interrupt
from rose.cli.machine import machine_card
from rose.cli.traffic import load_trace, traffic_options
from rose.clock import BootClock
from rose.compute import device_ordinal
from rose.demo.bench import BenchSettings, RemoteSettings, choose_cores
from rose.demo.circle_options import check_policy, circle_settings, tool_wait_s
from rose.demo.experiment import Experiment, run_experiment
from rose.demo.report import print_table, summarise, write_report
from rose.engines.transformers import load_model
from rose.errors import InvalidArgument
from rose.slo import SLO, Policy
from rose.units import MIB

# What serving accepts: a request must fit into the pool beside others.
_PROMPT_TOKENS_MAX: Final = 1024
_OUTPUT_TOKENS_MAX: Final = 256
_ROLLOUT_PROMPT_TOKENS: Final = 64
_ROLLOUT_OUTPUT_TOKENS: Final = 128
_GENERATED_S: Final = 3600.0


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise InvalidArgument(f"--{name.replace('_', '-')} must be > 0, not {value:g}")


@click.command()
@traffic_options
@click.option("--load", default=0.2, show_default=True, help="Share of the measured capacity.")
@click.option(
    "--length-scale", default=1 / 16, show_default="1/16", help="Factor on the trace's lengths."
)
@click.option("--quick", is_flag=True, help="End within a minute; a look, not a measurement.")
@click.option("--windows", default=8, show_default=True, help="Rounds of all four arms.")
@click.option("--serving-model", default="tiny-qwen2", show_default=True, help="Preset or folder.")
@click.option("--rollout-model", default="tiny-policy", show_default=True, help="Preset or folder.")
@click.option("--rollouts", default=8, show_default=True, help="Turns at once on a worker.")
@click.option("--in-flight", default=32, show_default=True, help="Trajectories under way.")
@click.option("--lr", default=1e-6, show_default=True, help="Of the trainer.")
@click.option("--tools", "tools_path", metavar="PATH", help="Trace of agents, for tool times.")
@click.option(
    "--synthetic", is_flag=True, help="Rollouts of a fixed length: no tools, trainer, 2nd worker."
)
@click.option("--pool-mib", default=64, show_default=True, help="KV memory both engines share.")
@click.option("--reserve-mib", default=8, show_default=True, help="What serving always has.")
@click.option("--ttft-ms", default=200.0, show_default=True, help="Serving's target.")
@click.option("--tpot-ms", default=50.0, show_default=True, help="Serving's target.")
@click.option(
    "--mode",
    type=click.Choice(["idle", "slack"]),
    default="idle",
    show_default=True,
    help="slack: rollouts also run between steps, as far as TPOT allows.",
)
@click.option("--layers-per-segment", default=0.5, show_default=True, help="Between two gates.")
@click.option("--device", default="cpu", show_default=True, help="What both share: cpu, cuda:0.")
@click.option("--cores", default=1, show_default=True, help="Cores that are the device (cpu).")
@click.option(
    "--processes",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="2: rollouts, --synthetic ones, have a process of their own.",
)
@click.option(
    "--broker", "has_broker", is_flag=True, help="A broker decides how much the device lends."
)
@click.option("--seed", default=0, show_default=True, help="Of traffic, prompts and weights.")
@click.option(
    "--out", "out_dir", default="rose-demo", show_default=True, help="Folder of the report."
)
def demo(  # noqa: PLR0917 (click passes options by name)
    trace_path: str | None,
    profile: str | None,
    load: float,
    length_scale: float,
    quick: bool,  # noqa: FBT001 (a flag of the command line)
    windows: int,
    serving_model: str,
    rollout_model: str,
    rollouts: int,
    in_flight: int,
    lr: float,
    tools_path: str | None,
    synthetic: bool,  # noqa: FBT001 (a flag of the command line)
    pool_mib: int,
    reserve_mib: int,
    ttft_ms: float,
    tpot_ms: float,
    mode: str,
    layers_per_segment: float,
    device: str,
    cores: int,
    processes: int,
    has_broker: bool,  # noqa: FBT001 (a flag of the command line)
    seed: int,
    out_dir: str,
) -> int:
    """Run serving and rollouts on one device, and report what serving noticed."""
    _check_positive(
        load=load,
        length_scale=length_scale,
        windows=windows,
        rollouts=rollouts,
        in_flight=in_flight,
        lr=lr,
        pool_mib=pool_mib,
        reserve_mib=reserve_mib,
        layers_per_segment=layers_per_segment,
    )
    if processes > 1 and not synthetic:
        raise InvalidArgument("--processes 2 runs rollouts of a fixed length: add --synthetic")
    out = Path(out_dir)
    if out.exists() and not out.is_dir():
        raise InvalidArgument(f"--out {out_dir} is a file: name a folder")
    console = Console()
    ordinal = device_ordinal(device)
    if ordinal is not None:
        CudaDriver.open().facts(ordinal)  # Says what is missing before the models are loaded.
    on_cores = choose_cores(cores) if ordinal is None else frozenset()
    bench = BenchSettings(
        device=device,
        cores=on_cores,
        pool_bytes=pool_mib * MIB,
        reserve_bytes=reserve_mib * MIB,
        slo=SLO(ttft_ms=ttft_ms, tpot_ms=tpot_ms),
        policy=Policy(mode=mode),
        layers_per_segment=layers_per_segment,
        rollouts=rollouts,
        rollout_prompt_tokens=_ROLLOUT_PROMPT_TOKENS,
        rollout_output_tokens=_ROLLOUT_OUTPUT_TOKENS,
        request_tokens=_PROMPT_TOKENS_MAX,
        log_path=out / "certificates.log",
        seed=seed,
        circle=None,
        tool_wait_s=tool_wait_s(tools_path, seed=seed),
        has_broker=has_broker,
    )
    trace = load_trace(
        trace_path,
        profile,
        generated_s=_GENERATED_S,
        length_scale=length_scale,
        prompt_max=_PROMPT_TOKENS_MAX,
        output_max=_OUTPUT_TOKENS_MAX,
        seed=seed,
    )
    console.print(
        f"serving {serving_model}, rollouts {rollout_model}, one device: {device} "
        f"{sorted(bench.cores) or ''}; trace {trace.name}"
    )
    policy_model = load_model(rollout_model, seed=seed, device=device)
    experiment = Experiment(
        serving_model=load_model(serving_model, seed=seed, device=device),
        rollout_model=policy_model,
        trace=trace,
        load=load,
        windows=windows,
        is_quick=quick,
        bench=bench,
        settings={
            "trace": trace.name,
            "load": load,
            "length_scale": length_scale,
            "quick": quick,
            "windows": windows,
            "serving_model": serving_model,
            "rollout_model": rollout_model,
            "rollouts": rollouts,
            "in_flight": in_flight,
            "lr": lr,
            "synthetic": synthetic,
            "pool_mib": pool_mib,
            "reserve_mib": reserve_mib,
            "mode": mode,
            "layers_per_segment": layers_per_segment,
            "device": device,
            "cores": sorted(bench.cores),
            "processes": processes,
            "broker": has_broker,
        },
        command=shlex.join(["rose", *sys.argv[1:]]),
        machine=machine_card(),
    )
    if not synthetic and ordinal is None:
        check_policy(rollout_model, policy_model)
    with tempfile.TemporaryDirectory(prefix="rose-demo-") as folder:
        if processes > 1:
            remote = RemoteSettings(Path(folder) / "device.sock", rollout_model)
            experiment = replace(experiment, bench=replace(bench, remote=remote))
        # On a GPU the borrower alone runs: the other worker has no device there.
        elif not synthetic and ordinal is None:
            circle = circle_settings(
                model=rollout_model,
                seed=seed,
                folder=Path(folder),
                cores=frozenset(os.sched_getaffinity(0)) - on_cores,
                lr=lr,
                in_flight=in_flight,
                seats=rollouts,
            )
            experiment = replace(experiment, bench=replace(bench, circle=circle))
        with ends_interrupt():
            record = run_experiment(experiment, BootClock(), console)
    write_report(record, out)
    print_table(summarise(record), console)
    console.print(f"report: {out / 'report.html'}", soft_wrap=True)
    return 0 if record.complete else 130
