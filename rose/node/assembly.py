"""Build a worker: a dedicated or borrowed engine, its weights, and the receiver of new weights."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rose.clock import Clock
from rose.engines.transformers import (
    Engine,
    EngineConfig,
    Model,
    kv_geometry,
    load_model,
    rollout_engine,
    stock_engine,
)
from rose.engines.transformers.live_weights import LiveWeights
from rose.engines.transformers.worker import EngineWorker
from rose.errors import InvalidArgument
from rose.executor import CoServing
from rose.node.feed import receive
from rose.node.speed import measure
from rose.scheduler.worker import WorkerEvent, WorkerKind
from rose.transfer.plan.tiling import plain_tiling
from rose.transfer.tensors import StoredTensor
from rose.transfer.wire.remote import RemoteSource
from rose.units import ceil_div


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of one worker.

    Args:
        model: preset name or model directory.
        seed: random seed of a preset's weights.
        number: id of the worker in events.
        seats: maximum sequences in a step.
        kv_tokens: capacity of the KV cache in tokens; for a borrowed worker, the maximum on loan.
        attach: socket of the device that lends memory and time; None for a dedicated worker.
        weights: HOST:PORT of the publisher; None if the weights never change.
        version: number of the initial weights.
    """

    model: str
    seed: int
    number: int
    seats: int
    kv_tokens: int
    attach: Path | None
    weights: str | None
    version: int


class AssembledWorker:
    """A running engine as a worker; `close` stops it and its weight receiver."""

    def __init__(
        self,
        worker: EngineWorker,
        engine: Engine,
        source: RemoteSource | None,
        parts: ExitStack,
        *,
        joined: Mapping[str, Any],
    ) -> None:
        """Take ownership of the parts of a running worker."""
        self.worker = worker
        self._engine = engine
        self._source = source
        self._parts = parts
        self._joined = joined

    def ready(self) -> Mapping[str, Any]:
        """Return the fields of this worker's `WorkerJoined` event."""
        return {**self._joined, "version": self._engine.version}

    def receive(self, message: Mapping[str, Any]) -> None:
        """Follow a restarted publisher, given as `{"weights": HOST:PORT, "token": TOKEN}`.

        Raises:
            InvalidArgument: the message has other keys, or this worker's weights never change.
        """
        match message:
            case {"weights": str(address), "token": str(token)} if self._source is not None:
                self._source.follow(address, token)
            case _ if self._source is None:
                raise InvalidArgument(
                    "this worker follows no publisher: start it with --weights HOST:PORT"
                )
            case _:
                raise InvalidArgument(
                    "the message must have the fields weights and token, both texts, "
                    f"got {', '.join(message)}"
                )

    def close(self) -> None:
        """Stop the weight receiver and then the engine, which the receiver's commits need."""
        self._parts.close()


def assemble(
    options: WorkerOptions,
    on_event: Callable[[WorkerEvent], None],
    *,
    weights_token: str,
    clock: Clock,
) -> AssembledWorker:
    """Build and start a worker in this process.

    Args:
        options: configuration of the worker.
        on_event: called with the worker's events, in the engine's thread.
        weights_token: token of the weight publisher.
        clock: time source.

    Raises:
        DeadlineExceeded: the engine does not answer.
        InvalidArgument: the model is unknown, or an option does not suit the model or the device.
        Unavailable: the engine does not run, or the publisher cannot be reached.
    """
    config = EngineConfig(
        max_requests_per_batch=options.seats,
        prefix_cache=True,
        sampling=True,
        version=options.version,
        clock=clock,
    )
    with ExitStack() as parts:
        source = None
        if options.weights is not None:
            source = RemoteSource(options.weights, weights_token)
            parts.callback(source.close)
        model = load_model(options.model, seed=options.seed)
        weights = _live_weights(model, source)
        kind, engine = _engine(model, config, options, parts)
        worker = EngineWorker(engine, options.number, kind, on_event)
        engine.start()
        parts.callback(engine.stop)
        speed = measure(engine, clock, seats=options.seats)
        if source is not None:
            receiver = receive(source, weights, worker, version=options.version)
            parts.callback(receiver.close)
            parts.callback(source.close)  # The source closes first: this ends the receiver's wait.
        if kind is WorkerKind.BORROWED:
            worker.grant()
        joined = {
            "worker": options.number,
            "kind": kind.value,
            "seats": options.seats,
            **asdict(speed),
        }
        return AssembledWorker(worker, engine, source, parts.pop_all(), joined=joined)


def _engine(
    model: Model, config: EngineConfig, options: WorkerOptions, parts: ExitStack
) -> tuple[WorkerKind, Engine]:
    """Build an engine with its own memory, or with memory that a device lends."""
    cache_blocks = ceil_div(options.kv_tokens, config.page_tokens)
    if options.attach is None:
        return WorkerKind.DEDICATED, stock_engine(model, config, cache_blocks=cache_blocks)
    geometry = kv_geometry(model, config)
    device = parts.enter_context(CoServing.attach(options.attach))
    lane = device.rollout(geometry, limit_bytes=cache_blocks * geometry.block_bytes)
    return WorkerKind.BORROWED, rollout_engine(model, lane, config, layers_per_segment=1)


def _live_weights(model: Model, source: RemoteSource | None) -> LiveWeights:
    """Divide a model's weights into tiles as the publisher does: by tensor, or as one row."""
    hello = None if source is None else source.hello()
    if hello is None or not hello.tensors:
        return LiveWeights(model)
    stored = [
        StoredTensor(name, "BF16", tuple(one.shape)) for name, one in model.named_parameters()
    ]
    tiles = plain_tiling(stored).tiles
    if tiles.layout != hello.layout:
        raise InvalidArgument(
            f"the publisher must publish the {len(stored)} parameters of "
            f"'{model.name_or_path or type(model).__name__}' in bf16, but publishes "
            f"{len(hello.tensors)} tensors of another layout"
        )
    return LiveWeights(model, by_name=tiles)
