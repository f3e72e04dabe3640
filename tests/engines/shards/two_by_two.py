"""A trainer under FSDP2 and an engine with fused weights, small; and their ranks as processes."""

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

H, F, KV, V = 64, 96, 32, 130
BF16 = torch.bfloat16
FUSED = {"q_proj": ("qkv", 0), "k_proj": ("qkv", H), "v_proj": ("qkv", H + KV)}
FUSED |= {"gate_proj": ("gate_up", 0), "up_proj": ("gate_up", F)}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"q": (H, H), "k": (H, KV), "v": (H, KV), "o": (H, H)}
        sizes |= {"gate": (H, F), "up": (H, F), "down": (F, H)}
        for name, (ins, outs) in sizes.items():
            self.add_module(f"{name}_proj", nn.Linear(ins, outs, bias=False))
        self.norm = nn.LayerNorm(H, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kv = torch.cat([self.k_proj(x), self.v_proj(x)], -1)
        x = x + self.o_proj(self.q_proj(x) + kv)
        return x + self.down_proj(torch.relu(self.gate_proj(self.norm(x))) * self.up_proj(x))


def trainer_model() -> nn.Module:
    embedding, head = nn.Embedding(V, H), nn.Linear(H, V, bias=False)
    return nn.Sequential(embedding, Block(), Block(), head).to(BF16)


def sharded(ranks: int, *, seed: int) -> nn.Module:
    """Return the trainer's model under FSDP2, in the present process group."""
    torch.manual_seed(seed)
    model = trainer_model()
    mesh = dist.init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    for part in model:
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def step(model: nn.Module) -> None:
    """Train one step."""
    ids = torch.randint(0, V, (16,))
    nn.functional.cross_entropy(model(ids).float(), (ids + 1) % V).backward()
    torch.optim.SGD(model.parameters(), lr=3e-2).step()
    model.zero_grad()


class FusedEngine(nn.Module):
    """One rank, as in vLLM: rows of qkv, gate_up, embedding and head; columns of o and down.

    With `converts` its norms are float32, so that the loader computes them.
    """

    def __init__(self, rank: int, ranks: int, *, converts: bool = False) -> None:
        super().__init__()
        self.rank, self.ranks = rank, ranks
        shapes = {"0": (V // ranks, H), "3": (V // ranks, H)}
        for at in "12":
            shapes |= {f"qkv{at}": ((H + 2 * KV) // ranks, H), f"o{at}": (H, H // ranks)}
            shapes |= {f"gate_up{at}": (2 * F // ranks, H), f"down{at}": (H, F // ranks)}
            shapes |= {f"norm{at}": (H,)}
        for name, shape in shapes.items():
            dtype = torch.float32 if converts and name.startswith("norm") else BF16
            self.register_parameter(f"p{name}", nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, loaded in weights:
            at, kind = name.split(".")[0], name.split(".")[1]
            if kind == "norm":
                self.get_parameter(f"pnorm{at}").data.copy_(loaded)
                continue
            dim = int(kind in {"o_proj", "down_proj"})
            mine = loaded.chunk(self.ranks, dim)[self.rank]
            fused, first = FUSED.get(kind, (kind.removesuffix("_proj"), 0))
            parameter = self.get_parameter(f"p{at}" if kind == "weight" else f"p{fused}{at}")
            first //= self.ranks
            parameter.data[first : first + len(mine)].copy_(mine)


def is_loaded(engine: FusedEngine, whole: dict[str, torch.Tensor], *, converts: bool) -> bool:
    """Return whether an engine holds what its loader makes of whole tensors."""
    fresh = FusedEngine(engine.rank, engine.ranks, converts=converts)
    fresh.load_weights(whole.items())
    pairs = zip(engine.parameters(), fresh.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def whole_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return whole tensors, gathered on all ranks."""
    return {name: one.full_tensor().clone() for name, one in model.state_dict().items()}


def joined_group(folder: Path, rank: int, ranks: int) -> None:
    store = dist.FileStore(str(folder), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
