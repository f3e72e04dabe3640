"""A pair of real vLLM servers for tests, and a client of a borrower's events."""

import json
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bench.vllm_servers import KV_BYTES, Server, Talk, prompts
from rose.cli.main import main
from tests.waiting import wait_for

ROLLOUTS = prompts(24, tokens=200)
ROLLOUT_TOKENS = 120
# Together they need most of the pool.
BURST = prompts(16, tokens=800)
BURST_TOKENS = 40
BURSTS = 3  # Without a pause between them rollouts would never end.
ROUNDS_MAX = 10
WAIT_S = 60.0


class Pair:
    """A serving engine and a borrower, with the answers that each gives alone.

    `stock` is a server without rose's scheduler, with the borrower's model; it is not started.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        """Start both; `options` are serving's."""
        from rose.engines.vllm.tiny import make_model

        core = max(os.sched_getaffinity(0))
        self.socket = folder / "s"
        served = make_model(folder / "served", layers=4, hidden=128, seed=1)
        self.rolled_out = rolled_out = make_model(
            folder / "rolled-out", layers=8, hidden=256, seed=2
        )
        self._core, self._folder, self._served = core, folder, served
        self.serving = self.server_that_lends(*options)
        self.borrower = Server(
            *("rose.cli.main", "vllm", "rollout", str(rolled_out), "--attach", str(self.socket)),
            *("--weight-transfer-config", '{"backend": "rose"}'),
            log=folder / "borrower.log",
            core=core,
        )
        self.stock = Server(
            *("vllm.entrypoints.cli.main", "serve", str(rolled_out), "--enforce-eager"),
            *("--kv-cache-memory-bytes", str(KV_BYTES), "--logprobs-mode", "processed_logprobs"),
            *("--weight-transfer-config", '{"backend": "rose"}'),
            log=folder / "stock.log",
            core=min(os.sched_getaffinity(0)),
        )
        with ExitStack() as undo:
            undo.callback(self.close)
            self.serving.start()
            # Before there is a borrower, and before serving has a request beside it.
            self.burst_alone = Talk(self.serving, BURST, tokens=BURST_TOKENS).tokens()
            self.borrower.start()
            self.rollouts_alone = self.roll_out().tokens()
            undo.pop_all()

    def server_that_lends(self, *options: str) -> Server:
        return Server(
            *("rose.cli.main", "vllm", "serve", str(self._served), "--listen", str(self.socket)),
            *("--epsilon", "0.02", "--revoke-ms", "500", "--enforce-eager"),
            *("--kv-cache-memory-bytes", str(KV_BYTES), *options),
            log=self._folder / "serving.log",
            core=self._core,
        )

    def roll_out(self, server: Server | None = None) -> Talk:
        return Talk(server or self.borrower, ROLLOUTS, tokens=ROLLOUT_TOKENS)

    def burst(self) -> None:
        """Let serving use most of the pool; its tokens are those without a borrower."""
        assert Talk(self.serving, BURST, tokens=BURST_TOKENS).tokens() == self.burst_alone

    def lending(self, *what: str) -> None:
        assert main(["lending", *what, "--socket", str(self.socket)]) == 0

    def wait_until_lent(self) -> None:
        wait_for(lambda: self.serving.status["lent_bytes"] > 0)

    def close(self) -> None:
        for one in (self.borrower, self.serving, self.stock):
            one.stop()


class EventReader:
    """Reads a borrower's `/rose/events` in a thread."""

    def __init__(self, server: Server) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        self._connection.request("GET", "/rose/events")
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        word = ""
        for line in self._answer:
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                word = value
            elif name == "data":
                self.seen.append((word, json.loads(value)))

    def of(self, word: str) -> list[dict[str, Any]]:
        """Return the data of the events of this name."""
        return [data for name, data in list(self.seen) if name == word]

    def wait(self, word: str, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the newest event of this name, once it is the one."""
        wait_for(lambda: self.of(word) and is_it(self.of(word)[-1]))
        return next(one for one in reversed(self.of(word)) if is_it(one))

    def wait_until_ended(self) -> None:
        """Wait until the server has ended the stream."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
