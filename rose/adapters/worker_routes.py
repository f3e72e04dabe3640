"""Routes by which workers come and go, in the format of SGLang's router."""

from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from rose.adapters.fleet import Fleet, WorkerRow, WorkerState
from rose.engines.http import Dialect
from rose.errors import InvalidArgument
from rose.scheduler.worker import WorkerKind

_URL_CHARACTERS_MAX = 2048
Number = Annotated[int, Path(ge=0)]


class AddBody(BaseModel):
    """Body of `POST /workers`. Further fields of SGLang's router are accepted and not used."""

    model_config = ConfigDict(extra="ignore", strict=True)

    url: Annotated[str, Field(max_length=_URL_CHARACTERS_MAX)]
    kind: Literal["dedicated", "borrowed"] | None = None
    api_key: str | None = None
    worker_type: Literal["regular"] | None = None


def add_worker_routes(app: FastAPI, fleet: Fleet) -> None:
    """Add the routes for the workers of a fleet."""

    def row_of(number: int) -> WorkerRow:
        found = next((row for row in fleet.list() if row.number == number), None)
        if found is None:
            raise HTTPException(404, f"there is no worker {number}")
        return found

    @app.post("/workers", status_code=202)
    async def add(body: AddBody, request: Request) -> dict[str, Any]:
        """Add an engine. It joins as soon as it answers; `GET /workers` says what it waits for."""
        kind = None if body.kind is None else WorkerKind(body.kind)
        number = await fleet.add(body.url, kind=kind, token=body.api_key or None)
        where = f"/workers/{number}"
        told = {"status": "accepted", "worker_id": str(number), "location": where}
        return {**told, **shown(row_of(number), str(request.base_url))}

    @app.get("/workers")
    async def workers(request: Request) -> dict[str, Any]:
        """Return all workers."""
        rows = [shown(row, str(request.base_url)) for row in fleet.list()]
        counts = {"regular_count": len(rows), "prefill_count": 0, "decode_count": 0}
        return {"workers": rows, "total": len(rows), "stats": counts}

    @app.get("/workers/{number}")
    async def worker(number: Number, request: Request) -> dict[str, Any]:
        """Return one worker."""
        return shown(row_of(number), str(request.base_url))

    @app.post("/workers/{number}/drain")
    async def drain(number: Number) -> dict[str, str]:
        """Move a worker's turns elsewhere, and answer when it has none. It gets no others."""
        row_of(number)
        await fleet.drain(number)
        return {"status": "drained", "worker_id": str(number)}

    @app.delete("/workers/{number}")
    async def remove(number: Number) -> dict[str, str]:
        """Drain a worker, and forget its engine."""
        row_of(number)
        try:
            await fleet.remove(number)
        except InvalidArgument as error:  # Another request has removed it meanwhile.
            raise HTTPException(404, str(error)) from error
        return {"status": "removed", "worker_id": str(number)}


def shown(row: WorkerRow, service_url: str) -> dict[str, Any]:
    """Return a worker in the fields of SGLang's router, and in rose's.

    `url` is where SGLang's own routes for the worker are, such as `/abort_request`, which slime
    calls there. Engines of other dialects have none, so the service answers for them.
    """
    is_sglang = row.dialect in (None, Dialect.SGLANG)
    speed = row.speed
    return {
        "id": str(row.number),
        "url": row.url if is_sglang else service_url.rstrip("/"),
        "model_id": row.model or "unknown",
        "priority": 50,
        "cost": 1.0,
        "worker_type": "regular",
        "is_healthy": row.state is WorkerState.READY,
        "load": row.running,
        "connection_mode": "http",
        "runtime_type": None if row.dialect is None else row.dialect.value,
        "metadata": {},
        "engine": row.url,
        "kind": None if row.kind is None else row.kind.value,
        "state": row.state.value,
        "reason": row.reason,
        "version": row.version,
        "kv_tokens": row.kv_tokens,
        "prefill_tokens_per_s": None if speed is None else speed.prefill_tokens_per_s,
        "decode_step_ms": None if speed is None else speed.decode_step_ms,
        "decode_ms_per_sequence": None if speed is None else speed.decode_ms_per_sequence,
    }
