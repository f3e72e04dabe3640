"""What the trainer's process learns arrives at a receiver, bit for bit, over the death of one."""

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rose.demo.rl.settings import TrainerSettings
from rose.demo.rl.trainer import PolicyTrainer
from rose.demo.rl.training import PublishedWeights
from rose.errors import InvalidArgument
from rose.transfer.tiles import Tiles
from rose.transfer.version import Version
from rose.transfer.wire.remote import RemoteSource
from tests.demo.rl.micro import micro_model, trajectory
from tests.demo.rl.trainer_process import TOKEN, TrainerProcess, options
from tests.transfer.worker import Worker
from tests.warm import Start


@pytest.fixture
def one_thread():
    """Sums have the order they have in the program."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def group(number: int, version: int):
    return [
        trajectory(
            2 * number + place, [70 + place, 1], reward=float(place), group=number, version=version
        )
        for place in range(2)
    ]


@pytest.mark.timeout(600)
def test_a_receiver_has_what_was_learned_before_and_after_a_death(
    tmp_path: Path, one_thread, warm: Start
) -> None:
    micro_model().save_pretrained(tmp_path / "model")
    settings = TrainerSettings(lr=1e-3, batch=2, publish_every_s=0.0, checkpoint_every=1)
    asked = options(tmp_path / "model", tmp_path, group_size=2, settings=settings)
    twin = PolicyTrainer(micro_model(), TrainerSettings(lr=1e-3))
    bits = twin.bits().copy()
    first = TrainerProcess(asked)
    address = first.ready.weights_address
    source = RemoteSource(address, TOKEN)
    # It begins with the weights everybody has: no byte is sent for the first version.
    begun = Version("test", 1, 0)
    with closing(source), Worker(source, bits, tiles=Tiles.of(len(bits)), held=begun) as worker:
        for n in range(3):
            first.submit(group(n, n))
            twin.step(group(n, n), published=n)
            worker.follow(Version("test", 1, n + 1))
            assert np.array_equal(worker.bits, twin.bits())
        status = first.submit([]).status
        assert 0 < status.bytes_sent == worker.receiver.stats.received_bytes
        # The answer for the last version may still be on its way.
        assert status.dense_bytes in {2 * 2 * len(bits), 3 * 2 * len(bits)}
        assert worker.receiver.stats.seeds == 0
        first.kill()

        with TrainerProcess(replace(asked, weights_address=address), popen=warm) as second:
            assert second.ready.weights_address == address
            assert (second.ready.incarnation, second.ready.version) == (2, 4)
            twin.step(group(3, 4), published=4)
            assert second.submit(group(3, 4)).submitted.accepted == (6, 7)
            worker.follow(Version("test", 2, 5))
            assert np.array_equal(worker.bits, twin.bits())


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
