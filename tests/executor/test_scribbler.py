"""A borrower that writes garbage into every page that it shares with serving's process."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rose.memory import Isolation
from tests.executor.conftest import SERVING_KV, SLAB, SLABS
from tests.executor.test_attached import BLOCKS_PER_SLAB, ROOT, RemoteRig
from tests.waiting import LONG_S, wait_for

PARK_MS = 100.0
BUDGET_MS = 300.0
REVOKE_MS = 300.0
ISOLATIONS: tuple[Isolation, ...] = ("shared", "mapped")


class ScribbledRig(RemoteRig):
    """A device whose waits are short, and its borrowers that write garbage."""

    def __init__(self, folder: Path, isolation: Isolation) -> None:
        super().__init__(
            folder,
            isolation=isolation,
            park_wait_ms=PARK_MS,
            wait_budget_ms=BUDGET_MS,
            revoke_ms=REVOKE_MS,
            regrow_after_ms=0.0,
        )

    @contextmanager
    def scribbler(self, seed: int, *, write_s: float) -> Iterator[subprocess.Popen]:
        wait_for(lambda: self.listener.tenancy is None)
        program = [sys.executable, "-m", "tests.executor.scribbler_program"]
        process = subprocess.Popen(
            [*program, self.path, str(seed), str(write_s)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
            process.communicate()

    def serve_once(self) -> None:
        """Serve a step without a batch, so that the model learns nothing from its length of 0."""
        with self.serving.step():
            pass
        self.serving.ensure(SERVING_KV.blocks_per_slab(SLAB) * SLABS // 2)
        self.serving.settle()

    def serve_beside(self, process: subprocess.Popen, *, serve_s: float) -> None:
        """Serve until the borrower is dead; its waits are within the budget."""
        budget_ms = BUDGET_MS - self.device.reading().waited_ms
        self.serving.blocked_ms.clear()
        end_s = time.monotonic() + serve_s
        while process.poll() is None and time.monotonic() < end_s:
            self.serve_once()
        for _ in range(20):  # Serving ignores the page of a dead borrower.
            self.serve_once()
        assert process.poll() is not None, "serving has not ended a borrower that never parks"
        # Without a certificate, all of a wait counts. With one, its few milliseconds do not.
        assert sum(one for one in self.serving.blocked_ms if one > PARK_MS / 2) <= budget_ms + 20
        assert self.device.gave_back is None

    def check_next_borrower(self) -> None:
        child = self.attach()
        wait_for(lambda: child.do("borrow", BLOCKS_PER_SLAB))
        assert child.do("begin_step")
        child.end()


@pytest.fixture(params=ISOLATIONS)
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ScribbledRig]:
    made = ScribbledRig(tmp_path, request.param)
    yield made
    made.close()


def test_scribbler_costs_at_most_the_wait_budget_and_the_next_borrower_attaches(
    rig: ScribbledRig,
) -> None:
    with rig.scribbler(1, write_s=LONG_S) as process:
        rig.serve_beside(process, serve_s=20.0)
    rig.check_next_borrower()


def test_next_borrower_gets_a_gate_without_the_garbage_of_the_last(rig: ScribbledRig) -> None:
    with rig.scribbler(2, write_s=0.2) as process:
        process.wait(LONG_S)
    rig.check_next_borrower()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scribblers_for_half_a_minute_share_one_wait_budget(
    rig: ScribbledRig, tried: Callable[..., None]
) -> None:
    end_s = time.monotonic() + 30.0
    seed = 100
    while time.monotonic() < end_s:
        seed += 1
        tried("shared-page scribblers")
        with rig.scribbler(seed, write_s=LONG_S) as process:
            rig.serve_beside(process, serve_s=30.0)
    rig.check_next_borrower()
