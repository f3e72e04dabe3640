"""`/rose/status` on a vLLM server's port; it changes nothing."""

import asyncio
from argparse import Namespace
from contextlib import suppress
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from vllm.v1.engine.exceptions import EngineDeadError

# Interval at which an idle serving engine may run a probe.
_LOOK_S: Final = 1.0
_UNAVAILABLE: Final = 503


class RoseEndpoint:
    """The entry point `vllm.endpoint_plugins` of rose, loaded where `VLLM_PLUGINS` names it."""

    name = "rose"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the route."""

        async def status(request: Request) -> dict[str, Any]:
            side = await _ask(getattr(request.app.state, "rose_engine", None))
            if side is None:
                raise HTTPException(_UNAVAILABLE, "this server does not run under rose")
            return side

        app.add_api_route("/rose/status", status)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Keep the engine for the route, and look after an idle serving engine."""
        settings = (args.additional_config or {}).get("rose")
        state.rose_engine = None if settings is None else engine_client
        if settings is not None and settings.get("listen") is not None:
            state.rose_looks = asyncio.create_task(_look_after(engine_client))


async def _ask(engine: Any) -> dict[str, Any] | None:
    if engine is None:
        return None
    (side,) = await engine.collective_rpc("rose_status")
    return dict(side)


async def _look_after(engine: Any) -> None:
    """Wake the engine's loop, which runs probes only when it looks for work."""
    with suppress(asyncio.CancelledError, EngineDeadError):
        while not engine.errored:
            await asyncio.sleep(_LOOK_S)
            await engine.collective_rpc("rose_look")
