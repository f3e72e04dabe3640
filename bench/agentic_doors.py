"""Ways to the simulated engines of `bench.agentic`: rose's service and scheduler, and rivals."""

import asyncio
from contextlib import AsyncExitStack
from typing import Final

import aiohttp
from typing_extensions import Self

from bench.agentic import SimulatedEngine
from rose.adapters import RolloutService, rollout_app
from rose.adapters.listening import listening
from rose.scheduler import (
    ElasticRolloutScheduler,
    PlacementPolicy,
    Sampling,
    SchedulerSettings,
)
from rose.scheduler.worker import TurnEnd, TurnOutput, TurnRequest, WorkerEvent, WorkerLost

_ANSWER_S: Final = 600.0
_LOOK_S: Final = 0.02


class SchedulerDoor:
    """The scheduler of this process, with conversations as its trajectories."""

    def __init__(self, conversations: int, policy: PlacementPolicy) -> None:
        settings = SchedulerSettings(batch_trajectories=conversations)
        self._scheduler = ElasticRolloutScheduler(settings, policy)

    async def __aenter__(self) -> Self:
        await self._scheduler.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._scheduler.__aexit__(*error)

    def receive(self, event: WorkerEvent) -> None:
        self._scheduler.receive(event)

    async def register(self, engine: SimulatedEngine) -> None:
        await self._scheduler.register(engine, engine.capabilities)

    async def generate(
        self, number: int, turn: int, prompt: list[int], max_tokens: int, seed: int
    ) -> list[int]:
        if turn == 0:
            await self._scheduler.start(number)
        sampling = Sampling(max_tokens, seed=seed)
        result = await self._scheduler.generate(number, turn=turn, prompt=prompt, sampling=sampling)
        return list(result.tokens)

    async def finish(self, number: int) -> None:
        await self._scheduler.finish(number)


class HttpDoor:
    """The rollout service over HTTP; requests name no session, as stock clients send them."""

    async def __aenter__(self) -> Self:
        self._parts = AsyncExitStack()
        self._service = await self._parts.enter_async_context(RolloutService())
        app = rollout_app(self._service, model="simulated")
        url = await self._parts.enter_async_context(listening(app))
        self._client = await self._parts.enter_async_context(
            aiohttp.ClientSession(
                url,
                timeout=aiohttp.ClientTimeout(_ANSWER_S),
                connector=aiohttp.TCPConnector(limit=0),
            )
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._parts.aclose()

    def receive(self, event: WorkerEvent) -> None:
        self._service.receive(event)

    async def register(self, engine: SimulatedEngine) -> None:
        await self._service.register(engine, engine.capabilities)

    async def generate(
        self, number: int, turn: int, prompt: list[int], max_tokens: int, seed: int
    ) -> list[int]:
        body = {"prompt": prompt, "max_tokens": max_tokens, "seed": seed, "return_token_ids": True}
        async with self._client.post("/v1/completions", json=body) as answer:
            answer.raise_for_status()
            return list((await answer.json())["choices"][0]["token_ids"])

    async def finish(self, number: int) -> None:
        """Do nothing: the service ends conversations that stay idle."""


class RoundRobinDoor:
    """A router that takes the engines in turn, and repeats an interrupted turn from its start."""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._engines: dict[int, SimulatedEngine] = {}
        self._turns: dict[int, tuple[int, asyncio.Future[list[int] | None], list[int]]] = {}
        self._next = 0
        return self

    async def __aexit__(self, *error: object) -> None:
        """Do nothing: the engines end with the run."""

    def receive(self, event: WorkerEvent) -> None:
        self._loop.call_soon_threadsafe(self._take, event)

    async def register(self, engine: SimulatedEngine) -> None:
        self._engines[engine.number] = engine

    async def generate(
        self, number: int, turn: int, prompt: list[int], max_tokens: int, seed: int
    ) -> list[int]:
        while True:
            live = [one for one in self._engines.values() if one.kv_tokens and not one.is_dead]
            if not live:
                await asyncio.sleep(_LOOK_S)
                continue
            engine = live[self._next % len(live)]
            self._next += 1
            answer: asyncio.Future[list[int] | None] = self._loop.create_future()
            self._turns[number] = engine.number, answer, []
            what = tuple(prompt), 0, max_tokens, (), 1.0, seed
            engine.start_turn(TurnRequest(number, turn, engine.epoch, *what))
            tokens = await answer
            if tokens is not None:
                return tokens

    async def finish(self, number: int) -> None:
        """Do nothing: this router keeps nothing."""

    def _take(self, event: WorkerEvent) -> None:
        if isinstance(event, WorkerLost):
            self._engines.pop(event.worker, None)
            lost = [one for one, (engine, *_) in self._turns.items() if engine == event.worker]
            for number in lost:
                self._end(number, None)
        elif isinstance(event, TurnOutput) and event.trajectory in self._turns:
            engine, _, tokens = self._turns[event.trajectory]
            if engine != event.worker:
                return
            tokens += event.tokens
            if event.end is not None:
                whole = tokens if event.end is TurnEnd.FINISHED else None
                self._end(event.trajectory, whole)

    def _end(self, number: int, tokens: list[int] | None) -> None:
        _, answer, _ = self._turns.pop(number)
        answer.set_result(tokens)
