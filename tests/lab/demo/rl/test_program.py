"""The trainer as a process: it is fed, killed and started again, and no number is used twice."""

import os
import signal
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rose.errors import InvalidArgument, Unavailable
from rose.transfer.manifest import Version
from rose.transfer.tiles import Tiles
from rose.transfer.wire.remote import RemoteSource
from rose_lab.demo.rl.trainer import PolicyTrainer
from rose_lab.demo.rl.training import PublishedWeights
from tests.lab.demo.rl.micro import micro_model, trajectory
from tests.lab.demo.rl.trainer_process import TOKEN, TrainerProcess, options
from tests.transfer.worker import Worker
from tests.waiting import wait_for
from tests.warm import Start


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    micro_model().save_pretrained(path)
    return path


@pytest.fixture
def one_thread():
    """Sums have the order they have in the program."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def group(number: int, version: int):
    """Return four trajectories with the same task; numbers follow from the group's."""
    return [
        trajectory(
            4 * number + place, [70 + place, 1], reward=place / 4, group=number, version=version
        )
        for place in range(4)
    ]


@pytest.mark.timeout(600)
def test_a_killed_trainer_restarts_with_a_higher_incarnation(
    warm: Start, model: Path, tmp_path: Path, one_thread
) -> None:
    """Numbers to learn: after 4 versions, one checkpoint (before version 3) has 3 groups in it."""
    asked = options(model, tmp_path)
    twin = PolicyTrainer(micro_model(), asked.settings)
    bits = twin.bits().copy()
    first = TrainerProcess(asked)
    assert (first.ready.incarnation, first.ready.version) == (1, 0)
    address = first.ready.weights_address
    source = RemoteSource(address, TOKEN)
    # It begins with the weights everybody has: no byte is sent for the first version.
    begun = Version("test", 1, 0)
    with closing(source), Worker(source, bits, tiles=Tiles.of(len(bits)), held=begun) as worker:
        for n in range(4):
            sent = group(n, n)
            assert len(first.submit(sent).submitted.accepted) == 4
            assert len(first.submit(sent).submitted.known) == 4
            twin.step(sent, published=n)
            worker.follow(Version("test", 1, n + 1))
            assert np.array_equal(worker.bits, twin.bits())
        wait_for(lambda: first.submit([]).status.versions == 4)
        status = first.submit([]).status
        assert (status.steps, status.consumed, status.durable) == (4, 16, 12)
        assert status.staleness == {0: 16}
        assert 0 < status.bytes_sent == worker.receiver.stats.received_bytes
        # The answer for the last version may still be on its way.
        assert status.dense_bytes in {3 * 2 * len(bits), 4 * 2 * len(bits)}
        assert worker.receiver.stats.snapshots == 0
        assert first.kill() == -signal.SIGKILL
        with pytest.raises(Unavailable):
            first.submit(group(9, version=0))

        second = TrainerProcess(replace(asked, weights_address=address), popen=warm)
        assert second.ready.weights_address == address
        # 4 was used, and would have been the last before a checkpoint.
        assert (second.ready.incarnation, second.ready.version) == (2, 5)
        before = second.submit([]).status
        assert (before.steps, before.consumed, before.durable) == (3, 12, 12)
        answer = second.submit([one for n in range(4) for one in group(n, n)]).submitted
        # What the checkpoint has is not learned twice; what was learned after it was lost with it.
        assert answer.known == tuple(range(12))
        assert answer.accepted == tuple(range(12, 16))
        # The same lesson again has the same weights: the moments came back too.
        worker.follow(Version("test", 2, 6))
        assert np.array_equal(worker.bits, twin.bits())
        os.kill(second.pid, signal.SIGTERM)
        assert second.wait() == 0

    third = TrainerProcess(replace(asked, first_version=40), popen=warm)
    assert (third.ready.incarnation, third.ready.version) == (3, 40)
    assert third.submit([]).status.durable == 16  # SIGTERM saved
    assert third.close() == 0  # as does the end of its input


def test_a_trainer_that_cannot_begin_says_why_and_ends(
    warm: Start, model: Path, tmp_path: Path, capfd
) -> None:
    (tmp_path / "checkpoint").write_bytes(b"something else")
    with pytest.raises(Unavailable, match="ended before it was ready"):
        TrainerProcess(options(model, tmp_path), popen=warm)
    assert "is not a checkpoint of rose" in capfd.readouterr().err
    assert (tmp_path / "checkpoint").read_bytes() == b"something else"


def test_published_weights_count_versions_and_close() -> None:
    bits = np.arange(1000, dtype=np.uint16)
    weights = PublishedWeights(
        bits, version=Version("run", 1, 7), address="127.0.0.1:0", token="ab" * 32
    )
    try:
        assert weights.version == 7
        assert weights.traffic() == (0, 0)
        weights.publish(bits + 1)
        assert weights.version == 8
        with pytest.raises(InvalidArgument):
            weights.publish(bits[1:])
        assert weights.version == 8
    finally:
        weights.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("rose-weights")]
    with pytest.raises(InvalidArgument, match="loopback"):
        PublishedWeights(bits, version=Version("run", 1, 7), address="0.0.0.0:0", token=None)
