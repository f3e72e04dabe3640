"""Routes for trainers and monitors: status, pauses, and versions of weights."""

from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI, Query
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException

from rose import __version__
from rose.adapters.control_bodies import FinishBody, InitBody, StartBody, UpdateBody, VersionBody
from rose.adapters.fleet import Fleet
from rose.adapters.http_errors import error_body, headers_of
from rose.adapters.json_answer import Json
from rose.adapters.pauses import PauseMode
from rose.adapters.service import RolloutService
from rose.adapters.weight_updates import WeightUpdates
from rose.clock import unix_s
from rose.errors import InvalidArgument

# A pause that nobody ends holds for ten minutes, or for as long as its owner asks: at most a day.
_LEASE_S: Final = 600.0
_LEASE_S_MAX: Final = 86_400.0
_NO_SOURCE: Final = (
    "this service takes no weights over HTTP: publish them with rose.publish, so that the workers "
    "receive them, then report the version to /publish_weight_version"
)


def add_status(app: FastAPI, service: RolloutService, dtype: str, *, has_source: bool) -> None:
    """Add the routes that only read."""
    started = unix_s()
    registry = CollectorRegistry()
    registry.register(service.metrics())

    @app.get("/ping", include_in_schema=False)
    @app.get("/health_generate", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        """Answer 200 if a worker is registered, else 503."""
        if service.worker_count():
            return Json({"status": "ok"})
        return Json(error_body(503, "no worker is registered"), 503, headers_of(503))

    @app.get("/liveness")
    async def liveness() -> dict[str, str]:
        """Answer 200 while the process runs, with or without workers."""
        return {"status": "alive"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        """Return the version of rose."""
        return {"version": __version__}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Return the model that the service serves."""
        limit = service.context_tokens()
        model = service.model_name()
        one = {"id": model, "object": "model", "created": started, "owned_by": "rose"}
        return {"object": "list", "data": [{**one, "root": model, "max_model_len": limit}]}

    @app.get("/server_info")
    async def server_info(config_format: Annotated[str, Query()] = "json") -> dict[str, Any]:  # noqa: ARG001
        """Return the parts of vLLM's configuration that trainers read, and rose's state."""
        return {
            "vllm_config": {
                "model_config": {
                    "model": service.model_name(),
                    "dtype": f"torch.{dtype}",
                    "max_model_len": service.context_tokens(),
                    "logprobs_mode": "processed_logprobs",
                },
                "parallel_config": {"data_parallel_size": 1, "tensor_parallel_size": 1},
                "lora_config": None,
                "weight_transfer_config": {"backend": "rose"} if has_source else None,
            },
            "rose": {
                "version": __version__,
                "workers": service.worker_count(),
                "sequences": service.sequence_count(),
                "sequences_max": service.limits.sequences,
                **_versions(service),
            },
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the scheduler's counts as text for Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/get_world_size")
    async def world_size() -> dict[str, int]:
        """Return the number of workers."""
        return {"world_size": service.worker_count()}

    @app.get("/weight_versions")
    async def versions() -> dict[str, Any]:
        """Return the number of workers by version, and the newest published version."""
        return _versions(service)


def _versions(service: RolloutService) -> dict[str, Any]:
    there = {str(version): count for version, count in service.versions().items()}
    return {"published": service.published, "versions": there}


def add_control(
    app: FastAPI, service: RolloutService, updates: WeightUpdates, fleet: Fleet | None
) -> None:
    """Add the routes for trainers: pauses, caches, and new weights."""

    def needs_source() -> None:
        if updates.source is None:
            raise HTTPException(501, _NO_SOURCE)

    @app.post("/pause")
    async def pause(
        mode: Literal["keep", "wait", "abort"] = "abort",
        clear_cache: Annotated[bool, Query()] = True,  # noqa: ARG001, FBT002 (as vLLM has it)
        owner: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
        lease_s: Annotated[float, Query(gt=0, le=_LEASE_S_MAX)] = _LEASE_S,
    ) -> dict[str, str]:
        """Answer once no worker generates. With `keep`, sequences continue after `/resume`.

        The pause ends after `lease_s` by itself, and `/resume` with another owner does not end it.
        """
        name = await service.pause(PauseMode(mode), owner=owner, lease_s=lease_s)
        return {"status": "paused", "pause": name}

    @app.post("/resume")
    async def resume(
        owner: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    ) -> dict[str, str]:
        """Let workers generate again, unless another owner's pause holds.

        `owner` may also be the name of a pause; without it, pauses without an owner end.
        """
        await service.resume(owner)
        return {"status": "resumed"}

    @app.get("/is_paused")
    async def is_paused() -> dict[str, bool]:
        """Return whether the service is paused."""
        return {"is_paused": service.is_paused}

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, bool]:
        """Do nothing: rose's engines key cached prefixes by the version of their weights."""
        return {"success": True}

    @app.post("/init_weight_transfer_engine")
    async def init(body: InitBody) -> dict[str, str]:
        """Accept the trainer. A process group is not needed."""
        needs_source()
        if body.init_info.get("master_address"):
            raise HTTPException(501, "NCCL is not supported: " + _NO_SOURCE)
        return {"message": "ready"}

    @app.post("/start_weight_update")
    async def start(body: StartBody | None = None) -> dict[str, str]:  # noqa: ARG001 (as vLLM)
        """Begin a new version of the weights."""
        needs_source()
        updates.start()
        return {"message": "started"}

    @app.post("/update_weights")
    async def update(body: UpdateBody) -> dict[str, Any]:
        """Add an update to the started version; if none was started, commit it as a version."""
        needs_source()
        version = await updates.update({**(body.model_extra or {}), **body.update_info})
        return {"message": "updated", "weight_version": version}

    @app.post("/finish_weight_update")
    async def finish(body: FinishBody | None = None) -> dict[str, Any]:
        """Answer once the workers have committed the started version."""
        needs_source()
        version = await updates.finish(None if body is None else body.weight_version)
        return {"message": "finished", "weight_version": version}

    @app.post("/publish_weight_version")
    async def publish(body: VersionBody) -> dict[str, Any]:
        """Record a version that the trainer has published with `rose.publish`."""
        if body.version < service.published:
            raise InvalidArgument(
                f"version must be at least {service.published}, got {body.version}"
            )
        await service.publish(body.version)
        if fleet is not None:
            fleet.offer(body.version)
        return _versions(service)
