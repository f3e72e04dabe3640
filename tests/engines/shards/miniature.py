"""A model in the manner of vLLM: fused parameters, slices of ranks, loaders hung on parameters."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from rose.transfer.plan import TensorSpec


@dataclass(frozen=True)
class Sizes:
    hidden: int = 12
    heads: int = 4
    kv_heads: int = 2
    head: int = 6
    ffn: int = 8
    experts: int = 3
    vocabulary: int = 11
    latent: int = 5  # of the compressed keys and values
    rope: int = 2

    def checkpoint(self) -> list[TensorSpec]:
        h, wide, narrow = self.hidden, self.heads * self.head, self.kv_heads * self.head
        shapes = {
            "embed.weight": (self.vocabulary, h),
            "attn.q_proj.weight": (wide, h),
            "attn.k_proj.weight": (narrow, h),
            "attn.v_proj.weight": (narrow, h),
            "attn.q_proj.bias": (wide,),
            "attn.k_proj.bias": (narrow,),
            "attn.v_proj.bias": (narrow,),
            "attn.o_proj.weight": (h, wide),
            "mlp.gate_proj.weight": (self.ffn, h),
            "mlp.up_proj.weight": (self.ffn, h),
            "mlp.down_proj.weight": (h, self.ffn),
            "mla.q_a_proj.weight": (7, h),
            "mla.kv_a_proj.weight": (self.latent + self.rope, h),
            "mla.kv_b_proj.weight": (self.heads * 2 * self.head, self.latent),
            "norm.weight": (h,),
            "stack.gate_up_proj": (self.experts, h, 2 * self.ffn),
        }
        for expert in range(self.experts):
            shapes[f"moe.experts.{expert}.gate_proj.weight"] = (self.ffn, h)
            shapes[f"moe.experts.{expert}.up_proj.weight"] = (self.ffn, h)
            shapes[f"moe.experts.{expert}.down_proj.weight"] = (h, self.ffn)
        return [TensorSpec(name, shape, "bfloat16") for name, shape in shapes.items()]


def room(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape).bfloat16(), requires_grad=False)


class Rank:
    """Where a rank's slice of a dimension is."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def slice(self, loaded: torch.Tensor, dim: int) -> torch.Tensor:
        each = loaded.shape[dim] // self.size
        return loaded.narrow(dim, self.rank * each, each)


class Fused(nn.Module):
    """Several column-parallel layers in one parameter."""

    def __init__(self, at: Rank, rows: dict[str, int], columns: int, *, bias: bool = False) -> None:
        super().__init__()
        self.rows = rows
        self.weight = room(sum(rows.values()), columns)
        self.weight.weight_loader = partial(self.load, at)
        if bias:
            self.bias = room(sum(rows.values()))
            self.bias.weight_loader = partial(self.load, at)

    def load(self, at: Rank, param: nn.Parameter, loaded: torch.Tensor, shard: str) -> None:
        first = sum(list(self.rows.values())[: list(self.rows).index(shard)])
        rows = self.rows[shard]
        place = param.data.narrow(0, first, rows)
        # Fewer heads than ranks: neighbours hold the same one.
        start = at.rank * loaded.shape[0] // at.size // rows * rows
        place.copy_(loaded.narrow(0, start, rows))


class Embedding(nn.Module):
    def __init__(self, at: Rank, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.rows = (vocabulary + 7) // 8 * 8 // at.size
        self.first = at.rank * self.rows
        self.weight = room(self.rows, hidden)
        self.weight.weight_loader = self.load

    def load(self, param: nn.Parameter, loaded: torch.Tensor) -> None:
        mine = loaded[self.first : self.first + self.rows]
        param[: mine.shape[0]].data.copy_(mine)
        param[mine.shape[0] :].data.fill_(0)


class Experts(nn.Module):
    def __init__(self, at: Rank, sizes: Sizes) -> None:
        super().__init__()
        self.at, ffn = at, sizes.ffn // at.size
        self.w13 = room(sizes.experts, 2 * ffn, sizes.hidden)
        self.w2 = room(sizes.experts, sizes.hidden, ffn)

    def load(self, loaded: torch.Tensor, expert: int, shard: str) -> None:
        if shard == "down_proj":
            self.w2.data[expert].copy_(self.at.slice(loaded, 1))
            return
        mine = self.at.slice(loaded, 0)
        half = self.w13.data[expert].chunk(2, dim=0)[shard == "up_proj"]
        half.copy_(mine)


class Miniature(nn.Module):
    def __init__(self, rank: int, size: int, sizes: Sizes = Sizes()) -> None:
        super().__init__()
        at = self.at = Rank(rank, size)
        self.sizes = sizes
        h, heads = sizes.hidden, sizes.heads // size
        kv = max(1, sizes.kv_heads // size) * sizes.head
        qkv = {"q_proj": heads * sizes.head, "k_proj": kv, "v_proj": kv}
        self.embed = Embedding(at, sizes.vocabulary, h)
        self.qkv = Fused(at, qkv, h, bias=True)
        self.gate_up = Fused(at, {"gate_proj": sizes.ffn // size, "up_proj": sizes.ffn // size}, h)
        self.o_proj = room(h, heads * sizes.head)
        self.down_proj = room(h, sizes.ffn // size)
        latent = {"q_a_proj": 7, "kv_a_proj": sizes.latent + sizes.rope}
        self.fused_a = Fused(Rank(0, 1), latent, h)
        self.w_kc = room(heads, sizes.head, sizes.latent)
        self.w_vc = room(heads, sizes.latent, sizes.head)
        self.norm = room(h)
        self.moe = Experts(at, sizes)
        self.stacked = room(sizes.experts, 2, sizes.ffn // size, h)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, loaded in weights:
            room, *inner = name.split(".")
            getattr(self, f"load_{room}")(inner, loaded)

    def load_embed(self, inner: list[str], loaded: torch.Tensor) -> None:
        self.embed.weight.weight_loader(self.embed.weight, loaded)

    def load_attn(self, inner: list[str], loaded: torch.Tensor) -> None:
        shard, kind = inner
        if shard == "o_proj":
            self.o_proj.data.copy_(self.at.slice(loaded, 1))
            return
        param = getattr(self.qkv, kind)
        param.weight_loader(param, loaded, shard)

    def load_mlp(self, inner: list[str], loaded: torch.Tensor) -> None:
        if inner[0] == "down_proj":
            self.down_proj[:] = self.at.slice(loaded, 1)
            return
        self.gate_up.weight.weight_loader(self.gate_up.weight, loaded, inner[0])

    def load_mla(self, inner: list[str], loaded: torch.Tensor) -> None:
        if inner[0] != "kv_b_proj":
            self.fused_a.weight.weight_loader(self.fused_a.weight, loaded, inner[0])
            return
        heads = loaded.view(self.sizes.heads, 2 * self.sizes.head, self.sizes.latent)
        keys, values = self.at.slice(heads, 0).split(self.sizes.head, dim=1)
        self.w_kc.data.copy_(keys)
        self.w_vc.data.copy_(values.transpose(1, 2).contiguous())

    def load_norm(self, inner: list[str], loaded: torch.Tensor) -> None:
        self.norm.data.copy_(loaded.to(self.norm.device, self.norm.dtype))

    def load_moe(self, inner: list[str], loaded: torch.Tensor) -> None:
        self.moe.load(loaded, int(inner[1]), inner[2])

    def load_stack(self, inner: list[str], loaded: torch.Tensor) -> None:
        halves = loaded.chunk(2, dim=-1)
        for expert in range(self.sizes.experts):
            for at, half in enumerate(halves):
                mine = self.at.slice(half.unbind(0)[expert], 1)
                self.stacked.data[expert, at] = mine.t()
