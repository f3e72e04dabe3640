"""Programs of a fleet are killed, stopped, restarted, drained and revoked under conversations.

No turn may be lost, doubled or wrong, and every worker must come back.
"""

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.agentic import TRACE, conversations
from rose.adapters.trial import VOCABULARY, trial_token
from tests.fleet.programs import Program, free_port
from tests.fleet.talks import Talker, seed_of_turn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

ENGINES = 4
TALKS = 12
TURNS = 4
FAULTS = 500
BETWEEN_S = (0.3, 1.0)
BACK_S = 10.0  # from the moment at which a worker can be reached


class Fleet:
    """A service and engines without a model, each a program."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self._folder, self._draw = folder, draw
        self.engines = [self._engine(place) for place in range(ENGINES)]
        for engine in self.engines:
            engine.wait_listening()
        port = free_port()
        urls = [part for engine in self.engines for part in ("--rollouts", engine.url)]
        arguments = ["-m", "rose.cli.main", "serve", *urls, "--listen", f"127.0.0.1:{port}"]
        self.service = Program("service", arguments, folder, port=port)
        self.service.wait_listening()
        self.faults: Counter[str] = Counter()
        self.back_s: list[float] = []

    def _engine(self, place: int) -> Program:
        port = free_port()
        arguments = ["-m", "rose.cli.main", "engine", "trial", "--listen", f"127.0.0.1:{port}"]
        return Program(f"engine-{place}", arguments, self._folder, port=port)

    def close(self) -> None:
        for program in (self.service, *self.engines):
            program.end()

    async def disturb(self, session: aiohttp.ClientSession, count: int) -> None:
        engine_faults = (
            self._kill_engine,
            self._restart_engine,
            self._freeze,
            self._revoke,
            self._drain,
        )
        for number in range(count):
            await asyncio.sleep(self._draw.uniform(*BETWEEN_S))
            is_service = number % 25 == 24
            fault = self._restart_service if is_service else self._draw.choice(engine_faults)
            self.faults[fault.__name__.strip("_")] += 1
            try:
                await fault(session)
            except AssertionError:
                sys.stderr.write(f"{self.service.log()}\n")
                raise

    # ---- faults ---------------------------------------------------------------------------------

    def _one(self) -> Program:
        return self._draw.choice(self.engines)

    async def _kill_engine(self, session: aiohttp.ClientSession) -> None:
        await self._end_engine(session, signal.SIGKILL)

    async def _restart_engine(self, session: aiohttp.ClientSession) -> None:
        await self._end_engine(session, signal.SIGTERM)

    async def _end_engine(self, session: aiohttp.ClientSession, how: signal.Signals) -> None:
        engine = self._one()
        status = await asyncio.to_thread(engine.end, how)
        assert status == (0 if how is signal.SIGTERM else -how), engine.log()
        engine.start()
        await asyncio.to_thread(engine.wait_listening)
        await self._back(session, engine)

    async def _freeze(self, session: aiohttp.ClientSession) -> None:
        engine = self._one()
        engine.send(signal.SIGSTOP)
        await asyncio.sleep(self._draw.choice((0.2, 1.0, 6.0)))
        engine.send(signal.SIGCONT)
        await self._back(session, engine)

    async def _revoke(self, session: aiohttp.ClientSession) -> None:
        engine = self._one()
        engine.send(signal.SIGUSR1)
        await asyncio.sleep(self._draw.uniform(0, 0.5))
        engine.send(signal.SIGUSR2)
        await self._back(session, engine)

    async def _drain(self, session: aiohttp.ClientSession) -> None:
        """Drain a worker, remove it, and add its engine again."""
        engine = self._one()
        row = (await self._rows(session))[engine.url]
        where = f"{self.service.url}/workers"
        async with session.post(f"{where}/{row['id']}/drain") as answer:
            assert answer.status == 200, await answer.text()
        async with session.delete(f"{where}/{row['id']}") as answer:
            assert answer.status == 200, await answer.text()
        async with session.post(where, json={"url": engine.url}) as answer:
            assert answer.status == 202, await answer.text()
        await self._back(session, engine)

    async def _restart_service(self, session: aiohttp.ClientSession) -> None:
        how = self._draw.choice((signal.SIGTERM, signal.SIGKILL))
        status = await asyncio.to_thread(self.service.end, how)
        assert status == (0 if how is signal.SIGTERM else -how), self.service.log()
        self.service.start()
        await asyncio.to_thread(self.service.wait_listening)
        for engine in self.engines:
            await self._back(session, engine)

    # ---- workers --------------------------------------------------------------------------------

    async def _rows(self, session: aiohttp.ClientSession) -> dict[str, dict[str, Any]]:
        async with session.get(f"{self.service.url}/workers") as answer:
            if answer.status != 200:  # it starts
                return {}
            return {row["engine"]: row for row in (await answer.json())["workers"]}

    async def _back(self, session: aiohttp.ClientSession, engine: Program) -> None:
        begin_s = time.monotonic()
        while True:
            row = (await self._rows(session)).get(engine.url, {})
            waited_s = time.monotonic() - begin_s
            if row.get("state") == "ready" and row.get("kv_tokens"):
                self.back_s.append(waited_s)
                return
            assert waited_s < BACK_S, f"{engine.name} is not back after {waited_s:.1f} s: {row}"
            await asyncio.sleep(0.02)


def right(number: int, turn: int, context: list[int]) -> list[int]:
    seed = seed_of_turn(number, turn)
    return [trial_token(seed, len(context) + at, 0) for at in range(400)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path, random.Random(50))
    yield made
    made.close()


@pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE.name} is not beside the repository")
def test_no_turn_is_lost_whatever_ends(fleet: Fleet, tried) -> None:
    async def run() -> None:
        talks = conversations(TALKS, TURNS)
        talker = Talker(fleet.service.url, talks, right, vocabulary=VOCABULARY)
        talking = asyncio.create_task(talker.run())
        async with aiohttp.ClientSession() as session:
            faults = asyncio.create_task(fleet.disturb(session, FAULTS))
            await asyncio.wait({talking, faults}, return_when=asyncio.FIRST_COMPLETED)
            talker.stop.set()
            await faults
        account = await talking
        print(account.turns, account.retries, fleet.faults, max(fleet.back_s))
        assert account.wrong == []
        assert account.turns > FAULTS / 2

    asyncio.run(run())
    for name, count in fleet.faults.items():
        tried(f"fleet: {name}", count)
