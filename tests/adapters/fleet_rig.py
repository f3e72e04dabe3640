"""A fleet over fake engines, under the scheduler; the tokens of every turn are checked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rose.adapters.fleet import Fleet, WorkerRow, WorkerState
from rose.adapters.fleet_limits import FleetLimits
from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.settings import SchedulerSettings
from rose.scheduler.turns import Capabilities, Sampling, TurnResult
from rose.scheduler.worker import GrantChanged, Worker, WorkerEvent
from tests.engines.http.fake import FakeEngine, token_at
from tests.engines.http.rig import until

SETTINGS = SchedulerSettings(batch_trajectories=1 << 20)


@dataclass
class Service:
    scheduler: ElasticRolloutScheduler
    facts: Callable[[], FleetLimits] = lambda: FleetLimits(None, 0, (), frozenset(), None)
    grants: list[GrantChanged] = field(default_factory=list)

    def receive(self, event: WorkerEvent) -> None:
        if isinstance(event, GrantChanged):
            self.grants.append(event)
        self.scheduler.receive(event)

    async def register(self, worker: Worker, capabilities: Capabilities) -> None:
        await self.scheduler.register(worker, capabilities)


@dataclass
class Rig:
    service: Service
    fleet: Fleet
    parts: AsyncExitStack
    engines: list[FakeEngine] = field(default_factory=list)
    number: int = 0

    async def start(self, dialect: str = "vllm", **options: Any) -> FakeEngine:
        one = FakeEngine(dialect, **options)
        await one.start()
        self.parts.push_async_callback(one.kill)
        self.parts.callback(one.can_run.set)
        self.engines.append(one)
        return one

    async def join(self, dialect: str = "vllm", **options: Any) -> FakeEngine:
        one = await self.start(dialect, **options)
        number = await self.fleet.add(one.url)
        await self.until_ready(number)
        one.decoded = 0
        return one

    def row(self, number: int = 0) -> WorkerRow:
        return next(row for row in self.fleet.list() if row.number == number)

    async def until_ready(self, *numbers: int) -> None:
        for number in numbers:
            await until(lambda n=number: self.row(n).state is WorkerState.READY)
            await until(lambda n=number: self.row(n).kv_tokens)

    async def turn(self, count: int = 40, prompt: int = 3) -> TurnResult:
        """Run a trajectory of one turn, and check its tokens."""
        scheduler, number = self.service.scheduler, self.number
        self.number += 1
        await scheduler.start(number)
        result = await scheduler.generate(
            number, turn=0, prompt=range(1, prompt + 1), sampling=Sampling(count)
        )
        await scheduler.finish(number)
        check(result, prompt, count)
        return result

    async def turns(self, count: int, tokens: int = 40) -> list[TurnResult]:
        return await asyncio.gather(*(self.turn(tokens) for _ in range(count)))


def check(result: TurnResult, prompt: int, count: int) -> None:
    """Compare each token with that of its place and its version."""
    assert len(result.tokens) == len(result.versions) == count
    truth = [token_at(prompt + at, version) for at, version in enumerate(result.versions)]
    assert list(result.tokens) == truth


@asynccontextmanager
async def rigged(**options: Any) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as parts:
        scheduler = await parts.enter_async_context(ElasticRolloutScheduler(SETTINGS))
        service = Service(scheduler)
        fleet = await parts.enter_async_context(Fleet(service, **options))
        yield Rig(service, fleet, parts)
