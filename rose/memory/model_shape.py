"""The sizes of a model that determine its weights and its KV."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from rose.memory.attention import AttentionGroup, Reach
from rose.memory.geometry import KVGeometry, Layout


class Family(Enum):
    """Model families whose weights rose can count; the value is their `model_type`."""

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    QWEN3_MOE = "qwen3_moe"
    DEEPSEEK_V3 = "deepseek_v3"
    GEMMA3 = "gemma3_text"


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts.

    Args:
        count: routed experts per layer.
        intermediate: width of one expert.
        shared: experts per layer that every token uses.
        layers: number of layers with experts; all other layers are dense.
        per_token: routed experts per token.
    """

    count: int
    intermediate: int
    shared: int
    layers: int
    per_token: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Ranks and widths of latent attention (MLA).

    Args:
        query_rank: rank of compressed queries; None if not compressed.
        kv_rank: elements kept per token, besides `rope_dim`.
        nope_dim: elements of a head's query and key without position encoding.
        rope_dim: elements of a head's query and key with position encoding.
        value_dim: elements of a head's value.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class KVDtype:
    """Storage of KV.

    Args:
        element_bytes: bytes per element of K, V and latents.
        head_scale_bytes: bytes of scales in the block, per token and head, for K and V each.
    """

    element_bytes: int
    head_scale_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a text model, or of the text part of a larger one.

    Args:
        name: model name for messages.
        family: model family, which determines the set of weight matrices.
        layers: number of decoder layers, without layers for multi-token prediction.
        hidden: width between layers.
        heads: query heads.
        kv_heads: KV heads; fewer than `heads` in grouped-query attention.
        head_dim: elements per head; in latent attention, elements of a head's value.
        intermediate: width of a dense feed-forward network.
        vocab: rows of the embedding.
        is_tied: whether the embedding is also the output matrix.
        has_attention_bias: whether attention has biases; ignored for families in which all models
            agree on this.
        has_mlp_bias: whether MLPs have biases; used for the Llama family only.
        windows: (reach, window in tokens) of each layer.
        experts: mixture of experts; None for a dense model.
        latent: latent attention; None for plain attention.
        dtype_bytes: bytes per weight that is not quantised.
        is_fp8: whether the weights were published in FP8, with a scale per block.
        is_part: whether the config describes more than the text part.
    """

    name: str
    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    is_tied: bool
    has_attention_bias: bool
    has_mlp_bias: bool
    windows: tuple[tuple[Reach, int | None], ...]
    experts: Experts | None
    latent: Latent | None
    dtype_bytes: int
    is_fp8: bool
    is_part: bool

    def groups(
        self,
        *,
        block_tokens: int,
        kv: KVDtype,
        tp: int = 1,
        layout: Layout = Layout.LAYER_MAJOR,
    ) -> tuple[AttentionGroup, ...]:
        """Return the attention groups on one of `tp` devices, the group with most layers first.

        Raises:
            InvalidArgument: the KV heads cannot be divided among `tp` devices.
        """
        return tuple(
            AttentionGroup(
                reach, self._geometry(count, block_tokens, kv, tp, layout), window_tokens
            )
            for (reach, window_tokens), count in Counter(self.windows).most_common()
        )

    def _geometry(
        self, layers: int, block_tokens: int, kv: KVDtype, tp: int, layout: Layout
    ) -> KVGeometry:
        if self.latent is not None:
            return KVGeometry.from_latent(
                layers=layers,
                latent_dim=self.latent.kv_rank,
                rope_dim=self.latent.rope_dim,
                dtype_bytes=kv.element_bytes,
                block_tokens=block_tokens,
                layout=layout,
            )
        return KVGeometry.from_attention(
            layers=layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype_bytes=kv.element_bytes,
            block_tokens=block_tokens,
            tp=tp,
            scale_bytes=kv.head_scale_bytes,
            layout=layout,
        )
