"""A trainer under FSDP2 publishes to an engine with fused weights; both have two ranks.

Each rank is a process. Run it by `python examples/shards.py`.
"""

import secrets
import socket
from collections.abc import Iterable
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing import start_processes

import rose

H, ROWS, RANKS, STEPS, WAIT_S = 64, 256, 2, 3, 120.0


class Layer(nn.Module):
    """A layer of the trainer."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, nn.Linear(H, H, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix, without attention."""
        return x + self.o_proj(torch.relu(self.q_proj(x) * self.k_proj(x) + self.v_proj(x)))


class Engine(nn.ParameterDict):
    """A rank of the engine: its parts of Q, K and V are one parameter, as in vLLM."""

    def __init__(self, rank: int) -> None:
        rows = {"embed": ROWS, "head": ROWS, "qkv": 3 * H}
        super().__init__({name: torch.zeros(count // RANKS, H) for name, count in rows.items()})
        self["o_proj"] = torch.zeros(H, H // RANKS)
        self.rank = rank

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Cut and fuse tensors of a checkpoint; rose traces this, and never runs it."""
        for name, loaded in weights:
            kind = {"0": "embed", "2": "head"}.get(name[0]) or name.split(".")[1]
            mine = loaded.chunk(RANKS, int(kind == "o_proj"))[self.rank]
            fused, at = ("qkv", "qkv".index(kind[0])) if kind[0] in "qkv" else (kind, 0)
            self[fused].data[at * H // RANKS :][: len(mine)].copy_(mine)


def train(rank: int, place: tuple[str, str, str], barrier: Any) -> None:
    """Train on one rank of the trainer, and publish each step."""
    address, token, store = place
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(ROWS, H), Layer(), nn.Linear(H, ROWS, bias=False))
    model = fully_shard(model, mesh=dist.init_device_mesh("cpu", (RANKS,)))

    shards = rose.Shards(rank, RANKS)
    with rose.publish(model, shards=shards, listen=address, token=token) as publisher:
        for _ in range(STEPS):
            barrier.wait(WAIT_S)  # the engine has the last version
            ids = torch.randint(0, ROWS, (32,))
            nn.functional.cross_entropy(model(ids), (ids + 1) % ROWS).backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            print(f"rank {rank} of the trainer: version {publisher.update(model)}")
        barrier.wait(WAIT_S)


def follow(rank: int, place: tuple[str, str, str], barrier: Any) -> None:
    """Follow the trainer on one rank of the engine."""
    model, (address, token, _) = Engine(rank), place
    shards = rose.Shards(rank, RANKS, replica="engine", load_weights=model.load_weights)

    with rose.receive(model, address, shards=shards, token=token) as receiver:
        for _ in range(1 + STEPS):
            receiver.wait(WAIT_S)
            held = f"version {receiver.commit()}, digest {receiver.digest}"
            print(f"rank {rank} of the engine: {held}")
            barrier.wait(WAIT_S)


def main() -> None:
    """Run all ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with TemporaryDirectory() as folder:
        place = address, secrets.token_hex(32), f"{folder}/store"
        ranks = place, get_context("fork").Barrier(2 * RANKS)
        trainer = start_processes(train, ranks, RANKS, join=False, start_method="fork")
        start_processes(follow, ranks, RANKS, start_method="fork")
        trainer.join(WAIT_S)


if __name__ == "__main__":
    main()
