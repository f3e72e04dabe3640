"""Programs of rose are killed at random moments; the programs beside them lose and leak nothing.

`tests/executor/test_borrower_dies.py` does the same to borrowers.
"""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
import pytest

import rose
from rose.errors import DeadlineExceeded
from tests.executor.test_attached import BLOCKS_PER_SLAB
from tests.executor.test_serving_dies import Room
from tests.waiting import LONG_S, wait_for

KILLS = 50
ELEMENTS = 1 << 18

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PUBLISHER = """
import numpy as np, rose, sys
weights = {"x": np.zeros(int(sys.argv[1]), np.float32)}
publisher = rose.publish(weights, listen="127.0.0.1:0")
print(publisher.address, publisher.token, flush=True)
draw = np.random.default_rng(0)
while True:
    weights["x"][draw.integers(0, weights["x"].size, 10_000)] += 1
    publisher.update(weights)
"""
RECEIVER = """
import numpy as np, rose, sys
tensors = {"x": np.zeros(int(sys.argv[1]), np.float32)}
receiver = rose.receive(tensors, sys.argv[2], token=sys.argv[3])
while True:
    receiver.wait(100)
    receiver.commit()
    print("committed", flush=True)
"""


@contextmanager
def program(text: str, *arguments: object) -> Iterator[subprocess.Popen]:
    """Run a Python program, and kill it at the end if nobody has done so."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def nothing_is_left() -> Iterator[None]:
    """Compare this process's descriptors and threads before and after.

    gRPC's pool of threads grows and shrinks by a few, so only a leak in every second kill counts.
    """

    def held() -> tuple[int, int]:
        gc.collect()  # A test's own objects may form cycles that keep a socket open.
        return len(list(Path("/proc/self/fd").iterdir())), len(
            list(Path("/proc/self/task").iterdir())
        )

    before = held()
    yield
    wait_for(lambda: all(now < then + KILLS // 2 for now, then in zip(held(), before, strict=True)))


def test_borrower_outlives_every_serving_process(tmp_path: Path, tried) -> None:
    draw, room = Random(1), Room(tmp_path, "shared")
    try:
        for _ in range(KILLS):
            tried("kills of serving")
            in_step = (
                room.borrower.do("slabs") != []
            )  # `goes_on` leaves a step in its first segment.
            if in_step and draw.random() < 0.5:
                room.borrower.do("go_on")
            room.borrower.say("borrow", draw.randint(1, 2) * BLOCKS_PER_SLAB)
            time.sleep(draw.uniform(0, 0.01))
            room.serving.kill()
            room.borrower.answer()
            room.hears_the_end()
            if in_step:
                room.borrower.do("go_on")
                assert "closed" in room.borrower.do("end_step")
            assert room.borrower.do("let_go") == [0, 0]  # no memory of the pool, no descriptor
            room.next_serving()
            room.goes_on()
    finally:
        room.close()
    assert {one.name for one in tmp_path.iterdir()} <= {"device.sock", "device.sock.lock"}


def test_receiver_outlives_every_publisher(tried) -> None:
    draw = Random(2)
    follow_and_lose(draw)  # Modules that are loaded at the first use keep descriptors.
    with nothing_is_left():
        for _ in range(KILLS):
            tried("kills of a publisher")
            follow_and_lose(draw)


def follow_and_lose(draw: Random) -> None:
    """Follow a publisher until it is killed; the tensors then hold a whole version."""
    tensors = {"x": np.zeros(ELEMENTS, np.float32)}
    with program(PUBLISHER, ELEMENTS) as publisher:
        address, token = publisher.stdout.readline().split()
        with rose.receive(tensors, address, token=token) as receiver:
            receiver.wait(LONG_S)
            receiver.commit()
            end_s = time.monotonic() + draw.uniform(0, 0.2)
            killer = threading.Timer(end_s - time.monotonic(), publisher.kill)
            killer.start()
            while killer.is_alive() or publisher.poll() is None:
                try:
                    receiver.wait(0.2)
                except DeadlineExceeded:
                    continue
                receiver.commit()
            # Each update adds 1 at places drawn from a known seed.
            expected, places = np.zeros(ELEMENTS, np.float32), np.random.default_rng(0)
            for _ in range(receiver.version - 1):
                expected[places.integers(0, ELEMENTS, 10_000)] += 1
            assert np.array_equal(tensors["x"], expected)


def test_publisher_outlives_every_receiver(tried) -> None:
    draw = Random(3)
    weights = {"x": np.zeros(ELEMENTS, np.float32)}
    with rose.publish(weights) as publisher:
        lose_receiver(draw, publisher, weights)
        with nothing_is_left():
            for _ in range(KILLS):
                tried("kills of a receiver")
                lose_receiver(draw, publisher, weights)
        tensors = {"x": np.zeros(ELEMENTS, np.float32)}
        with rose.receive(tensors, publisher.address, token=publisher.token) as receiver:
            while receiver.version != publisher.version:
                receiver.wait(LONG_S)
                receiver.commit()
        assert np.array_equal(tensors["x"], weights["x"])


def lose_receiver(draw: Random, publisher: rose.WeightPublisher, weights: dict) -> None:
    with program(RECEIVER, ELEMENTS, publisher.address, publisher.token) as receiver:
        assert receiver.stdout.readline() == "committed\n"
        end_s = time.monotonic() + draw.uniform(0, 0.2)
        while time.monotonic() < end_s:
            weights["x"][draw.randrange(ELEMENTS) :: 97] += 1
            publisher.update(weights)
