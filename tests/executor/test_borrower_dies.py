"""A borrower's process is killed at any moment; serving has its memory, and the next attaches."""

import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

from rose.executor.harm import Readmission
from tests.executor.conftest import SERVING_KV, SLAB, SLABS
from tests.executor.tenant_program import Tenant
from tests.executor.test_attached import BLOCKS_PER_SLAB, SETTINGS, RemoteRig
from tests.forks import FORKS
from tests.waiting import LONG_S, wait_for

ALL_BLOCKS = SERVING_KV.blocks_per_slab(SLAB) * SLABS


def borrow(path: str, seed: int, news: Connection) -> None:
    """Attach, borrow, step and give back, until somebody kills this process."""
    draw = Random(seed)
    tenant = Tenant(path, **SETTINGS)
    news.send("attached")
    while True:
        tenant.borrow(draw.randint(1, 2 * BLOCKS_PER_SLAB))
        if draw.random() < 0.5 and tenant.begin_step():
            news.send("in a step")
            tenant.go_on()
            tenant.end_step()  # It ends when serving wants a slab that the step pins.
        if draw.random() < 0.5:
            tenant.give()


@pytest.fixture(params=("shared", "mapped"))
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RemoteRig]:
    made = RemoteRig(tmp_path, isolation=request.param, regrow_after_ms=0.0)
    yield made
    made.close()


def serve(rig: RemoteRig, draw: Random, seconds: float) -> None:
    """Step, and take memory now and then, so that a borrower also dies while slabs leave it."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        with rig.serving.step():
            pass
        if draw.random() < 0.1:
            rig.serving.ensure(draw.randint(1, ALL_BLOCKS))
        rig.serving.settle()


def kill_one(rig: RemoteRig, draw: Random) -> None:
    news, writer = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=borrow, args=(rig.path, draw.getrandbits(32), writer))
    process.start()
    writer.close()
    try:
        # While it attaches, at any time after, or surely in a step.
        for _ in range(draw.randint(0, 2)):
            assert news.poll(LONG_S), "the next borrower does not attach, or does not step"
            news.recv()
        serve(rig, draw, draw.uniform(0, 0.02))
    finally:
        process.kill()
        serve(rig, draw, 0.0)
        process.join()
        news.close()
    wait_for(lambda: rig.listener.tenancy is None and rig.slabs() == (0, 0))
    # Each death counts as the first, so the pauses of many deaths do not add up.
    rig.device.lender.readmission = Readmission(rig.device.lender.clock)
    wait_for(lambda: not rig.device.gate.is_running())
    assert rig.serving.ensure(ALL_BLOCKS)
    rig.serving.settle()
    rig.device.arbiter.check_invariants()
    assert rig.device.gave_back is None


def kill(rig: RemoteRig, seed: int, deaths: int, tried: Callable[..., None]) -> None:
    draw = Random(seed)
    for _ in range(deaths):
        tried("borrower deaths")
        kill_one(rig, draw)


def test_serving_has_its_memory_whenever_a_borrower_dies(rig: RemoteRig, tried) -> None:
    kill(rig, 0, 6, tried)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_serving_has_its_memory_after_a_thousand_deaths(rig: RemoteRig, seed: int, tried) -> None:
    kill(rig, seed, 100, tried)
