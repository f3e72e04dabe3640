"""A training loop publishes its weights, and an engine follows them while it generates.

Here both sides are in one process and communicate over the loopback. `rose.receive` in another
process gets the same weights, and so does `rose receive --to FOLDER`, for a checkpoint on disk.
Run it by `python examples/weights.py`.
"""

import torch
from torch import nn

import rose

STEPS = 5
WAIT_S = 30.0


def model(seed: int) -> nn.Module:
    """Make a small model in bf16."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256)).to(torch.bfloat16)


def train(trained: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Train one step to predict the next number, and return the loss."""
    ids = torch.randint(0, 255, (64,))
    loss = nn.functional.cross_entropy(trained(ids).float(), ids + 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    """Train for some steps; after each step wait until the engine has its weights."""
    trained, rolled_out = model(seed=0), model(seed=1)
    optimizer = torch.optim.SGD(trained.parameters(), lr=1.0)
    with (
        rose.publish(trained.state_dict()) as publisher,
        rose.receive(rolled_out.state_dict(), publisher.address, token=publisher.token) as receiver,
    ):
        for _ in range(STEPS):
            loss = train(trained, optimizer)
            n = publisher.update(trained.state_dict())
            while receiver.version != n:
                receiver.wait(WAIT_S)
                receiver.commit()  # between two steps of the engine
            print(f"version {n}: loss {loss:.2f}")
    pairs = zip(trained.parameters(), rolled_out.parameters(), strict=True)
    print("equal bit for bit:", all(torch.equal(one, other) for one, other in pairs))


if __name__ == "__main__":
    main()
