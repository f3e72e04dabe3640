"""A service with trial workers that step when a test says so, and a client in the same loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from rose.adapters import RolloutService, ServiceLimits, TrialWorker, rollout_app
from rose.adapters.sequences import seed_of
from rose.adapters.trial import trial_token
from rose.scheduler.worker import WorkerKind

PROMPT = [1, 2, 3]
BODY = {"prompt": PROMPT, "max_tokens": 6, "seed": 7, "return_token_ids": True}
KINDS = (WorkerKind.DEDICATED, WorkerKind.BORROWED)


def truth(seed: int = 7, *, place: int = 0, prompt: int = 3, count: int = 6, version: int = 0):
    """Return what an undisturbed worker says."""
    drawn = seed_of(seed, place)
    return [trial_token(drawn, prompt + at, version) for at in range(count)]


@dataclass
class Rig:
    service: RolloutService
    workers: list[TrialWorker]
    app: Any = None
    client: Any = None

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        return await self.client.post(path, json=body, **options)

    def later(self, path: str, body: Any = None) -> asyncio.Task[httpx2.Response]:
        return asyncio.create_task(self.post(path, body))

    def step(self) -> None:
        for worker in self.workers:
            worker.step()

    async def play(self, answer: asyncio.Task[Any]) -> Any:
        """Let the workers speak until there is an answer."""
        while not answer.done():
            self.step()
            await asyncio.sleep(0.001)
        return await answer

    async def ask(self, path: str, body: Any = None) -> httpx2.Response:
        return await self.play(self.later(path, body))

    async def until_empty(self) -> None:
        """Wait for the end of all sequences; nothing is left of them but idle conversations."""
        service = self.service
        await until(lambda: service.sequence_count() == 0)
        assert not service._requests
        assert not service._watch.sequences
        await until(lambda: not service._ending)
        for talk in service._turns.conversations:
            assert not talk.is_busy
            service._turns._close(talk, is_finished=True)
        await until(lambda: not service._ending)
        assert not service._scheduler.trajectories()
        counts = service._scheduler.counts()
        assert all(job.finished == job.consumed for job in counts.jobs.values())


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


@asynccontextmanager
async def bare(
    workers: int = 2,
    limits: ServiceLimits | None = None,
    step_s: float = 0.0,
    **options: Any,
) -> AsyncIterator[Rig]:
    """A service without HTTP, which takes a while to set up."""
    async with RolloutService(limits or ServiceLimits(), **options) as service:
        made = [
            TrialWorker(number, KINDS[number % 2], service.receive, step_s=step_s)
            for number in range(workers)
        ]
        for worker in made:
            await service.register(worker, worker.capabilities, worker.limits)
            worker.grant()
        try:
            yield Rig(service, made)
        finally:
            for worker in made:
                worker.close()


@asynccontextmanager
async def rigged(
    workers: int = 2, limits: ServiceLimits | None = None, step_s: float = 0.0, **options: Any
) -> AsyncIterator[Rig]:
    async with bare(workers, limits, step_s) as rig:
        rig.app = rollout_app(rig.service, model="trial", **options)
        transport = httpx2.ASGITransport(app=rig.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            rig.client = client
            yield rig


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a streamed answer, which must end as OpenAI's do."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


class Exchange:
    """One request to an application, as a server passes it on: parts may be late or missing."""

    def __init__(self, app: Any, path: str, headers: dict[str, str], method: str = "POST") -> None:
        self.sent: list[dict[str, Any]] = []
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.task = asyncio.create_task(app(scope, self._inbox.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def give(self, body: bytes, *, more: bool = False) -> None:
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.sent)


JSON = {"content-type": "application/json"}
