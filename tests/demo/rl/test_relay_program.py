"""The relay as a process: it serves what the trainer has, also when the trainer is gone."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve
from tests.transfer.worker import TILE, Worker, changed, weights

TOKEN = "17" * 32
LONG_S = 200.0


@contextmanager
def relay_of(upstream: str, *options: str) -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rose.demo.rl.relay_program", f"--upstream={upstream}", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdin.write(TOKEN + "\n")
    process.stdin.flush()
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=LONG_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def test_worker_follows_through_the_relay_and_goes_on_without_the_trainer() -> None:
    log = VersionLog()
    bits = weights(1)
    publisher = RowPublisher(bits, "run", 1, 0, log, tile_elements=TILE)
    with ExitStack() as stack:
        server = stack.enter_context(serve(log, token=TOKEN))
        process = stack.enter_context(relay_of(server.address, "--background"))
        address = json.loads(process.stdout.readline())["address"]
        source = RemoteSource(address, TOKEN)
        with Worker(source, bits) as worker:
            stack.callback(source.close)
            bits = changed(bits, 2)
            publisher.publish(bits)
            worker.follow(publisher.version)
            assert np.array_equal(worker.bits, bits)
        moved = log.statistics().sent_bytes
        server.close()
        late = RemoteSource(address, TOKEN)
        with Worker(late, weights(1)) as other:
            stack.callback(late.close)
            other.follow(publisher.version)
            assert np.array_equal(other.bits, bits)
        process.stdin.close()  # as when the parent has died
        assert process.wait(timeout=LONG_S) == 0
        figures = [json.loads(line) for line in process.stderr if line.startswith("{")]
    assert figures[-1]["crossing_bytes"] == moved
    assert figures[-1]["sent_bytes"] == 2 * moved


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--weights-address=8.8.8.8:0"], "8.8.8.8"), (["--cores=4095"], "cores [4095]")],
)
def test_relay_that_cannot_be_says_why_in_one_sentence(options: list[str], says: str) -> None:
    with relay_of("127.0.0.1:9", *options) as process:
        assert process.wait(timeout=LONG_S) == 1
        (line,) = [one for one in process.stderr if "the relay ends" in one]
        assert says in line
