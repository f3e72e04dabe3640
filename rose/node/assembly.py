"""Puts a dedicated worker together: an engine, its live weights, and who brings them."""

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
    """An engine that runs, as a worker; `close` stops it and what brings its weights."""

    def __init__(
        self,
        worker: EngineWorker,
        engine: Engine,
        source: RemoteSource | None,
        parts: ExitStack,
        *,
        joined: Mapping[str, Any],
    ) -> None:
        """Own the parts of a worker that runs."""
        self.worker = worker
        self._engine = engine
        self._source = source
        self._parts = parts
        self._joined = joined

    def ready(self) -> Mapping[str, Any]:
        """Return what a scheduler is to know of it, by the names of its `WorkerJoined`."""
        return {**self._joined, "version": self._engine.version}

    def told(self, message: Mapping[str, Any]) -> None:
        """Follow a publisher that was started again: `{"weights": HOST:PORT, "token": TOKEN}`.

        Raises:
            InvalidArgument: the message is another, or this worker's weights never change.
        """
        match message:
            case {"weights": str(address), "token": str(token)} if self._source is not None:
                self._source.follow(address, token)
            case _:
                raise InvalidArgument(
                    f"a worker follows weights and their token, not {', '.join(message)}"
                )

    def close(self) -> None:
        """Stop the weights, then the engine: one that is stopped commits nothing."""
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
        options: what it is to be.
        on_event: takes its events, from the engine's thread.
        weights_token: what the publisher wants to be shown.
        clock: where time comes from.

    Raises:
        DeadlineExceeded: the engine does not answer.
        InvalidArgument: there is no such model, or a value does not fit.
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
            parts.callback(source.close)  # First: it breaks off what the receiver waits for.
        joined = {"worker": options.number, "seats": options.seats, **asdict(speed)}
        return DedicatedWorker(worker, engine, source, parts.pop_all(), joined=joined)
