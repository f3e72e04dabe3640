"""Engines die, stand still, are revoked and restart at random: every token is the right one."""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rose.adapters import member as member_module
from rose.adapters.fleet import WorkerState
from rose.engines.http import Dialect
from rose.engines.http import events as events_module
from rose.engines.http import worker as worker_module
from rose.scheduler.turns import Sampling, TurnLost, TurnResult
from tests.adapters.fleet_rig import Rig, check, rigged
from tests.engines.http.fake import BLOCK, KV_BLOCKS, FakeEngine
from tests.engines.http.rig import until

TRAJECTORIES = 24
TURNS = 4
FAULTS = 40
HANG_S = 200
AGAIN = 1000  # distance between the numbers of a conversation's trajectories


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorten the intervals of health checks and retries."""
    monkeypatch.setattr(worker_module, "_HEALTH_S", 0.02)
    monkeypatch.setattr(worker_module, "_DEADLINE_ELSE_S", 0.1)
    monkeypatch.setattr(worker_module, "_DEADLINE_S", {Dialect.SGLANG: 0.1})
    monkeypatch.setattr(member_module, "_RETRY_S", 0.02)
    monkeypatch.setattr(events_module, "SILENCE_S", 0.8)
    monkeypatch.setattr(events_module, "BROKEN_S", 0.3)
    return


async def conversation(rig: Rig, number: int, draw: random.Random) -> int:
    """Run a trajectory whose contexts grow; the tokens of every turn are checked.

    Returns:
        Number of turns that two deaths in a row have failed, as the scheduler promises. Each was
        requested again, as a client does, in another trajectory.
    """
    scheduler, context = rig.service.scheduler, list(range(1, 4 + draw.randrange(8)))
    await scheduler.start(number)
    place = again = 0
    for _ in range(TURNS):
        count = draw.randrange(20, 160)
        while (result := await turn(rig, number, place, context, count)) is None:
            again += 1
            number, place = number + AGAIN, 0
            await scheduler.start(number)
        place += 1
        check(result, len(context), count)
        context += [*result.tokens, 9]
        await asyncio.sleep(draw.uniform(0, 0.05))
    await scheduler.finish(number)
    return again


async def turn(
    rig: Rig, number: int, place: int, context: list[int], count: int
) -> TurnResult | None:
    """Return a turn; None if the deaths of two workers have failed it."""
    try:
        return await rig.service.scheduler.generate(
            number, turn=place, prompt=context, sampling=Sampling(count)
        )
    except TurnLost:
        return None


async def fault(rig: Rig, one: FakeEngine, draw: random.Random) -> None:
    number = rig.engines.index(one)
    kinds = ["kill", "stand still", "break", "kill", "full"]
    match draw.choice(kinds + ["revoke", "revoke", "silence"] * (one.dialect == "rose")):
        case "kill":
            await one.kill()
            await asyncio.sleep(draw.uniform(0.05, 0.4))
            await until(lambda: rig.row(number).state is not WorkerState.READY)
            await one.restart()
        case "stand still":
            one.can_run.clear()
            await asyncio.sleep(draw.uniform(0.05, 0.8))
            one.can_run.set()
        case "break":
            for connection in list(one._runner.server.connections):
                connection.transport.abort()
        case "full":
            one.health = 503
            await asyncio.sleep(draw.uniform(0.01, 0.3))
            one.health = 200
        case "revoke":
            epoch = one.grant["grant_epoch"]
            await one.tell(grant={"grant_epoch": epoch, "kv_tokens": 0, "ttl_ms": 0.0})
            await asyncio.sleep(draw.uniform(0.0, 0.3))
            grant = {"grant_epoch": epoch + 1, "kv_tokens": KV_BLOCKS * BLOCK, "ttl_ms": 0.0}
            await one.tell(grant=grant)
        case "silence":
            one.tells = False
            await asyncio.sleep(draw.uniform(0.1, 1.2))
            one.tells = True


@pytest.mark.parametrize("seed", [1, 2])
def test_no_token_is_lost_or_doubled_whatever_the_engines_do(quick: None, seed: int) -> None:
    asyncio.run(asyncio.wait_for(storm(seed), HANG_S))


async def storm(seed: int) -> None:
    draw = random.Random(seed)
    async with rigged() as rig:
        for dialect in ("vllm", "sglang", "rose", "rose"):
            await rig.join(dialect, burst=draw.choice([1, 3]))
        turns = [
            asyncio.create_task(conversation(rig, number, random.Random(f"{seed}/{number}")))
            for number in range(TRAJECTORIES)
        ]
        numbers = iter(range(TRAJECTORIES, AGAIN))
        busy = {one: asyncio.create_task(asyncio.sleep(0)) for one in rig.engines}
        for _ in range(FAULTS):
            await asyncio.sleep(draw.uniform(0.02, 0.2))
            one = draw.choice(rig.engines)
            if busy[one].done():
                busy[one].result()
                busy[one] = asyncio.create_task(fault(rig, one, draw))
            if all(turn.done() for turn in turns):  # Faults without load find little.
                turns.append(asyncio.create_task(conversation(rig, next(numbers), draw)))
        await asyncio.gather(*busy.values())
        again = sum(await asyncio.gather(*turns))
        assert again <= FAULTS
        await rig.until_ready(0, 1, 2, 3)
        assert rig.service.scheduler.counts().resumed
        assert {row.state for row in rig.fleet.list()} == {WorkerState.READY}
        await until(lambda: {row.running for row in rig.fleet.list()} == {0})
        await until(lambda: {one.running for one in rig.engines} == {0})


class Program:
    """A fake engine in a process of its own."""

    def __init__(self, dialect: str) -> None:
        self.dialect, self.port = dialect, "0"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.engines.http.fake", self.dialect, self.port]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.port = self.url.rpartition(":")[2]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)


@pytest.mark.parametrize("dialect", ["vllm", "rose"])
def test_process_that_is_stopped_or_killed_is_the_same_worker_again(dialect: str) -> None:
    asyncio.run(asyncio.wait_for(stops_and_kills(dialect), HANG_S))


async def stops_and_kills(dialect: str) -> None:
    program = Program(dialect)
    try:
        async with rigged() as rig:
            number = await rig.fleet.add(program.url)
            await rig.until_ready(number)
            turns = [asyncio.create_task(rig.turn(1500)) for _ in range(4)]
            await until(lambda: rig.row(number).running == 4)
            program.send(signal.SIGSTOP)
            await asyncio.sleep(8)
            program.send(signal.SIGCONT)
            await rig.until_ready(number)
            program.close()
            await until(lambda: rig.row(number).state is WorkerState.LOST)
            program.start()
            await rig.until_ready(number)
            for result in await asyncio.gather(*turns):
                assert set(result.workers) == {number}
                assert len(result.workers) >= 2
    finally:
        program.close()
