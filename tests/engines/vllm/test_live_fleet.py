"""A stock vLLM and one that borrows beside live traffic: faults cost their service no turn."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest

from bench.vllm_servers import PYTHON, Server, free_port, prompts
from tests.engines.vllm.live import Pair
from tests.waiting import wait_for

pytestmark = [pytest.mark.peer, pytest.mark.timeout(2400)]

CONVERSATIONS = 40
TURNS = 3
TURN_TOKENS = 40
TOOL_TOKENS = 12
ROUNDS = 3  # Each has three faults, and one more follows.
ANSWER_S = 600.0

Tokens = list[int]


class Front(Server):
    """`rose serve` in front of engines."""

    def __init__(self, *engines: Server, pair: Pair) -> None:
        super().__init__("rose.cli.main", log=pair.socket.with_name("front.log"))
        self.port = free_port()
        urls = [f"http://127.0.0.1:{one.port}" for one in engines]
        self._command = [
            *(str(PYTHON), "-m", "rose.cli.main", "serve"),
            *(word for url in urls for word in ("--rollouts", url)),
            *("--listen", f"127.0.0.1:{self.port}"),
        ]

    def are_all_ready(self, engines: int) -> bool:
        rows = json.loads(self.get("/workers"))["workers"]
        return [one["state"] for one in rows] == ["ready"] * engines


def ask(server: Server, prompt: Tokens, *, session: str) -> Tokens:
    """Return the tokens of one turn, which must be complete."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_S)
    body = {
        "prompt": prompt,
        "max_tokens": TURN_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    headers = {"content-type": "application/json", "x-session-id": session}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status == 200, text
    (choice,) = json.loads(text)["choices"]
    assert choice["finish_reason"] == "length", text
    tokens: Tokens = choice["token_ids"]
    return tokens


def converse(server: Server, first: Tokens, *, session: str) -> list[Tokens]:
    """Return the answers of a conversation; a tool's result follows each of them."""
    context, answers = first, list[Tokens]()
    for turn in range(TURNS):
        answers.append(ask(server, context, session=session))
        context = context + answers[-1] + [200 + turn] * TOOL_TOKENS
    return answers


class Conversations:
    """Clients that hold the same conversations again and again until `stop`."""

    def __init__(self, server: Server, expected: list[list[Tokens]]) -> None:
        self._server = server
        self._expected = expected
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(CONVERSATIONS)
        self._held = [self._pool.submit(self._hold, place) for place in range(CONVERSATIONS)]

    def _hold(self, place: int) -> int:
        """Return the number of conversations, each of which must have the expected answers."""
        held = 0
        while held == 0 or not self._stop.is_set():
            session = f"{place}-{held}"
            answers = converse(self._server, FIRST[place], session=session)
            assert answers == self._expected[place], f"conversation {session}"
            held += 1
        return held

    def stop(self) -> list[int]:
        """Let each client end its conversation, and return their numbers of conversations."""
        self._stop.set()
        return [one.result(ANSWER_S) for one in self._held]

    def check(self) -> None:
        """Raise the failure of a client that has failed already."""
        for one in self._held:
            if one.done():
                one.result()


FIRST = prompts(CONVERSATIONS, tokens=100)


@pytest.fixture
def front(pair: Pair) -> Iterator[Front]:
    pair.stock.start()
    front = Front(pair.stock, pair.borrower, pair=pair)
    front.start()
    yield front
    front.stop()
    pair.stock.stop()


def test_no_turn_is_lost_or_doubled_while_engines_die_and_loans_are_revoked(
    pair: Pair, front: Front
) -> None:
    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        expected = list(pool.map(lambda one: converse(pair.stock, one, session="alone"), FIRST))
    wait_for(lambda: front.are_all_ready(2))
    conversations = Conversations(front, expected)

    def kill(engine: Server) -> None:
        wait_for(lambda: engine.counter("vllm:num_requests_running") > 0)
        engine.kill()
        engine.start()

    def revoke() -> None:
        wait_for(lambda: pair.borrower.counter("vllm:num_requests_running") > 0)
        pair.lending("off")
        wait_for(lambda: pair.serving.status["lent_bytes"] == 0)
        pair.lending("on")

    faults: list[Callable[[], Any]] = [
        *[lambda: kill(pair.borrower), pair.burst, lambda: kill(pair.stock)] * ROUNDS,
        revoke,
    ]
    for fault in faults:
        fault()
        conversations.check()
        wait_for(lambda: front.are_all_ready(2))
    held = conversations.stop()
    assert len(held) == CONVERSATIONS
    assert min(held) >= 1
