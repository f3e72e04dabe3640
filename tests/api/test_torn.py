"""An update during which another thread writes the tensors: receivers follow it and the next."""

from threading import Event, Thread

import torch

import rose

WAIT_S = 30.0


def test_receivers_follow_an_update_that_was_torn() -> None:
    weights = {"w": torch.randn(1 << 22), "b": torch.randn(999)}
    over = Event()

    def train() -> None:
        while not over.is_set():
            for one in weights.values():
                one.mul_(1.01)

    with rose.publish(weights) as publisher:
        thread = Thread(target=train)
        thread.start()
        torn = [publisher.update(weights) for _ in range(5)]
        over.set()
        thread.join()
        assert torn == [2, 3, 4, 5, 6]
        held = {name: torch.zeros_like(one) for name, one in weights.items()}
        with rose.receive(held, publisher.address, token=publisher.token) as receiver:
            receiver.wait(WAIT_S)
            assert receiver.commit() == 6
            last = publisher.update(weights)
            receiver.wait(WAIT_S)
            assert receiver.commit() == last
    assert all(torch.equal(held[name], one) for name, one in weights.items())
