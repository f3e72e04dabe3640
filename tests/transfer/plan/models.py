"""Shard maps like those of real trainers and engines, made of numbers alone.

Tensors are named as checkpoints of Llama and Qwen name them. `sharded` fuses them as Megatron and
vLLM do: q, k and v in one parameter, gate and up in another, all experts of a rank in two more.
`flattened` is FSDP: all ranks hold equal shares of every tensor's flat row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod

from rose.transfer.plan import LocalView, Piece, Region, ShardMap, TensorSpec


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder; dense if it has no experts."""

    layers: int = 2
    hidden: int = 16
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 4
    ffn: int = 24
    vocab: int = 32
    experts: int = 0
    is_tied: bool = False
    dtype: str = "bfloat16"

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            for name, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
                yield f"{at}.self_attn.{name}_proj.weight", (heads * self.head_dim, self.hidden)
            yield f"{at}.self_attn.o_proj.weight", (self.hidden, self.heads * self.head_dim)
            yield f"{at}.input_layernorm.weight", (self.hidden,)
            if self.experts:
                yield f"{at}.mlp.gate.weight", (self.experts, self.hidden)
            for mlp in self.mlps(at):
                yield f"{mlp}.gate_proj.weight", (self.ffn, self.hidden)
                yield f"{mlp}.up_proj.weight", (self.ffn, self.hidden)
                yield f"{mlp}.down_proj.weight", (self.hidden, self.ffn)
        yield "model.norm.weight", (self.hidden,)
        yield "lm_head.weight", (self.vocab, self.hidden)

    def mlps(self, at: str) -> list[str]:
        if not self.experts:
            return [f"{at}.mlp"]
        return [f"{at}.mlp.experts.{expert}" for expert in range(self.experts)]

    def tensors(self) -> dict[str, TensorSpec]:
        return {name: TensorSpec(name, shape, self.dtype) for name, shape in self.shapes()}

    @cached_property
    def shape_of(self) -> dict[str, tuple[int, ...]]:
        return dict(self.shapes())

    @property
    def elements(self) -> int:
        return sum(prod(shape) for name, shape in self.shapes() if name != self.alias)

    @property
    def alias(self) -> str:
        return "lm_head.weight" if self.is_tied else ""


@dataclass
class Made:
    """A shard map under construction, and how many elements its parameters have."""

    model: Model
    pieces: list[Piece] = field(default_factory=list)
    storages: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def shards(self) -> ShardMap:
        return ShardMap(self.model.tensors(), tuple(self.pieces), {})

    def append(
        self,
        tensor: str,
        rank: int,
        parameter: str,
        offset: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> None:
        """Put a box behind what the parameter has."""
        first = self.storages.get((rank, parameter), 0)
        strides = tuple(prod(shape[dimension + 1 :]) for dimension in range(len(shape)))
        view = LocalView(parameter, first, strides)
        self.pieces.append(Piece(tensor, Region(offset, shape), rank, view))
        self.storages[rank, parameter] = first + prod(shape)

    def append_share(
        self,
        tensor: str,
        parameter: str,
        *,
        rank: int,
        shard: int,
        shards: int,
        dim: int | None = 0,
    ) -> None:
        """Put one of equal shares of a tensor there, or all of it if no dimension is cut."""
        shape = self.model.shape_of[tensor]
        offset, size = [0] * len(shape), list(shape)
        if dim is not None:
            size[dim] = shape[dim] // shards
            offset[dim] = shard * size[dim]
        self.append(tensor, rank, parameter, tuple(offset), tuple(size))


def sharded(model: Model, *, tp: int = 1, pp: int = 1, ep: int = 1) -> Made:
    """Cut heads, hidden units and the vocabulary in `tp`, layers in `pp`, experts in `ep` parts.

    With `ep` > 1 the experts lie whole on the ranks of a stage: rank e of every `ep` has its share.
    """
    made = Made(model)
    for rank in range(tp * pp):
        stage, shard = divmod(rank, tp)
        rows = partial(made.append_share, rank=rank, shard=shard, shards=tp)
        if stage == 0:
            rows("model.embed_tokens.weight", "embed")
        for layer in range(stage * model.layers // pp, (stage + 1) * model.layers // pp):
            at = f"model.layers.{layer}"
            for name in "qkv":
                rows(f"{at}.self_attn.{name}_proj.weight", f"{layer}.qkv")
            rows(f"{at}.self_attn.o_proj.weight", f"{layer}.o", dim=1)
            rows(f"{at}.input_layernorm.weight", f"{layer}.norm", dim=None)
            if model.experts:
                rows(f"{at}.mlp.gate.weight", f"{layer}.router", dim=None)
            for expert, mlp in enumerate(model.mlps(at)):
                if ep > 1 and expert * ep // model.experts != shard % ep:
                    continue
                dims = (None, None) if ep > 1 else (0, 1)
                rows(f"{mlp}.gate_proj.weight", f"{layer}.w13", dim=dims[0])
                rows(f"{mlp}.up_proj.weight", f"{layer}.w13", dim=dims[0])
                rows(f"{mlp}.down_proj.weight", f"{layer}.w2", dim=dims[1])
        if stage == pp - 1:
            rows("model.norm.weight", "norm", dim=None)
            if model.is_tied and stage == 0:
                made.pieces += [
                    replace(piece, tensor=model.alias)
                    for piece in made.pieces
                    if piece.tensor == "model.embed_tokens.weight" and piece.rank == rank
                ]
            else:
                rows("lm_head.weight", "head")
    return made


def flattened(model: Model, *, world: int) -> Made:
    """Give each of `world` ranks an equal run of every tensor's flat row, as FSDP does."""
    made = Made(model)
    for name, shape in model.shapes():
        if name == model.alias:
            continue
        count = prod(shape)
        share = -(-count // world)
        for rank in range(world):
            for offset, size in run_boxes(shape, rank * share, min(count, (rank + 1) * share)):
                made.append(name, rank, "flat", offset, size)
    return made


def run_boxes(
    shape: tuple[int, ...], first: int, behind: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Divide a run of a row-major tensor into boxes: the end of a row, rows, the start of one."""
    if first >= behind:
        return
    if len(shape) == 1:
        yield (first,), (behind - first,)
        return
    inner = prod(shape[1:])
    row, column = divmod(first, inner)
    if column or behind < first + inner:
        stop = min(behind, (row + 1) * inner)
        for offset, size in run_boxes(shape[1:], column, stop - row * inner):
            yield (row, *offset), (1, *size)
        yield from run_boxes(shape, stop, behind)
        return
    rows = (behind - first) // inner
    yield (row, *(0,) * (len(shape) - 1)), (rows, *shape[1:])
    yield from run_boxes(shape, first + rows * inner, behind)
