"""The weights of a TRL trainer reach workers by `rose.publish` while the service is paused."""

import asyncio
import threading
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest

import rose
from rose.adapters.listening import listening
from rose.adapters.trl import TrlWeightTransfer, trl_weights
from tests.adapters.rig import BODY, rigged, truth

WAIT_S = 30.0


class Parameter(np.ndarray):
    """An array with the methods of a tensor that the weights of a trainer need."""

    def detach(self) -> "Parameter":
        return self

    def bfloat16(self) -> "Parameter":
        return self.astype(ml_dtypes.bfloat16)

    def cpu(self) -> np.ndarray:
        return np.asarray(self)


class Model:
    """A model with one parameter."""

    def __init__(self, value: float) -> None:
        self.value = value

    def named_parameters(self):
        yield "w", np.full(1000, self.value, np.float32).view(Parameter)


@contextmanager
def following(worker, publisher):
    """Let a worker follow a publisher, as an engine does between two steps."""
    held = {"w": np.zeros(1000, ml_dtypes.bfloat16)}
    is_over = threading.Event()

    def follow() -> None:
        with rose.receive(held, publisher.address, token=publisher.token) as receiver:
            while not is_over.wait(0.005):
                if (version := receiver.commit()) is not None:
                    worker.commit(version)

    thread = threading.Thread(target=follow)
    thread.start()
    yield held
    is_over.set()
    thread.join(WAIT_S)


async def test_weights_reach_workers_while_the_service_is_paused() -> None:
    async with rigged(1, step_s=0.002, token="t") as rig, listening(rig.app) as url:
        with (
            rose.publish(trl_weights(Model(1.0))) as publisher,
            following(rig.workers[0], publisher) as held,
        ):
            transfer = TrlWeightTransfer(url, publisher, token="t", wait_s=WAIT_S)
            await asyncio.to_thread(transfer.init_weight_transfer)
            await asyncio.to_thread(transfer.pause)
            rig.client.headers["authorization"] = "Bearer t"
            answer = rig.later("/v1/completions", BODY)
            await asyncio.to_thread(transfer.send_weights, Model(2.0).named_parameters())
            assert held["w"].tolist() == [2.0] * 1000
            assert rig.service.versions() == {2: 1}
            assert rig.service.published == 2
            assert not answer.done()
            await asyncio.to_thread(transfer.resume)
            (choice,) = (await answer).json()["choices"]
            assert choice["token_ids"] == truth(version=2)
            transfer.destroy()


async def test_one_worker_with_the_weights_is_enough() -> None:
    async with rigged(2, step_s=0.002) as rig, listening(rig.app) as url:
        with (
            rose.publish(trl_weights(Model(1.0))) as publisher,
            following(rig.workers[0], publisher),
        ):
            transfer = TrlWeightTransfer(url, publisher, wait_s=WAIT_S)
            await asyncio.to_thread(transfer.send_weights, Model(2.0).named_parameters())
            assert rig.service.versions() == {0: 1, 2: 1}


async def test_a_transfer_that_cannot_end_says_why_and_leaves_no_pause() -> None:
    async with rigged(1, step_s=0.002) as rig, listening(rig.app) as url:
        with rose.publish(trl_weights(Model(1.0))) as publisher:
            transfer = TrlWeightTransfer(url, publisher, wait_s=0.05)
            await asyncio.to_thread(transfer.pause)
            with pytest.raises(
                rose.DeadlineExceeded,
                match=r"committed version 2 .*\(versions of workers: 0\) within 0\.05 s",
            ):
                await asyncio.to_thread(transfer.send_weights, Model(2.0).named_parameters())
            assert not rig.service.is_paused
            await asyncio.to_thread(transfer.pause)
            with pytest.raises(rose.InvalidArgument, match="must be those of the version before"):
                await asyncio.to_thread(transfer.send_weights, iter([("w", other_shape())]))
            assert not rig.service.is_paused
            without = TrlWeightTransfer(url, None)
            with pytest.raises(rose.InvalidArgument, match="must have a publisher"):
                await asyncio.to_thread(without.send_weights, Model(2.0).named_parameters())


def other_shape() -> Parameter:
    return np.zeros(7, np.float32).view(Parameter)


@pytest.mark.peer
def test_it_has_all_methods_of_the_protocol() -> None:
    pytest.importorskip("trl", minversion="1.16")
    from trl.experimental.async_grpo.async_grpo_trainer import WeightTransferProtocol

    wanted = {name for name in vars(WeightTransferProtocol) if not name.startswith("_")}
    assert wanted
    assert wanted <= set(dir(TrlWeightTransfer))
