"""rose in the front process of a vLLM server: status, events, and arrivals."""

import asyncio
import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from prometheus_client import REGISTRY
from vllm.v1.engine.exceptions import EngineDeadError

from rose._core import HostGate
from rose.engines.vllm.event_stream import EngineEvents
from rose.engines.vllm.gpu_use import GpuUseMetrics
from rose.errors import RoseError

# Interval at which an idle serving engine may run a probe, and the use of the GPU is read.
_LOOK_S: Final = 1.0
# Time for the engine's answer to a client that asks for its status.
_ANSWER_S: Final = 1.0
# Interval at which a borrower tries to restore a capacity grant that serving has cut.
_RESTORE_S: Final = 0.1
# Fields of `Options` beyond temperature that vLLM has.
_FEATURES: Final = (
    *("top_p", "top_k", "min_p", "min_tokens", "stop", "logprobs", "penalties", "logit_bias"),
    *("structured_outputs", "prompt_logprobs"),
)
# A request should reach the engine within this time. If it does not, rollouts go on.
_WITHIN_MS: Final = 50.0
# Routes that bring the engine a prompt. vLLM asks for the API key on all of them.
_PROMPTS: Final = frozenset(
    (
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/inference/v1/generate",
    )
)
_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503


class RoseEndpoint:
    """rose's plug-in of the group `vllm.endpoint_plugins`, loaded if `VLLM_PLUGINS` lists it.

    `rose vllm` adds it to that list.
    """

    name = "rose"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes to the server's application."""

        async def status(request: Request) -> dict[str, Any]:
            if getattr(request.app.state, "rose_engine", None) is None:
                raise HTTPException(
                    _UNAVAILABLE,
                    "this server does not run under rose: start it with `rose vllm serve` or "
                    "`rose vllm rollout`",
                )
            side = await _newest(request.app.state)
            use = await request.app.state.rose_use.read(side["device"])
            told: EngineEvents | None = getattr(request.app.state, "rose_events", None)
            engine = {} if told is None else {"engine": told.state()}
            return {**side, **engine, "use": use.status()}

        async def events(request: Request) -> StreamingResponse:
            told: EngineEvents | None = getattr(request.app.state, "rose_events", None)
            if told is None:
                raise HTTPException(
                    _NOT_FOUND,
                    "this server runs no rollouts under rose: only `rose vllm rollout` has events",
                )
            return StreamingResponse(told.stream(), media_type="text/event-stream")

        app.add_api_route("/rose/status", status)
        app.add_api_route("/rose/events", events)
        app.add_middleware(_Announcer)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Store the engine for the route, and start to read the use of its GPU.

        On a server that lends, also start the task `_look_after`; on a borrower, `_restore`.
        """
        settings = (args.additional_config or {}).get("rose")
        state.rose_engine = None if settings is None else engine_client
        if settings is None:
            return
        state.rose_side = None
        state.rose_use = GpuUseMetrics()
        REGISTRY.register(state.rose_use)
        state.rose_reads = asyncio.create_task(_read_use(engine_client, state.rose_use))
        if settings.get("listen") is not None:
            state.rose_looks = asyncio.create_task(_look_after(engine_client, state))
        if settings.get("events"):
            state.rose_events = EngineEvents(
                Path(settings["events"]), _status_of(engine_client, args), _end_of(state)
            )
            state.rose_looks = asyncio.create_task(_restore(engine_client, state.rose_events))


class _Announcer:
    """Closes the gate when a prompt arrives, before it is tokenised.

    This is ASGI middleware. vLLM adds its own middleware around it, so a request without the API
    key does not get here.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            self._announce(scope)
        await self._app(scope, receive, send)

    def _announce(self, scope: Any) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        gate: HostGate | None = getattr(scope["app"].state, "rose_gate", None)
        if gate is not None and path in _PROMPTS:
            gate.expect_arrival(within_ms=_WITHIN_MS)


def _status_of(engine: Any, args: Namespace) -> dict[str, Any]:
    """Return the event `status` of a borrower but for what only its engine knows."""
    model = engine.vllm_config.model_config
    ends = model.try_get_generation_config().get("eos_token_id") or []
    return {
        "kind": "borrowed",
        "model": (args.served_model_name or [args.model])[0],
        "vocabulary": model.get_vocab_size(),
        "context_tokens": model.max_model_len,
        "seats": engine.vllm_config.scheduler_config.max_num_seqs,
        "eos_token_ids": ends if isinstance(ends, list) else [ends],
        "features": list(_FEATURES),
        # vLLM's routes load versions; the engine follows no publisher by itself.
        "weights": "routes",
    }


def _end_of(state: Any) -> Callable[[], str | None]:
    """Return a function that tells why this server's streams must end, if they must."""

    def reason() -> str | None:
        if state.rose_engine.errored:
            return "the engine of this server has ended"
        server = getattr(state, "server", None)
        return "this server is shutting down" if server is not None and server.should_exit else None

    return reason


async def _restore(engine: Any, told: EngineEvents) -> None:
    """Let the engine look, while its grant is not whole: an idle engine would not by itself."""
    with suppress(asyncio.CancelledError, EngineDeadError):
        while not engine.errored:
            if not told.is_whole:
                await engine.collective_rpc("rose_look")
            await asyncio.sleep(_RESTORE_S)


async def _newest(state: Any) -> dict[str, Any]:
    """Return what the engine answers within `_ANSWER_S`, or else what it answered last.

    A borrower's engine does not answer while its step waits at a gate.
    """
    asking = asyncio.ensure_future(_ask(state.rose_engine))
    done, _ = await asyncio.wait({asking}, timeout=_ANSWER_S)
    if done or state.rose_side is None:
        state.rose_side = await asking
    else:
        asking.add_done_callback(_forget)
    return {**state.rose_side, "is_old": not done}


def _forget(asked: asyncio.Future[dict[str, Any]]) -> None:
    """Read the failure of a question whose answer nobody waits for."""
    if not asked.cancelled():
        asked.exception()


async def _ask(engine: Any) -> dict[str, Any]:
    (side,) = await engine.collective_rpc("rose_status")
    return dict(side)


async def _look_after(engine: Any, state: Any) -> None:
    """Wake the engine's loop every `_LOOK_S`, because an idle loop starts no probe by itself.

    Each time, open the gate's page again: it is another page after a borrower has gone.
    """
    with suppress(asyncio.CancelledError, EngineDeadError):
        while not engine.errored:
            (path,) = await engine.collective_rpc("rose_look")
            state.rose_gate = _open_gate(path)
            await asyncio.sleep(_LOOK_S)


async def _read_use(engine: Any, use: GpuUseMetrics) -> None:
    """Read the use of the GPU every `_LOOK_S`, because `/metrics` shows the newest reading."""
    with suppress(asyncio.CancelledError, EngineDeadError):
        side = await _ask(engine)
        while not engine.errored:
            await use.read(side["device"])
            await asyncio.sleep(_LOOK_S)


def _open_gate(path: str) -> HostGate | None:
    """Return the gate whose page is at `path`; None if this process cannot open it."""
    try:
        page = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return HostGate.attach(page)
    except RoseError:
        return None
    finally:
        os.close(page)
