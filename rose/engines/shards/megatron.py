"""Layout of a Megatron-Core decoder: its fused parameters on all parallel ranks."""

from collections.abc import Mapping
from dataclasses import dataclass

from rose.engines.shards.megatron_rank import MegatronRank
from rose.errors import InvalidArgument
from rose.transfer.plan import ShardMap, TensorSpec


@dataclass(frozen=True, slots=True)
class MegatronModel:
    """A decoder of the Llama and Qwen families, and its distribution over ranks.

    The rank with the number (stage * ep + expert group) * tp + slice holds one tensor parallel
    slice of one pipeline stage. All expert groups hold the same non-expert tensors. Canonical names
    are those of transformers.

    Args:
        stage_layers: number of layers of each pipeline stage.
        hidden: size of the residual stream.
        heads: number of query heads.
        kv_heads: number of key and value heads; query groups, in Megatron's terms.
        head: size of a head.
        ffn: inner size of the MLP, or of an expert.
        vocabulary: number of token ids; the embedding's rows are padded to a multiple of
            `vocabulary_multiple` * tp.
        experts: number of experts per layer; 0 for a dense model.
        tp: number of tensor parallel ranks.
        ep: number of expert parallel groups.
        vocabulary_multiple: Megatron's `make_vocab_size_divisible_by`.
        is_tied: whether the output layer shares the weights of the embedding.
        has_qkv_bias: whether Q, K and V have biases, as in Qwen2.
        has_qk_norm: whether Q and K have norms, as in Qwen3.
        are_experts_stacked: whether a rank's experts share one parameter.
        dtype: dtype of all tensors.

    Raises:
        InvalidArgument: the numbers do not allow this distribution.
    """

    stage_layers: tuple[int, ...]
    hidden: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    vocabulary: int
    experts: int = 0
    tp: int = 1
    ep: int = 1
    vocabulary_multiple: int = 128
    is_tied: bool = False
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    are_experts_stacked: bool = True
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for large, small, words in (
            (self.heads, self.kv_heads, "heads must be a multiple of kv_heads"),
            (self.kv_heads, self.tp, "kv_heads must be a multiple of tp"),
            (self.ffn, self.tp, "ffn must be a multiple of tp"),
            (self.experts, self.ep, "experts must be a multiple of ep"),
        ):
            if small < 1 or large % small:
                raise InvalidArgument(f"{words}, got {large} and {small}")
        if not self.stage_layers or min(self.stage_layers) < 0:
            raise InvalidArgument(
                f"stage_layers must list at least one count, all >= 0, got {self.stage_layers}"
            )
        if self.ep > 1 and not self.experts:
            raise InvalidArgument(f"ep must be 1 for a dense model (experts=0), got {self.ep}")

    @property
    def padded_vocabulary(self) -> int:
        """Return the number of rows of the embedding over all ranks, including padding."""
        each = self.vocabulary_multiple * self.tp
        return -(-self.vocabulary // each) * each


@dataclass(frozen=True, slots=True)
class MegatronLayout:
    """The places of a checkpoint's tensors on all ranks.

    Args:
        shards: map of all ranks.
        storages: number of elements of each parameter, by rank and name.
        padding: number of padding elements, which no piece covers, by rank and name.
    """

    shards: ShardMap
    storages: Mapping[tuple[int, str], int]
    padding: Mapping[tuple[int, str], int]


def megatron_layout(model: MegatronModel) -> MegatronLayout:
    """Return the layout of a transformers checkpoint on all ranks."""
    specs = {spec.name: spec for spec in _tensors(model)}
    ranks = [
        MegatronRank(model, specs, stage=stage, group=group, part=part)
        for stage in range(len(model.stage_layers))
        for group in range(model.ep)
        for part in range(model.tp)
    ]
    for one in ranks:
        one.lay_out()
    return MegatronLayout(
        ShardMap(specs, tuple(piece for one in ranks for piece in one.pieces), {}),
        {(one.rank, name): count for one in ranks for name, count in one.storages.items()},
        {(one.rank, name): count for one in ranks for name, count in one.padding.items()},
    )


def _tensors(model: MegatronModel) -> list[TensorSpec]:
    """Return the tensors of the checkpoint."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (model.vocabulary, model.hidden)
    }
    for layer in range(sum(model.stage_layers)):
        for name, shape in _layer(model).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (model.hidden,)
    if not model.is_tied:
        shapes["lm_head.weight"] = (model.vocabulary, model.hidden)
    return [TensorSpec(name, shape, model.dtype) for name, shape in shapes.items()]


def _layer(model: MegatronModel) -> dict[str, tuple[int, ...]]:
    queries, keys = model.heads * model.head, model.kv_heads * model.head
    rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (model.hidden,),
        "post_attention_layernorm.weight": (model.hidden,),
        "self_attn.o_proj.weight": (model.hidden, queries),
    }
    for name, count in rows.items():
        shapes[f"self_attn.{name}.weight"] = (count, model.hidden)
        if model.has_qkv_bias:
            shapes[f"self_attn.{name}.bias"] = (count,)
    if model.has_qk_norm:
        shapes |= {f"self_attn.{name}_norm.weight": (model.head,) for name in "qk"}
    if model.experts:
        shapes["mlp.gate.weight"] = (model.experts, model.hidden)
    prefixes = [f"mlp.experts.{at}" for at in range(model.experts)] or ["mlp"]
    for prefix in prefixes:
        for name in ("gate_proj", "up_proj"):
            shapes[f"{prefix}.{name}.weight"] = (model.ffn, model.hidden)
        shapes[f"{prefix}.down_proj.weight"] = (model.hidden, model.ffn)
    return shapes
