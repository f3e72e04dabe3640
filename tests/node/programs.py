"""Programs of rose that serve HTTP, as a user starts them."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from tests.waiting import LONG_S, wait_for

ROOT = Path(__file__).resolve().parents[2]
ROSE = (sys.executable, "-m", "rose.cli.main")
BODY = {"prompt": [1, 2, 3], "max_tokens": 6, "seed": 7, "return_token_ids": True}


class Served:
    """A program that prints `listening: URL`, and what it says."""

    def __init__(self, process: subprocess.Popen, token: str | None) -> None:
        self.process = process
        self._errors: list[str] = []
        threading.Thread(target=self._read_errors, daemon=True).start()
        self.line = process.stdout.readline().split()
        if not self.line:
            process.wait(LONG_S)
            wait_for(lambda: process.stderr.closed)
        assert self.line, self.errors
        self.url = self.line[1]
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.client = httpx2.Client(base_url=self.url, headers=headers, timeout=60.0, verify=False)

    def _read_errors(self) -> None:
        with self.process.stderr as lines:
            self._errors += lines

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    def get(self, path: str) -> dict[str, Any]:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tokens(self, **changes: Any) -> list[int]:
        answer = self.client.post("/v1/completions", json={**BODY, **changes})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["token_ids"]

    def is_well(self) -> bool:
        with suppress(httpx2.TransportError):
            return self.client.get("/health").status_code == 200
        return False

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the events of `/rose/events` as they come."""
        with self.client.stream("GET", "/rose/events") as answer:
            word = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    word = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield word, json.loads(line.removeprefix("data: "))

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(LONG_S)


@contextmanager
def started(
    *words: str, token: str | None = None, prefix: tuple[str, ...] = (), **options: Any
) -> Iterator[Served]:
    """Run `rose WORDS`, and kill it at the end if nobody has ended it."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("ROSE_TOKEN", None)
    if token is not None:
        environment["ROSE_TOKEN"] = token
    process = subprocess.Popen(
        [*prefix, *ROSE, *words],
        **{"stdin": subprocess.DEVNULL, **options},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    try:
        served = Served(process, token)
        with served.client:
            yield served
    finally:
        process.kill()
        process.wait()
