"""Workers that come, go and speak between two steps of the driver, in every order."""

import asyncio

import pytest
from msgspec.structs import replace

from rose.errors import InvalidArgument
from rose.scheduler.worker import WorkerKind, WorkerLost
from tests.lab.demo.rl.scripted_worker import ScriptedWorker
from tests.scheduler.driver_world import SAMPLING, first_prompt
from tests.scheduler.elastic_rig import (
    CAN,
    assert_true,
    opened,
    run,
    speak_until,
    until,
)

DEDICATED = WorkerKind.DEDICATED
PROMPT = first_prompt(3)


class Told:
    """What is said here is heard in one step: the scheduler's task runs when the test lets it."""

    def __init__(self, scheduler) -> None:
        self.scheduler = scheduler
        self.calls = []

    def worker(self, number: int = 0) -> ScriptedWorker:
        return ScriptedWorker(number, DEDICATED, self.scheduler.receive)

    async def register(self, worker, can=CAN) -> None:
        self.calls.append(asyncio.create_task(self.scheduler.register(worker, can)))
        await asyncio.sleep(0)

    async def lose(self, number: int = 0) -> None:
        self.calls.append(asyncio.create_task(self.scheduler.lose(number, "it went away")))
        await asyncio.sleep(0)

    async def heard(self) -> list[BaseException | None]:
        return await asyncio.gather(*self.calls, return_exceptions=True)


async def can_work(scheduler, worker) -> None:
    """Run a turn there; the time only bounds a hang."""
    await scheduler.start(3)
    asked = asyncio.create_task(scheduler.generate(3, turn=0, prompt=PROMPT, sampling=SAMPLING))
    await asyncio.wait_for(until(lambda: worker.running or asked.done()), 10)
    assert_true(await speak_until(worker, asked), PROMPT)


def held_back(scheduler, test) -> None:
    """Let the scheduler's task step nothing while a test speaks."""
    advance = scheduler._advance
    scheduler._advance = lambda events: [scheduler._durable.receive(event) for event in events]
    test.let_go = lambda: (setattr(scheduler, "_advance", advance), scheduler._inbox.wake())


def together(program) -> None:
    """Run a test that says all it has to say before the scheduler hears any of it."""

    async def whole() -> None:
        async with opened() as scheduler:
            told = Told(scheduler)
            held_back(scheduler, told)
            await program(scheduler, told)

    run(whole())


def test_what_a_worker_says_right_behind_its_registration_is_heard() -> None:
    async def program(scheduler, told) -> None:
        worker = told.worker()
        await told.register(worker)
        worker.grant()  # once: this lease is not renewed
        told.let_go()
        assert await told.heard() == [None]
        await can_work(scheduler, worker)

    together(program)


def test_of_two_that_register_at_once_the_first_is_taken() -> None:
    async def program(scheduler, told) -> None:
        first, second = told.worker(), told.worker()
        await told.register(first)
        await told.register(second, replace(CAN, seats=3))
        first.grant()
        told.let_go()
        taken, refused = await told.heard()
        assert taken is None
        assert isinstance(refused, InvalidArgument)
        assert "is registered already" in str(refused)
        await can_work(scheduler, first)

    together(program)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("says_so_itself", [True, False])
def test_one_that_is_lost_and_comes_back_at_once_is_there(times, says_so_itself) -> None:
    async def program(scheduler, told) -> None:
        first = worker = told.worker()
        await told.register(worker)
        worker.grant()
        for _ in range(times):
            if says_so_itself:
                scheduler.receive(WorkerLost(0, "it went away"))
            else:
                await told.lose()
            before, worker = worker, told.worker()
            worker.epoch = before.epoch
            await told.register(worker)
            worker.grant()
        told.let_go()
        assert set(await told.heard()) == {None}
        await can_work(scheduler, worker)
        assert (len(worker.asked), first.asked) == (1, [])

    together(program)


async def test_one_that_comes_as_another_when_its_time_is_up_is_not_lost(tmp_path) -> None:
    """The worker of the life before is overdue in the very step in which its number comes anew."""
    async with opened(tmp_path / "store") as first:
        await first.register(ScriptedWorker(0, DEDICATED, first.receive), CAN)
    limits = {"REJOIN_S": 0.05, "TICK_S": 3600.0}
    async with opened(tmp_path / "store", limits=limits) as second:
        await asyncio.sleep(0.1)  # No step since: nobody has said anything.
        told = Told(second)
        worker = told.worker()
        worker.epoch = 1
        await told.register(worker, replace(CAN, seats=3))
        worker.grant()
        assert await told.heard() == [None]
        await can_work(second, worker)
