"""Joins an engine of transformers to the rollout service that is its HTTP server."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rose.adapters import RolloutService, ServiceLimits, rollout_app
from rose.adapters.events_route import EngineState
from rose.adapters.fleet_limits import FleetLimits
from rose.adapters.hugging_face import load_tokenizer
from rose.cli.http_program import CLOSING, App, Door, has_tokenizer, serve_until_told
from rose.clock import BootClock
from rose.engines.http import ASSUMED
from rose.errors import Unavailable
from rose.node.assembly import EngineOptions, LoadedModel
from rose.node.host import NUMBER, EngineHost
from rose.node.hosted_worker import HostedWorker
from rose.scheduler.turns import Capabilities
from rose.scheduler.worker import WorkerEvent, WorkerKind

if TYPE_CHECKING:
    from rose.adapters.text import Tokenizer

# Fields of `Options` that the engine has; "seeds": a token depends on seed, context and position.
_FEATURES: Final = ("top_p", "top_k", "min_p", "min_tokens", "logprobs", "seeds")


async def serve_model(door: Door, name: str, options: EngineOptions) -> None:
    """Serve an engine until SIGTERM, or until it is lost for good.

    Args:
        door: where to listen.
        name: name of the model in requests.
        options: options of the engine.
    """
    logging.getLogger("ContinuousBatchingLogger").addFilter(_is_fault)
    instance = secrets.token_hex(8)
    loaded = LoadedModel(options, instance, BootClock())
    tokenizer = _tokenizer_of(options.model)
    limits = _limits_of(loaded, name, has_text=tokenizer is not None)
    service = RolloutService(ServiceLimits(context_tokens=limits.context_tokens))
    service.facts = lambda: limits
    events = EngineState(
        options.kind,
        limits,
        seats=options.seats,
        kv_tokens=options.kv_tokens,
        instance=instance,
    )
    app = rollout_app(
        service,
        model=name,
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        tokenizer=tokenizer,
        token=door.token,
        engine=events,
    )

    async def join(parts: AsyncExitStack, end: Callable[[str], None]) -> App:
        await _join(service, loaded, events, parts, end)
        return app

    await serve_until_told(service, door, join)


async def _join(
    service: RolloutService,
    loaded: LoadedModel,
    events: EngineState,
    parts: AsyncExitStack,
    end: Callable[[str], None],
) -> None:
    """Start the engine; a dedicated one is registered when this returns."""

    def receive(event: WorkerEvent) -> None:
        events.receive(event)
        service.receive(event)

    async def register() -> None:
        speed, options = loaded.speed or ASSUMED, loaded.options
        if loaded.speed is not None:
            events.add_facts(asdict(loaded.speed))
        can = Capabilities(options.seats, **asdict(speed), version=loaded.version)
        await service.register(worker, can, service.facts())
        registered.set()

    def ready() -> None:
        asyncio.run_coroutine_threadsafe(register(), loop)

    loop, registered = asyncio.get_running_loop(), asyncio.Event()
    worker = HostedWorker(NUMBER, loaded.options.kind, receive)
    host = await asyncio.to_thread(
        EngineHost,
        loaded,
        worker,
        on_ready=ready,
        on_wait=lambda wait: events.report("wait", wait),
        on_end=end,
        clock=BootClock(),
    )
    parts.push_async_callback(asyncio.to_thread, host.close)
    parts.callback(events.close, CLOSING)
    if loaded.options.kind is WorkerKind.DEDICATED:
        await registered.wait()


def _is_fault(record: logging.LogRecord) -> bool:
    """Return False for the end of the device: transformers logs it with a traceback."""
    return record.exc_info is None or not isinstance(record.exc_info[1], Unavailable)


def _limits_of(loaded: LoadedModel, name: str, *, has_text: bool) -> FleetLimits:
    facts, kv_tokens = loaded.facts, loaded.options.kv_tokens
    return FleetLimits(
        vocabulary=facts.vocabulary,
        context_tokens=min(facts.positions or kv_tokens, kv_tokens),
        eos_token_ids=facts.eos_tokens,
        features=frozenset((*_FEATURES, *(["stop"] if has_text else []))),
        model=name,
    )


def _tokenizer_of(model: str) -> "Tokenizer | None":
    """Return the tokenizer in the model's folder, if it has one."""
    return load_tokenizer(Path(model)) if has_tokenizer(Path(model)) else None
