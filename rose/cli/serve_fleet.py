"""Runs the rollout service with its fleet of engines."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from rose.adapters import RolloutService, ServiceLimits, TrialWorker, rollout_app
from rose.adapters.fleet import Fleet, Upstream
from rose.adapters.service import TUNING
from rose.adapters.trial import commit_trial_weights
from rose.cli.http_program import App, Door, has_tokenizer, serve_until_told, trusting
from rose.engines.http import checked_url
from rose.errors import sentence
from rose.node import fleet_file
from rose.node.commands import Command, commands_of
from rose.node.programs import Programs
from rose.scheduler.settings import SchedulerSettings
from rose.scheduler.worker import WorkerKind

_LOG: Final = logging.getLogger("rose.serve")
_LOOK_S: Final = 0.2  # until it is looked again whether an engine is known


@dataclass(frozen=True, slots=True)
class Joining:
    """An engine that somebody else runs.

    Args:
        url: its URL.
        token: its bearer token.
        authority: PEM file of the authority of its certificate; None: the system's authorities.

    Raises:
        InvalidArgument: the URL is invalid, or a token would leave this machine unencrypted.
    """

    url: str
    token: str | None = field(repr=False)
    authority: Path | None

    def __post_init__(self) -> None:
        checked_url(self.url, has_token=self.token is not None)


@dataclass(frozen=True, slots=True)
class Started:
    """Engines that this program starts.

    Args:
        fleet: file with the engines.
        logs: folder for their logs.
    """

    fleet: fleet_file.CheckedFleet
    logs: Path


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What `rose serve` shall do.

    Args:
        door: where to listen, and whom to admit.
        model: name of the model in requests; None: the engines' name.
        tokenizer: folder of a tokenizer; None: the engines' model, if it is on this machine.
        sequences: most sequences in flight.
        max_staleness: most versions by which a turn's weights may be behind; None: no limit.
        trials: number of trial workers in this process.
        engines: engines to join.
        upstream: address and token of the publisher that stock engines follow.
        started: engines to start and join.
    """

    door: Door
    model: str | None = None
    tokenizer: Path | None = None
    sequences: int = ServiceLimits().sequences
    max_staleness: int | None = None
    trials: int = 0
    engines: tuple[Joining, ...] = ()
    upstream: tuple[str, str] | None = field(default=None, repr=False)
    started: Started | None = None


async def serve_plan(plan: ServePlan) -> None:
    """Serve until SIGTERM.

    Raises:
        InvalidArgument: a file, an address or an engine does not fit.
    """
    token = secrets.token_urlsafe(32)
    commands = [] if plan.started is None else list(commands_of(plan.started.fleet, token))
    authorities = {one.authority for one in plan.engines if one.authority is not None}
    trusted = {path: trusting(path) for path in authorities}
    limits = ServiceLimits(sequences=plan.sequences)
    service = RolloutService(limits)
    if plan.max_staleness is not None:
        service = RolloutService(limits, settings=_settings(plan.max_staleness))
    trials: list[TrialWorker] = []

    async def join(parts: AsyncExitStack, _end: Callable[[str], None]) -> App:
        for number in range(plan.trials):
            worker = TrialWorker(number, WorkerKind.BORROWED, service.receive)
            trials.append(parts.enter_context(worker))
            await service.register(worker, worker.capabilities, worker.limits)
            worker.grant()
        upstream = None if plan.upstream is None else Upstream(*plan.upstream)
        fleet = await parts.enter_async_context(Fleet(service, weights=upstream, first=plan.trials))
        for one in plan.engines:
            tls = None if one.authority is None else trusted[one.authority]
            await fleet.add(one.url, token=one.token, tls=tls)
        await _add_started(fleet, commands, token)
        if not (plan.engines or commands):
            service.facts = service.registered_limits
        learning = asyncio.create_task(_learn_text(service, plan.tokenizer, fleet))
        parts.callback(learning.cancel)
        if plan.tokenizer is not None or fleet.root() is not None:
            await learning
        else:
            learning.add_done_callback(_report_failure)
        return rollout_app(
            service,
            model=plan.model,
            token=plan.door.token,
            weights=partial(commit_trial_weights, trials) if plan.trials else fleet.load,
            fleet=fleet,
        )

    programs = None if plan.started is None else Programs(commands, plan.started.logs)
    count = plan.trials + len(plan.engines) + sum(one.url is not None for one in commands)
    await serve_until_told(
        service, plan.door, join, programs=programs, words=lambda: f" workers={count}"
    )


def _settings(max_staleness: int) -> SchedulerSettings:
    """Return settings that bound staleness only: no trainer tells how many rollouts it uses."""
    return SchedulerSettings(
        max_staleness=max_staleness,
        batch_trajectories=1 << 20,
        worker_lag_max=max(1, max_staleness),
        tuning=TUNING,
    )


async def _add_started(fleet: Fleet, commands: list[Command], token: str) -> None:
    """Add engines that are starting; they join when they answer."""
    urls = [command.url for command in commands if command.url is not None]
    await asyncio.gather(*(fleet.add(url, token=token) for url in urls))


def _report_failure(learning: asyncio.Task[None]) -> None:
    if not learning.cancelled() and (error := learning.exception()) is not None:
        _LOG.warning("the service has no tokenizer: %s", sentence(error))


async def _learn_text(service: RolloutService, folder: Path | None, fleet: Fleet) -> None:
    """Give the service a tokenizer and the model's end tokens, from `folder` or an engine's model.

    Without a folder it waits for the first engine. Engines may report a model that is not a folder
    on this machine; then the service has no tokenizer.
    """
    from rose.adapters.hugging_face import (  # noqa: PLC0415 (an extra)
        load_eos_token_ids,
        load_tokenizer,
    )

    while folder is None:
        root = fleet.root()
        if root is None:
            await asyncio.sleep(_LOOK_S)
        elif has_tokenizer(Path(root)):
            folder = Path(root)
        else:
            return
    service.eos_token_ids = load_eos_token_ids(folder)
    service.tokenizer = await asyncio.to_thread(load_tokenizer, folder)
