"""Build an engine as a worker: dedicated or borrowed, with the receiver of its weights."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rose.clock import Clock
from rose.closing import Closing
from rose.engines.http import EngineSpeed
from rose.engines.transformers import (
    Engine,
    EngineConfig,
    Model,
    ModelFacts,
    kv_geometry,
    load_model,
    rollout_engine,
    stock_engine,
)
from rose.engines.transformers.live_weights import LiveWeights
from rose.engines.transformers.worker import EngineWorker
from rose.errors import DeadlineExceeded, InvalidArgument
from rose.executor import CoServing
from rose.node.feed import receive
from rose.node.speed import measure
from rose.scheduler.worker import WorkerEvent, WorkerKind
from rose.transfer.plan.tiling import plain_tiling
from rose.transfer.tensors import StoredTensor
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.security import TlsFiles
from rose.units import ceil_div

# A borrower may get no quantum for as long as serving has requests; its first turns tell its speed.
_MEASURE_BORROWED_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Following:
    """The publisher of an engine's weights.

    Args:
        address: HOST:PORT.
        token: its token.
        tls: certificates; None: the address is on loopback.
    """

    address: str
    token: str = field(repr=False)
    tls: TlsFiles | None = None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one engine.

    Args:
        model: preset name or model directory.
        seed: random seed of a preset's weights.
        seats: most sequences in a step.
        kv_tokens: capacity of the KV cache in tokens; for a borrower, the most on loan.
        device: device of the weights, "cpu" or "cuda:0".
        attach: socket of the device that lends memory and time; None for a dedicated engine.
        weights: publisher of the weights; None if they never change.
        version: number of the initial weights.
    """

    model: str
    seed: int = 0
    seats: int = 8
    kv_tokens: int = 32_768
    device: str = "cpu"
    attach: Path | None = None
    weights: Following | None = None
    version: int = 0

    @property
    def kind(self) -> WorkerKind:
        """Kind of the worker."""
        return WorkerKind.DEDICATED if self.attach is None else WorkerKind.BORROWED


class LoadedModel:
    """A model and its weights, for one engine after the other.

    Args:
        options: options of the engines.
        instance: random name of this process.
        clock: time source.

    Raises:
        InvalidArgument: the model is unknown, or an option does not suit it.
        Unavailable: there is no such device, or the publisher cannot be reached.
    """

    def __init__(self, options: EngineOptions, instance: str, clock: Clock) -> None:
        self._name = f"engine-{instance}"
        self.options = options
        self.version = options.version
        self.speed: EngineSpeed | None = None
        self._clock = clock
        self.model = load_model(options.model, seed=options.seed, device=options.device)
        self.facts = ModelFacts.of(self.model)
        with ExitStack() as parts:
            self._weights = _live_weights(self.model, self._source(parts))

    def _source(self, parts: ExitStack) -> RemoteSource | None:
        """Connect to the publisher; `parts` closes the connection."""
        follow = self.options.weights
        if follow is None:
            return None
        source = RemoteSource(follow.address, follow.token, tls=follow.tls)
        parts.callback(source.close)
        return source

    def run(self, number: int, on_event: Callable[[WorkerEvent], None]) -> "RunningEngine":
        """Start an engine over the model. Close the last one before.

        Args:
            number: number of the worker in events.
            on_event: called with the worker's events, in the engine's thread.

        Raises:
            DeadlineExceeded: the engine does not answer.
            InvalidArgument: an option does not suit the model or the device.
            Unavailable: the engine does not run, or no device lends.
        """
        options = self.options
        config = EngineConfig(
            max_requests_per_batch=options.seats,
            prefix_cache=True,
            sampling=True,
            version=self.version,
            clock=self._clock,
        )
        with ExitStack() as parts:
            engine = _engine(self.model, config, options, parts)
            worker = EngineWorker(engine, number, options.kind, on_event)
            engine.start()
            parts.callback(self._stopped, engine)
            parts.callback(engine.stop)
            if self.speed is None:
                self.speed = _measured(engine, options, self._clock)
            with ExitStack() as closing:
                source = self._source(closing)
                if source is not None:
                    receiver = receive(
                        source, self._weights, worker, name=self._name, version=self.version
                    )
                    parts.callback(receiver.close)
                # The source closes first: this ends the receiver's wait.
                parts.push(closing.pop_all())
            if options.kind is WorkerKind.BORROWED:
                worker.grant()
            return RunningEngine(worker, engine, parts.pop_all())

    def _stopped(self, engine: Engine) -> None:
        self.version = engine.version


class RunningEngine(Closing):
    """A running engine as a worker; `close` stops it and its weight receiver."""

    def __init__(self, worker: EngineWorker, engine: Engine, parts: ExitStack) -> None:
        """Own the parts of a running engine."""
        self.worker = worker
        self.engine = engine
        self._parts = parts

    def close(self) -> None:
        """Stop the weight receiver and then the engine, which the receiver's commits need."""
        self._parts.close()


def _measured(engine: Engine, options: EngineOptions, clock: Clock) -> EngineSpeed | None:
    if options.kind is WorkerKind.DEDICATED:
        return measure(engine, clock, seats=options.seats)
    with suppress(DeadlineExceeded):
        return measure(engine, clock, seats=options.seats, wait_s=_MEASURE_BORROWED_S)
    return None


def _engine(model: Model, config: EngineConfig, options: EngineOptions, parts: ExitStack) -> Engine:
    """Build an engine with its own memory, or with memory that a device lends."""
    cache_blocks = ceil_div(options.kv_tokens, config.page_tokens)
    if options.attach is None:
        return stock_engine(model, config, cache_blocks=cache_blocks)
    geometry = kv_geometry(model, config)
    device = parts.enter_context(CoServing.attach(options.attach))
    lane = device.rollout(geometry, limit_bytes=cache_blocks * geometry.block_bytes)
    if lane.slabs_max() == 0:
        slab_tokens = lane.kv.blocks_per_slab * lane.kv.geometry.block_tokens
        raise InvalidArgument(
            f"the device lends slabs of {slab_tokens} tokens of this model, and none fits: "
            f"--kv-tokens must be at least {slab_tokens}, or serving's pool larger"
        )
    return rollout_engine(model, lane, config, layers_per_segment=1)


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
