"""A training loop publishes its weights, and an engine follows them while it generates.

Here both sides are in one process and communicate over the loopback. `rose.receive` in another
process gets the same weights, and so does `rose receive --to FOLDER`, for a checkpoint on disk.
Run it by `python examples/weights.py`.
"""

import torch

import rose


def main() -> None:
    """Train for some steps; after each step wait until the engine has its weights."""
    trained, engine = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)

    with (
        rose.publish(trained) as publisher,
        rose.receive(engine, publisher.address, token=publisher.token) as receiver,
    ):
        for _ in range(5):
            loss = trained(torch.randn(8, 64)).square().mean()
            loss.backward()
            optimizer.step()
            n = publisher.update(trained)
            while receiver.version != n:
                receiver.wait(timeout_s=30)
                receiver.commit()  # between two steps of the engine
            print(f"version {n}: loss {loss.item():.2f}")
    print("equal bit for bit:", torch.equal(trained.weight, engine.weight))


if __name__ == "__main__":
    main()
