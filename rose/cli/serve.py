"""`rose serve --rollouts WORKERS`: runs the rollout service in front of workers."""

import asyncio
import json
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rose.adapters import RolloutService, ServiceLimits, TrialWorker, rollout_app
from rose.adapters.listening import Tls, listening
from rose.adapters.trial import commit_trial_weights
from rose.adapters.weight_updates import WeightSource
from rose.cli.runs import read_named
from rose.config import quiet_grpc, read_environment
from rose.errors import InvalidArgument
from rose.scheduler.turns import capabilities_of
from rose.scheduler.worker import WorkerKind

if TYPE_CHECKING:
    from rose.adapters.text import Tokenizer

_TRIAL: Final = "trial"
_TRIAL_WORKERS_MAX: Final = 64
_LINE_BYTES_MAX: Final = 1 << 16
_PATH: Final = click.Path(path_type=Path)
_LIMITS: Final = ServiceLimits()


async def join(
    service: RolloutService, source: str, first: int, parts: ExitStack
) -> list[TrialWorker]:
    """Register the workers that one option `--rollouts` names.

    Args:
        service: service that the workers join.
        source: `trial`, `trial:N`, or a file with the line of `python -m rose.node.worker`.
        first: number of the first trial worker; further workers count up from this number.
        parts: stack that closes the workers at its end.

    Returns:
        The trial workers; empty if `source` is a file.

    Raises:
        InvalidArgument: the source is invalid, or the number of a worker is taken.
    """
    name, _, count = source.partition(":")
    if name != _TRIAL:
        await _join_node(service, Path(source), parts)
        return []
    number = int(count) if count.isdecimal() else 0 if count else 1
    if not 1 <= number <= _TRIAL_WORKERS_MAX:
        raise InvalidArgument(f"trial workers must be 1 to {_TRIAL_WORKERS_MAX}, got {count}")
    workers = [
        parts.enter_context(TrialWorker(first + place, WorkerKind.BORROWED, service.receive))
        for place in range(number)
    ]
    for worker in workers:
        await service.register(worker, worker.capabilities)
        worker.grant()
    return workers


async def _join_node(service: RolloutService, path: Path, parts: ExitStack) -> None:
    quiet_grpc()
    from rose.scheduler.remote import RemoteWorker  # noqa: PLC0415 (quiet_grpc must run first)

    try:
        document: Any = json.loads(read_named(path, _LINE_BYTES_MAX))
        number, can = document["worker"], capabilities_of(document)
        kind = WorkerKind(document["kind"])
        address, token = str(document["address"]), str(document["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"{path} must hold the line that 'python -m rose.node.worker' writes: {error}"
        ) from error
    worker = RemoteWorker(address, token, number, kind, service.receive)
    parts.callback(worker.close)
    await service.register(worker, can)


@click.command()
@click.option(
    "--rollouts",
    "sources",
    required=True,
    multiple=True,
    metavar="WORKERS",
    help="trial[:N], or a file with the line of `python -m rose.node.worker`. May be repeated.",
)
@click.option("--listen", default="127.0.0.1:8000", metavar="ADDRESS")
@click.option("--model", default="rose", help="Model name in requests.")
@click.option("--dtype", default="bfloat16", help="Dtype of the weights.")
@click.option("--tokenizer", type=_PATH, metavar="FOLDER", help="Tokenizer for text and chat.")
@click.option(
    "--tls", nargs=2, type=_PATH, metavar="CERT KEY", help="PEM files, to admit other machines."
)
@click.option("--sequences", default=_LIMITS.sequences, help="Most sequences in flight.")
@click.option(
    "--context-tokens",
    default=_LIMITS.context_tokens,
    help="Most tokens of a prompt and its output.",
)
def serve(
    *,
    sources: tuple[str, ...],
    listen: str,
    model: str,
    dtype: str,
    tokenizer: Path | None,
    tls: Tls | None,
    sequences: int,
    context_tokens: int,
) -> None:
    """Serve rollouts on workers, through the APIs of vLLM and OpenAI.

    ROSE_TOKEN is the bearer token of clients. Without a token, every process on this machine may
    send requests, and no other machine may.
    """
    token = read_environment().token
    if tls is not None and token is None:
        raise InvalidArgument("--tls lets other machines in, so ROSE_TOKEN must be set")
    limits = ServiceLimits(sequences=sequences, context_tokens=context_tokens)

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with RolloutService(limits) as service:
            with ExitStack() as parts:
                trials: list[TrialWorker] = []
                for source in sources:
                    trials += await join(service, source, len(trials), parts)
                weights: WeightSource | None = (
                    partial(commit_trial_weights, trials) if trials else None
                )
                app = rollout_app(
                    service,
                    model=model,
                    dtype=dtype,
                    tokenizer=_loaded(tokenizer),
                    token=token,
                    weights=weights,
                )
                async with listening(app, listen, tls=tls) as url:
                    click.echo(f"listening: {url} workers={service.worker_count()}")
                    await stop.wait()

    asyncio.run(run())


def _loaded(folder: Path | None) -> "Tokenizer | None":
    if folder is None:
        return None
    from rose.adapters.hugging_face import load_tokenizer  # noqa: PLC0415 (an extra)

    return load_tokenizer(folder)
