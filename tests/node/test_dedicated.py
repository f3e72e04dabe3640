"""The program of a dedicated worker, as it is: a real engine, real weights, a real publisher."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from rose.scheduler.worker import GrantChanged, TurnEnd, VersionCommitted
from tests.node.rig import Program as Started
from tests.node.rig import Scheduler, request

pytest.importorskip("rose.engines.transformers.worker", reason="needs transformers")
from bench.row_publisher import RowPublisher
from rose.engines.transformers import load_model
from rose.engines.transformers.live_weights import LiveWeights
from rose.transfer.publishing.log import VersionLog
from rose.transfer.wire.server import serve
from tests.waiting import wait_for

# Half a minute; `tests/lab/demo/rl/test_rl_loop.py` starts the same program.
pytestmark = pytest.mark.slow

KV_TOKENS = 2048
ARGUMENTS = (
    f"--model micro-policy --seed 3 --number 1 --seats 4 --kv-tokens {KV_TOKENS} --version 5"
)


class Trainer:
    """Publishes; `restart` is another incarnation at another address."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.bits = LiveWeights(load_model("micro-policy", seed=3)).row.copy()
        self._incarnation = 0
        self._random = np.random.default_rng(0)
        self.restart(first_version=5)

    def restart(self, *, first_version: int) -> None:
        self._incarnation += 1
        log = VersionLog()
        self._publisher = RowPublisher(self.bits, "run", self._incarnation, first_version, log)
        self.server = serve(log)
        self._stack.callback(self.server.close)

    def publish(self) -> int:
        """Change one bit of mantissa in one weight of a hundred; return the version."""
        at = self._random.choice(len(self.bits), len(self.bits) // 100, replace=False)
        self.bits[at] ^= 1
        return self._publisher.publish(self.bits).version.n


@pytest.fixture
def stack(monkeypatch, repo) -> Iterator[ExitStack]:
    monkeypatch.chdir(repo)
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def trainer(stack) -> Trainer:
    return Trainer(stack)


class Program:
    """One run of the program, and a scheduler that is connected to it."""

    def __init__(self, stack: ExitStack, trainer: Trainer, node) -> None:
        command = [sys.executable, "-m", "rose.node.worker", *ARGUMENTS.split()]
        command += ["--weights", trainer.server.address]
        self.child = Started(command, token=trainer.server.token)
        self.ready, self.ends = self.child.ready, self.child.ends
        stack.callback(self.child.supervisor.stop)
        wait_for(lambda: self.ready or self.ends, timeout_s=90.0)
        assert not self.ends, self.ends
        self.scheduler = Scheduler()
        address, token = self.ready[0]["address"], self.ready[0]["token"]
        self.worker = node.connect(address, self.scheduler, token=token)

    def is_at(self, version: int) -> bool:
        return any(
            isinstance(event, VersionCommitted) and event.is_match and event.version == version
            for event in list(self.scheduler.events)
        )

    def versions(self, trajectory: int) -> set[int]:
        """Run a turn; return what gave its tokens."""
        asked = request(trajectory, tokens=8)
        self.worker.start_turn(asked)
        wait_for(lambda: self.scheduler.ends(trajectory))
        assert self.scheduler.ends(trajectory) == [TurnEnd.FINISHED]
        outputs = self.scheduler.outputs(trajectory)
        assert len(self.scheduler.tokens(trajectory)) == 8
        return {version for output in outputs for version in output.versions}


def test_a_dedicated_worker_follows_its_trainer_through_every_death(stack, trainer, node) -> None:
    first = Program(stack, trainer, node)
    joined = first.ready[0]
    assert (joined["worker"], joined["seats"], joined["version"]) == (1, 4, 5)
    assert joined["prefill_tokens_per_s"] > 0 < joined["decode_step_ms"]
    wait_for(lambda: first.scheduler.events)
    assert first.scheduler.events[0] == GrantChanged(1, 1, KV_TOKENS, ttl_ms=0)
    assert first.versions(1) == {5}

    version = trainer.publish()
    wait_for(lambda: first.is_at(version))
    assert first.versions(2) == {version}

    # The worker is killed: the next one starts from the old weights and catches up.
    first.child.supervisor.kill()
    wait_for(first.scheduler.losses)
    second = Program(stack, trainer, node)
    version = trainer.publish()
    wait_for(lambda: second.is_at(version))
    assert second.versions(3) == {version}

    # The trainer is killed: the next one is another incarnation, elsewhere.
    trainer.server.close()
    trainer.restart(first_version=version + 10)
    address, token = trainer.server.address, trainer.server.token
    second.child.say({"weights": address, "token": token})
    version = trainer.publish()
    wait_for(lambda: second.is_at(version))
    assert second.versions(4) == {version}
    assert "it ended with 0" in second.child.end()
