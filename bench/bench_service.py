"""The rollout service: cost of passing a token on to its client."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from bench.conftest import Report
from bench.paired import quantile
from bench.rows import Bar
from bench.service_server import STREAMS
from rose.errors import check

pytest.importorskip("fastapi")

STEP_S = 0.02  # 1,600 events in a second, which one core can pass on
TOKENS = 100
ANSWER_S = 60.0  # longest wait for the service


class Server:
    """The process of the service."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.service_server", str(STEP_S)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        host, _, port = self._line().removeprefix("http://").rpartition(":")
        self.address = host, int(port)

    def ask(self, line: str) -> int:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        late = threading.Timer(ANSWER_S, self.process.kill)
        late.start()
        line = self.process.stdout.readline().strip()
        late.cancel()
        check(bool(line), f"the service ended, or sent no line for {ANSWER_S:g} s")
        return line


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.process.stdin.close()
    made.process.wait(30)


async def stream(address: tuple[str, int], tokens: int) -> int:
    """Return the number of events of one streamed completion."""
    body = json.dumps({"prompt": [1], "max_tokens": tokens, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(*address)
    writer.write(head.encode() + body)
    answer = await asyncio.wait_for(reader.read(-1), ANSWER_S)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
    assert answer.count(b"data: [DONE]") == 1
    return answer.count(b'data: {"id"')


async def streams(address: tuple[str, int], tokens: int) -> int:
    return sum(await asyncio.gather(*(stream(address, tokens) for _ in range(STREAMS))))


def test_facade(report: Report, server: Server) -> None:
    asyncio.run(streams(server.address, 5))  # imports and caches
    tokens = max(5, report.count(TOKENS))
    with_us: list[float] = []
    alone_us: list[float] = []
    counts: list[float] = []

    def round_() -> None:
        begin_ns = server.ask("cpu")
        events = asyncio.run(streams(server.address, tokens))
        used_ns = server.ask("cpu") - begin_ns
        with_us.append(used_ns / events / 1e3)
        said = STREAMS * tokens
        alone_us.append(server.ask(f"alone {said}") / said / 1e3)
        counts.append(events / said)

    report.repeat(round_, 7)
    overhead = [one - other for one, other in zip(with_us, alone_us, strict=True)]
    report.add("facade_overhead_us", quantile(overhead, 0.5), "us", bar=Bar(at_most=150.0))
    report.add("service_cpu_per_event_us", quantile(with_us, 0.5), "us")
    report.add("worker_cpu_per_event_us", quantile(alone_us, 0.5), "us")
    report.add("events_per_token", quantile(counts, 0.5), "events")
