"""The engine `trial` of `rose engine`: no model, reproducible tokens, and a grant by signals."""

import asyncio
import secrets
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from rose.adapters import RolloutService, TrialWorker, rollout_app
from rose.adapters.events_route import EngineState
from rose.adapters.fleet_limits import FleetLimits
from rose.adapters.trial import FEATURES, KV_TOKENS, SEATS, VOCABULARY, commit_trial_weights
from rose.cli.http_program import CLOSING, App, Door, serve_until_told
from rose.scheduler.worker import WorkerEvent, WorkerKind


async def serve_trial(door: Door, name: str) -> None:
    """Serve a trial worker until SIGTERM. SIGUSR1 revokes its grant, SIGUSR2 grants again.

    Args:
        door: where to listen.
        name: name of the model in requests.
    """
    service = RolloutService()
    features = FEATURES | {"seeds"}
    events = EngineState(
        WorkerKind.BORROWED,
        FleetLimits(VOCABULARY, service.limits.context_tokens, (), features, name),
        seats=SEATS,
        kv_tokens=KV_TOKENS,
        instance=secrets.token_hex(8),
    )
    workers: list[TrialWorker] = []
    app = rollout_app(
        service,
        model=name,
        token=door.token,
        weights=partial(commit_trial_weights, workers),
        engine=events,
    )

    async def join(parts: AsyncExitStack, _end: Callable[[str], None]) -> App:
        def receive(event: WorkerEvent) -> None:
            events.receive(event)
            service.receive(event)

        worker = TrialWorker(0, WorkerKind.BORROWED, receive)
        workers.append(parts.enter_context(worker))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, worker.revoke)
        loop.add_signal_handler(signal.SIGUSR2, worker.grant)
        await service.register(worker, worker.capabilities, worker.limits)
        worker.grant()
        parts.callback(events.close, CLOSING)
        return app

    await serve_until_told(service, door, join)
