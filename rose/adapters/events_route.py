"""The routes `/rose/events` and `/rose/status` of an engine: its state, and a stream of changes."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from rose.adapters.fleet_limits import FleetLimits
from rose.engines.event_streams import QUIET, EventStreams
from rose.scheduler.worker import GrantChanged, VersionCommitted, WorkerEvent, WorkerKind


class EngineState(EventStreams):
    """State and streams of an engine whose worker runs in this process.

    Args:
        kind: dedicated or borrowed.
        limits: what the engine can do.
        seats: sequences that it runs at once.
        kv_tokens: tokens of context that it can hold at most.
        instance: random name of its process.
    """

    def __init__(
        self, kind: WorkerKind, limits: FleetLimits, *, seats: int, kv_tokens: int, instance: str
    ) -> None:
        super().__init__(
            {
                "status": {
                    "kind": kind.value,
                    "model": limits.model,
                    "vocabulary": limits.vocabulary,
                    "context_tokens": limits.context_tokens,
                    "seats": seats,
                    "kv_tokens": kv_tokens,
                    "eos_token_ids": list(limits.eos_token_ids),
                    "features": sorted(limits.features),
                    "instance": instance,
                    "version": 0,
                },
                "grant": {"grant_epoch": 0, "kv_tokens": 0, "ttl_ms": 0.0},
                "version": {"version": 0, "is_match": True, "pause_ms": 0.0},
                "wait": QUIET,
            }
        )

    def receive(self, event: WorkerEvent) -> None:
        """Report a worker's event; turns and losses are not reported here. Any thread may call."""
        match event:
            case GrantChanged():
                data = {"grant_epoch": event.grant_epoch, "kv_tokens": event.kv_tokens}
                self.report("grant", {**data, "ttl_ms": event.ttl_ms})
            case VersionCommitted():
                self.store("status", {**self.state()["status"], "version": event.version})
                data = {"version": event.version, "is_match": event.is_match}
                self.report("version", {**data, "pause_ms": event.pause_ms})

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Add fields to the event `status`."""
        self.report("status", {**self.state()["status"], **facts})


def add_engine(app: FastAPI, events: EngineState) -> None:
    """Add the routes of an engine."""

    @app.get("/rose/status")
    async def status() -> dict[str, Any]:
        """Return the state of the engine: status, grant, version and wait."""
        return {"engine": events.state()}

    @app.get("/rose/events", response_class=StreamingResponse)
    async def stream() -> StreamingResponse:
        """Stream the state of the engine as it changes, with a comment line each second."""
        return StreamingResponse(events.stream(), media_type="text/event-stream")
