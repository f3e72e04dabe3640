"""One fake engine and its worker, with the worker's events as they came."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rose.engines.http import HttpWorker, open_session, probe
from rose.scheduler.worker import (
    GrantChanged,
    Options,
    TurnEnd,
    TurnOutput,
    TurnRequest,
    VersionCommitted,
    WorkerEvent,
    WorkerLost,
)
from tests.engines.http.fake import FakeEngine, engine

PROMPT = (1, 2, 3)


async def until(is_so: Callable[[], object]) -> None:
    latest = asyncio.get_running_loop().time() + 20
    while not is_so():
        assert asyncio.get_running_loop().time() < latest
        await asyncio.sleep(0.002)


@dataclass
class Rig:
    engine: FakeEngine
    worker: Any = None
    events: list[WorkerEvent] = field(default_factory=list)

    def of(self, kind: type) -> list[Any]:
        return [one for one in self.events if isinstance(one, kind)]

    @property
    def lost(self) -> list[WorkerLost]:
        return self.of(WorkerLost)

    @property
    def grants(self) -> list[tuple[int, int]]:
        return [(one.grant_epoch, one.kv_tokens) for one in self.of(GrantChanged)]

    @property
    def commits(self) -> list[int]:
        return [one.version for one in self.of(VersionCommitted)]

    def outputs(self, trajectory: int = 0) -> list[TurnOutput]:
        return [one for one in self.of(TurnOutput) if one.trajectory == trajectory]

    def tokens(self, trajectory: int = 0) -> list[int]:
        """Return the tokens of a turn; its outputs must continue one another."""
        made: list[int] = []
        outputs = self.outputs(trajectory)
        start = outputs[0].first_token
        for one in outputs:
            assert one.first_token == start + len(made)
            assert len(one.tokens) == len(one.logprobs) == len(one.versions)
            made += one.tokens
        return made

    def ends(self, trajectory: int = 0) -> list[TurnEnd]:
        return [one.end for one in self.outputs(trajectory) if one.end is not None]

    def start(self, trajectory: int = 0, count: int = 8, **changes: Any) -> TurnRequest:
        values: dict[str, Any] = {
            "turn": 0,
            "grant_epoch": self.worker.epoch,
            "prompt": PROMPT,
            "first_token": 0,
            "max_new_tokens": count,
            "stop_tokens": (),
            "temperature": 1.0,
            "seed": 7,
            "options": Options(),
        }
        request = TurnRequest(trajectory, **{**values, **changes})
        self.worker.start_turn(request)
        return request

    async def play(self, trajectory: int = 0, count: int = 8, **changes: Any) -> TurnOutput:
        """Run a turn to its end, and return its last output."""
        before = len(self.ends(trajectory))
        self.start(trajectory, count, **changes)
        await until(lambda: len(self.ends(trajectory)) > before or self.lost)
        return self.outputs(trajectory)[-1]


@asynccontextmanager
async def rigged(dialect: str = "vllm", **options: Any) -> AsyncIterator[Rig]:
    async with engine(dialect, **options) as one, open_session() as session:
        rig = Rig(one)
        facts = await probe(session, one.url)
        rig.worker = HttpWorker(
            5, one.url, rig.events.append, session=session, facts=facts, epoch=10
        )
        running = asyncio.create_task(rig.worker.run())
        await until(lambda: rig.grants)
        try:
            yield rig
        finally:
            running.cancel()
            await asyncio.wait({running})
