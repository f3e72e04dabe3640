"""An asyncio driver with workers that speak when the loop lets them, and programs that ask."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace
from typing_extensions import Self

from rose.scheduler import PlacementPolicy, durable, elastic
from rose.scheduler.elastic import ElasticRolloutScheduler
from rose.scheduler.store_file import FileStore
from rose.scheduler.turns import TurnResult
from rose.scheduler.worker import WorkerEvent, WorkerKind
from tests.lab.demo.rl.scripted_worker import ScriptedWorker
from tests.scheduler.driver_world import (
    CAPABILITIES,
    SAMPLING,
    SETTINGS,
    first_prompt,
    next_prompt,
    truth,
    turns_of,
)
from tests.scheduler.tuned import tuned

HANG_S = 10.0
LIMITS = {"TICK_S": 0.005, "CHECKPOINT_S": 3600.0, "REJOIN_S": 3600.0}
CAN = replace(CAPABILITIES, seats=64)
WIDE = tuned(SETTINGS, batch_trajectories=100_000, retry_ms=1.0, recall_grace_ms=5.0)


def run(program: Coroutine[Any, Any, None]) -> None:
    """Run a test; the time only bounds a hang."""
    asyncio.run(asyncio.wait_for(program, HANG_S))


@contextmanager
def limited(**limits: float) -> Iterator[None]:
    """For a time, with other bounds of the driver than those of production."""
    with ExitStack() as stack:
        for name, value in {**LIMITS, **limits}.items():
            of = durable if hasattr(durable, name) else elastic
            stack.enter_context(patch.object(of, name, value))
        yield


def make(path: Path | None = None, **changes: Any) -> ElasticRolloutScheduler:
    given: dict[str, Any] = {"settings": WIDE, **changes}
    store = None if path is None else FileStore(path)
    settings = given.pop("settings")
    return ElasticRolloutScheduler(settings, PlacementPolicy.JOINT, store=store, **given)


class Voices:
    """Lets workers speak in a thread of their own, as engines do."""

    def __init__(self, *workers: ScriptedWorker, tokens: int = 3) -> None:
        self._workers = workers
        self._tokens = tokens
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._speak)

    def _speak(self) -> None:
        while not self._is_over.wait(0.001):
            for worker in self._workers:
                speak(worker, self._tokens)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def speak(worker: ScriptedWorker, tokens: int = 3) -> None:
    with worker.lock:
        for trajectory in list(worker.running):
            worker.output(trajectory, tokens)


async def bring(
    scheduler: ElasticRolloutScheduler,
    number: int,
    kind: WorkerKind = WorkerKind.DEDICATED,
    on_event: Callable[[WorkerEvent], None] | None = None,
    **can: Any,
) -> ScriptedWorker:
    """Register a worker with a lease."""
    worker = ScriptedWorker(number, kind, scheduler.receive if on_event is None else on_event)
    await scheduler.register(worker, replace(CAN, **can))
    worker.grant()
    return worker


async def speak_until(worker: ScriptedWorker, asked: asyncio.Task[TurnResult]) -> TurnResult:
    while not asked.done():
        speak(worker)
        await asyncio.sleep(0)
    return await asked


async def die(scheduler: ElasticRolloutScheduler) -> None:
    """End its task as a kill would: nothing more is written, nobody is told to stop."""
    scheduler._task.cancel()
    await asyncio.wait({scheduler._task})
    scheduler._durable._store.close()


def ask(
    scheduler: ElasticRolloutScheduler, trajectory: int, turn: int = 0, **changes: Any
) -> asyncio.Task[TurnResult]:
    given = {"prompt": first_prompt(trajectory), "sampling": SAMPLING, **changes}
    return asyncio.create_task(scheduler.generate(trajectory, turn=turn, **given))


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def assert_true(result: TurnResult, prompt: tuple[int, ...]) -> None:
    expected = truth(result.trajectory, prompt, result.turn)
    assert replace(result, workers=()) == expected


async def play(scheduler: ElasticRolloutScheduler, trajectory: int) -> None:
    """Run a trajectory from its start to its end, and check every token."""
    await scheduler.start(trajectory, group=trajectory // 4)
    prompt = first_prompt(trajectory)
    for turn in range(turns_of(trajectory)):
        result = await scheduler.generate(trajectory, turn=turn, prompt=prompt, sampling=SAMPLING)
        assert_true(result, prompt)
        prompt = next_prompt(prompt, result)
    await scheduler.finish(trajectory)


@asynccontextmanager
async def opened(
    path: Path | None = None, limits: Mapping[str, float] = LIMITS, **changes: Any
) -> AsyncIterator[ElasticRolloutScheduler]:
    with limited(**limits):
        async with make(path, **changes) as scheduler:
            yield scheduler
