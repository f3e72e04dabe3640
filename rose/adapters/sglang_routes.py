"""Routes of SGLang for trainers: slime, miles and AReaL call them."""

from typing import Annotated, Any, Final

from fastapi import FastAPI, Query

from rose import __version__
from rose.adapters.control_bodies import AbortBody, PauseBody
from rose.adapters.generating import Generating
from rose.adapters.http_errors import Denied
from rose.adapters.pauses import PauseMode
from rose.adapters.service import RolloutService
from rose.errors import InvalidArgument

# What happens to sequences in flight in SGLang's modes. `retract` and `in_place` continue them.
_MODES: Final = {
    "abort": PauseMode.ABORT,
    "retract": PauseMode.KEEP,
    "in_place": PauseMode.KEEP,
}
_NO_WEIGHTS: Final = (
    "this service joins no process group and reads no shared tensors: publish weights with "
    "rose.publish, or send versions to /update_weights"
)


def add_sglang_routes(app: FastAPI, service: RolloutService, generating: Generating) -> None:
    """Add the routes for aborts, pauses, loads and status, and name those that cannot be had."""

    @app.post("/abort_request")
    async def abort_request(body: AbortBody) -> dict[str, Any]:
        """End requests with their tokens so far: those whose id begins with `rid`, or all."""
        if not body.rid and not body.abort_all:
            raise InvalidArgument("a body must have rid or abort_all")
        return {"success": True, "aborted": generating.abort(None if body.abort_all else body.rid)}

    @app.post("/pause_generation")
    async def pause_generation(body: PauseBody | None = None) -> dict[str, str]:
        """Answer once no worker generates."""
        mode = "abort" if body is None else body.mode
        if mode not in _MODES:
            raise InvalidArgument(f"mode must be one of {', '.join(_MODES)}, got {mode:.40}")
        await service.pause(_MODES[mode])
        return {"status": "paused", "message": "generation is paused"}

    @app.post("/continue_generation")
    async def continue_generation() -> dict[str, str]:
        """Let workers generate again."""
        await service.resume()
        return {"status": "resumed", "message": "generation continues"}

    @app.api_route("/flush_cache", methods=["GET", "POST"], include_in_schema=False)
    async def flush_cache() -> dict[str, bool]:
        """Do nothing: rose's engines key cached prefixes by the version of their weights."""
        return {"success": True}

    @app.get("/v1/loads")
    async def loads(include: Annotated[str, Query()] = "core") -> dict[str, Any]:  # noqa: ARG001
        """Return the load of the service as that of one engine."""
        count = service.sequence_count()
        core = {"dp_rank": 0, "num_running_reqs": count, "num_waiting_reqs": 0}
        return {
            "loads": [{**core, "num_total_reqs": count, "max_running_requests": _most(service)}],
            "aggregate": {"total_running_reqs": count, "total_waiting_reqs": 0},
            "version": __version__,
        }

    @app.get("/get_weight_version")
    async def weight_version() -> dict[str, str]:
        """Return the newest version that the workers have."""
        return {"weight_version": str(max(service.versions(), default=service.published))}

    @app.get("/model_info", include_in_schema=False)
    @app.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        """Return the model that the service serves."""
        return {
            "model_path": service.model_name(),
            "tokenizer_path": service.model_name(),
            "is_generation": True,
            "weight_version": str(max(service.versions(), default=service.published)),
        }

    @app.get("/get_server_info")
    async def server_info() -> dict[str, Any]:
        """Return the limits of the service."""
        return {
            "model_path": service.model_name(),
            "served_model_name": service.model_name(),
            "version": __version__,
            "context_length": service.context_tokens(),
            "max_running_requests": _most(service),
            "tp_size": 1,
            "dp_size": 1,
            "internal_states": [{}],
        }

    @app.post("/finish_session", include_in_schema=False)
    async def finish_session() -> dict[str, str]:
        """Do nothing, as SkyRL's router may: idle conversations end by themselves."""
        return {"status": "ok"}

    async def cannot() -> None:
        raise Denied(501, _NO_WEIGHTS)

    for path in (
        *("/init_weights_update_group", "/destroy_weights_update_group"),
        *("/update_weights_from_distributed", "/update_weights_from_tensor"),
        *("/update_weights_from_disk", "/pull_weights", "/fetch_weights", "/collective_rpc"),
        *("/init_broadcaster", "/load_lora_adapter", "/v1/load_lora_adapter"),
        *("/release_memory_occupation", "/resume_memory_occupation"),
    ):
        app.add_api_route(path, cannot, methods=["POST"], include_in_schema=False)


def _most(service: RolloutService) -> int:
    return service.limits.sequences
