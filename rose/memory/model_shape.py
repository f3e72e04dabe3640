"""The sizes of a model that decide about its weights and its KV."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from rose.memory.attention import AttentionGroup, Reach
from rose.memory.geometry import KVGeometry, Layout


class Family(Enum):
    """Models whose weights rose can count; the value is their `model_type`."""

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
        count: routed experts in a layer.
        intermediate: width of one.
        shared: experts in a layer that every token uses.
        layers: that have experts; the others are dense.
        per_token: routed experts that one token uses.
    """

    count: int
    intermediate: int
    shared: int
    layers: int
    per_token: int


@dataclass(frozen=True, slots=True)
class Latent:
    """The ranks and widths of latent attention (MLA).

    Args:
        query_rank: None where queries are not compressed.
        kv_rank: elements kept for a token, besides `rope_dim`.
        nope_dim: of a head's query and key, without position.
        rope_dim: of them, with position.
        value_dim: of a head's value.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class KVDtype:
    """How KV is stored.

    Args:
        element_bytes: of K, V and latents.
        head_scale_bytes: per token and head, K and V apart, beside them in the block.
    """

    element_bytes: int
    head_scale_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a text model, or of the text part of a larger one.

    Args:
        name: for sentences.
        family: which weights there are.
        layers: of the decoder, without layers for multi-token prediction.
        hidden: width between layers.
        heads: query heads.
        kv_heads: fewer in grouped-query attention.
        head_dim: elements of one head; of its value in latent attention.
        intermediate: width of a dense feed-forward network.
        vocab: rows of the embedding.
        is_tied: the embedding is the output matrix too.
        has_attention_bias: where the family leaves it to the config.
        has_mlp_bias: likewise.
        windows: (reach, window) of each layer.
        experts: None for a dense model.
        latent: None for plain attention.
        dtype_bytes: of a weight that is not quantised.
        is_fp8: the weights were published in FP8, with a scale for each block.
        is_part: the config describes more than text, which is left out here.
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
        """Return the attention groups of one of `tp` devices, the one with most layers first.

        Raises:
            InvalidArgument: the KV heads cannot be shared out to `tp` devices.
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
