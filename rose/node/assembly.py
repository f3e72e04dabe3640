"""Build a dedicated worker: an engine, its weights, and their receiver."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from rose.clock import Clock
from rose.engines.transformers import Engine, EngineConfig, load_model, stock_engine
from rose.engines.transformers.live_weights import LiveWeights
from rose.engines.transformers.worker import EngineWorker
from rose.errors import InvalidArgument
from rose.node.feed import receive
from rose.node.options import WorkerOptions
from rose.node.speed import measure
from rose.scheduler.worker import WorkerEvent, WorkerKind
from rose.transfer.wire.remote import RemoteSource
from rose.units import ceil_div


class DedicatedWorker:
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
        """Own the parts of a running worker."""
        self.worker = worker
        self._engine = engine
        self._source = source
        self._parts = parts
        self._joined = joined

    def ready(self) -> Mapping[str, Any]:
        """Return the worker's fields of `WorkerJoined`."""
        return {**self._joined, "version": self._engine.version}

    def receive(self, message: Mapping[str, Any]) -> None:
        """Follow a restarted publisher: `{"weights": HOST:PORT, "token": TOKEN}`.

        Raises:
            InvalidArgument: the message has other keys, or this worker's weights never change.
        """
        match message:
            case {"weights": str(address), "token": str(token)} if self._source is not None:
                self._source.follow(address, token)
            case _:
                raise InvalidArgument(
                    f"the message must have the fields weights and token, got {', '.join(message)}"
                )

    def close(self) -> None:
        """Stop the weight receiver, then the engine: a stopped engine cannot commit."""
        self._parts.close()


def assemble(
    options: WorkerOptions,
    on_event: Callable[[WorkerEvent], None],
    *,
    weights_token: str,
    clock: Clock,
) -> DedicatedWorker:
    """Build and start a worker on this process's cores.

    Args:
        options: configuration of the worker.
        on_event: called with the worker's events, in the engine's thread.
        weights_token: token of the weight publisher.
        clock: time source.

    Raises:
        DeadlineExceeded: the engine does not answer.
        InvalidArgument: the model is unknown, or a value does not fit.
        Unavailable: the engine does not run, or the publisher cannot be reached.
    """
    model = load_model(options.model, seed=options.seed)
    weights = LiveWeights(model)
    config = EngineConfig(
        max_requests_per_batch=options.seats,
        prefix_cache=True,
        sampling=True,
        version=options.version,
        clock=clock,
    )
    cache_blocks = ceil_div(options.kv_tokens, config.page_tokens)
    engine = stock_engine(model, config, cache_blocks=cache_blocks)
    worker = EngineWorker(engine, options.number, WorkerKind.DEDICATED, on_event)
    with ExitStack() as parts:
        engine.start()
        parts.callback(engine.stop)
        speed = measure(engine, clock, seats=options.seats)
        source = None
        if options.weights is not None:
            source = RemoteSource(options.weights, weights_token)
            receiver = receive(source, weights, worker, version=options.version)
            parts.callback(receiver.close)
            parts.callback(source.close)  # Closed first: this interrupts the receiver's wait.
        joined = {"worker": options.number, "seats": options.seats, **asdict(speed)}
        return DedicatedWorker(worker, engine, source, parts.pop_all(), joined=joined)
