"""The route `/rose/status` on a vLLM server's port. It only reads."""

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
    """rose's plug-in of the group `vllm.endpoint_plugins`, loaded if `VLLM_PLUGINS` lists it.

    `rose vllm` adds it to that list.
    """

    name = "rose"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the route to the server's application."""

        async def status(request: Request) -> dict[str, Any]:
            side = await _ask(getattr(request.app.state, "rose_engine", None))
            if side is None:
                raise HTTPException(
                    _UNAVAILABLE,
                    "this server does not run under rose: start it with `rose vllm serve` or "
                    "`rose vllm rollout`",
                )
            return side

        app.add_api_route("/rose/status", status)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Store the engine for the route. On a server that lends, start the task `_look_after`."""
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
    """Wake the engine's loop every `_LOOK_S`, because an idle loop starts no probe by itself."""
    with suppress(asyncio.CancelledError, EngineDeadError):
        while not engine.errored:
            await asyncio.sleep(_LOOK_S)
            await engine.collective_rpc("rose_look")
