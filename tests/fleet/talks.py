"""Agentic conversations over HTTP, whose clients retry until they have each turn once."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.agentic import Conversation

# Statuses after which clients repeat a request: no worker, overloaded, or the service restarts.
RETRIED = frozenset({429, 500, 502, 503})
RETRY_S = 0.2
ANSWER_S = 300.0
# (conversation, turn, context) → the right tokens of the turn.
Right = Callable[[int, int, list[int]], list[int]]


@dataclass
class Account:
    """Turns and repeated requests, as the clients saw them.

    Args:
        turns: finished turns.
        retries: repeated requests, by reason.
        wrong: turns with other tokens than the right ones, described.
        waits_s: time of each turn.
    """

    turns: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)


def seed_of_turn(number: int, turn: int) -> int:
    return number * 1000 + turn


class Talker:
    """One client of the service, with all its conversations.

    Args:
        url: URL of the service.
        talks: conversations; each is repeated under other numbers until `stop` is set.
        right: function that returns the right tokens.
        vocabulary: number of token ids.
    """

    def __init__(
        self, url: str, talks: Sequence[Conversation], right: Right, *, vocabulary: int
    ) -> None:
        self._url, self._talks, self._right, self._vocabulary = url, talks, right, vocabulary
        self.account = Account()
        self.stop = asyncio.Event()

    async def run(self) -> Account:
        """Repeat all conversations until `stop`; each ends its last round."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            await asyncio.gather(
                *(self._repeat(session, place) for place in range(len(self._talks)))
            )
        return self.account

    async def _repeat(self, session: aiohttp.ClientSession, place: int) -> None:
        number = place
        while not self.stop.is_set():
            await self._converse(session, number, self._talks[place])
            number += len(self._talks)

    async def _converse(
        self, session: aiohttp.ClientSession, number: int, talk: Conversation
    ) -> None:
        draw, context = random.Random(number), list[int]()
        for turn, wanted in enumerate(talk):
            context += [draw.randrange(1, self._vocabulary) for _ in range(wanted.new_tokens)]
            right = self._right(number, turn, context)[: wanted.output_tokens]
            begin_s = time.monotonic()
            choice = await self._turn(session, number, turn, context, len(right))
            self.account.waits_s.append(time.monotonic() - begin_s)
            self.account.turns += 1
            if choice["token_ids"] != right:
                self.account.wrong.append(f"{number}.{turn}: {choice['token_ids']} not {right}")
            context += right
            await asyncio.sleep(wanted.tool_s)

    async def _turn(
        self,
        session: aiohttp.ClientSession,
        number: int,
        turn: int,
        context: list[int],
        max_tokens: int,
    ) -> dict[str, Any]:
        body = {
            "prompt": context,
            "max_tokens": max_tokens,
            "seed": seed_of_turn(number, turn),
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": 0,
        }
        headers = {"idempotency-key": f"{number}.{turn}", "x-session-id": str(number)}
        while True:
            try:
                where = f"{self._url}/v1/completions"
                async with session.post(where, json=body, headers=headers) as answer:
                    content = await answer.json()
                    if answer.status == 200:
                        return dict(content["choices"][0])
                    assert answer.status in RETRIED, (answer.status, content)
                    self.account.retries[f"{answer.status}: {content['error']['message']}"] += 1
            except aiohttp.ClientConnectionError as error:
                self.account.retries[type(error).__name__] += 1
            await asyncio.sleep(RETRY_S)
