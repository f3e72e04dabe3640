"""What four processes of gloo hold of some DTensors: run as a program that forks them."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from rose.engines.shards.dtensors import shard_map_of_dtensors
from rose.engines.shards.ranks import TrainerRank
from rose.transfer.sharded.shards import Shards

WORLD = 4
SHAPES = {"even": (8, 4), "uneven": (7, 5), "short": (3, 2), "three": (5, 3, 4), "tiny": (1, 1)}
PLACEMENTS = {
    "rr": (Replicate(), Replicate()),
    "s0r": (Shard(0), Replicate()),
    "rs1": (Replicate(), Shard(1)),
    "s0s1": (Shard(0), Shard(1)),
    "s0s0": (Shard(0), Shard(0)),
    "s1s0": (Shard(1), Shard(0)),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 14, bias=True)
        self.down = nn.Linear(14, 6, bias=False)
        self.embed = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight


def tensors(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    """Return DTensors whose elements are their own numbers in the whole tensor."""
    spread = {}
    for kind, placements in PLACEMENTS.items():
        for name, shape in SHAPES.items():
            whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)
            spread[f"{name}.{kind}"] = distribute_tensor(whole, mesh, placements)
    model = Block()
    for one in model.parameters():
        one.data = torch.arange(one.numel(), dtype=torch.float32).view(one.shape)
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    spread |= dict(model.named_parameters(remove_duplicate=False))
    spread["plain"] = torch.arange(3.0)
    return spread


def main(rank: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    named = tensors(mesh)
    shards = shard_map_of_dtensors(named, rank=rank, mesh=mesh)
    own = TrainerRank(named, Shards(rank, WORLD)).shards
    assert own.tensors.keys() == shards.tensors.keys()
    assert set(own.pieces) == {piece for piece in shards.pieces if piece.rank == rank}
    found = {}
    for name, one in named.items():
        if name == "plain":
            continue
        shape, offset = compute_local_shape_and_global_offset(
            one.shape, one.device_mesh, one.placements
        )
        local = one.to_local().detach()
        found[name] = {
            "shape": list(shape),
            "offset": list(offset),
            "local": local.flatten().tolist(),
            "placements": [str(each) for each in one.placements],
        }
    pieces = [
        [one.tensor, one.rank, one.region.offset, one.region.shape, *_of(one.view)]
        for one in shards.pieces
    ]
    (folder / f"{rank}.json").write_text(json.dumps({"tensors": found, "pieces": pieces}))
    dist.barrier()
    dist.destroy_process_group()


def _of(view) -> list:
    return [view.parameter, view.offset, view.strides]


def fork(folder: Path) -> int:
    """Run all ranks, which import torch once, and return how many failed."""
    ranks = []
    for rank in range(WORLD):
        if (child := os.fork()) == 0:
            main(rank, folder)
            os._exit(0)
        ranks.append(child)
    failed = 0
    while ranks:
        child, status = os.wait()
        ranks.remove(child)
        if status:  # the others would wait for it
            failed += 1
            for one in ranks:
                os.kill(one, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    sys.exit(fork(Path(sys.argv[1])))
