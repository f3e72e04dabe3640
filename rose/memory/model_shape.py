"""What the `config.json` of a model says about the sizes of its weights and of its KV."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rose.errors import InvalidArgument
from rose.memory.attention import AttentionGroup, Reach
from rose.memory.config_fields import ConfigFields
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
    """

    count: int
    intermediate: int
    shared: int
    layers: int


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


# What a family leaves out of its config.json, because transformers fills it in.
_DEFAULTS: Final[Mapping[Family, Mapping[str, Any]]] = {
    Family.QWEN3: {"head_dim": 128},
    Family.MISTRAL: {"sliding_window": 4096},
    Family.GEMMA3: {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    Family.DEEPSEEK_V3: {"first_k_dense_replace": 3, "n_shared_experts": 1},
}
_LAYERS_MAX: Final = 10_000  # each gets an entry of its own
_DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_REACHES: Final = {
    "full_attention": Reach.FULL,
    "sliding_attention": Reach.SLIDING,
    "chunked_attention": Reach.CHUNKED,
}
# Written beside `text_config` by models that also see or hear, and true of their text as well.
_OF_THE_WHOLE: Final = ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")


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

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, name: str) -> "ModelShape":
        """Read the fields of a `config.json`, as Hugging Face names them.

        Raises:
            InvalidArgument: a field is missing or impossible, or the family is not known.
        """
        text = config.get("text_config")
        is_part = isinstance(text, Mapping)
        if isinstance(text, Mapping):
            config = {key: config[key] for key in _OF_THE_WHOLE if key in config} | dict(text)
        family = _family(config, name)
        fields = ConfigFields({**_DEFAULTS.get(family, {}), **config}, name)
        layers = fields.count("num_hidden_layers", at_most=_LAYERS_MAX)
        hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
        latent = _latent(fields) if family is Family.DEEPSEEK_V3 else None
        return cls(
            name=name,
            family=family,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=fields.count("num_key_value_heads", default=heads),
            head_dim=latent.value_dim if latent else _head_dim(fields, hidden, heads),
            intermediate=fields.count("intermediate_size"),
            vocab=fields.count("vocab_size"),
            is_tied=fields.truth("tie_word_embeddings"),
            has_attention_bias=fields.truth("attention_bias"),
            has_mlp_bias=fields.truth("mlp_bias"),
            windows=_windows(fields, family, layers),
            experts=_experts(fields, family, layers),
            latent=latent,
            dtype_bytes=_dtype_bytes(fields),
            is_fp8=_is_fp8(fields),
            is_part=is_part,
        )

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


def _family(config: Mapping[str, Any], name: str) -> Family:
    said = config.get("model_type")
    for family in Family:
        if family.value == said:
            return family
    known = ", ".join(family.value for family in Family)
    raise InvalidArgument(f"{name}: model_type is {said!r}, and rose can count {known} only")


def _head_dim(fields: ConfigFields, hidden: int, heads: int) -> int:
    if fields.has("head_dim"):
        return fields.count("head_dim")
    if hidden % heads:
        raise fields.error(f"hidden_size {hidden} does not divide into {heads} heads")
    return hidden // heads


def _latent(fields: ConfigFields) -> Latent:
    return Latent(
        query_rank=fields.count("q_lora_rank") if fields.has("q_lora_rank") else None,
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=fields.count("qk_nope_head_dim"),
        rope_dim=fields.count("qk_rope_head_dim"),
        value_dim=fields.count("v_head_dim"),
    )


def _experts(fields: ConfigFields, family: Family, layers: int) -> Experts | None:
    if family is Family.QWEN3_MOE:
        every = fields.count("decoder_sparse_step", default=1)
        dense = fields.integers("mlp_only_layers")
        routed = [
            layer for layer in range(layers) if layer not in dense and not (layer + 1) % every
        ]
        count, shared = fields.count("num_experts"), 0
    elif family is Family.DEEPSEEK_V3:
        every = fields.count("moe_layer_freq", default=1)
        first = fields.count("first_k_dense_replace", at_least=0)
        routed = [layer for layer in range(first, layers) if not layer % every]
        count = fields.count("n_routed_experts")
        shared = fields.count("n_shared_experts", at_least=0)
    else:
        return None
    if not routed:
        return None
    return Experts(count, fields.count("moe_intermediate_size"), shared, len(routed))


def _windows(
    fields: ConfigFields, family: Family, layers: int
) -> tuple[tuple[Reach, int | None], ...]:
    """Return (reach, window) of each layer, by the rules of the family's own config class."""
    window = fields.count("sliding_window") if fields.has("sliding_window") else None
    if family in {Family.QWEN2, Family.QWEN3, Family.QWEN3_MOE}:
        window = window if fields.truth("use_sliding_window") else None
    if fields.has("layer_types"):
        kinds = fields.names("layer_types", among=tuple(_REACHES), length=layers)
        return tuple(_window(fields, _REACHES[kind], window) for kind in kinds)
    match family:
        case _ if window is None:
            return ((Reach.FULL, None),) * layers
        case Family.QWEN2 | Family.QWEN3:
            full = min(layers, fields.count("max_window_layers", default=28, at_least=0))
        case Family.GEMMA3:
            every = fields.count("sliding_window_pattern")
            return tuple(
                (Reach.SLIDING, window) if (layer + 1) % every else (Reach.FULL, None)
                for layer in range(layers)
            )
        case Family.MISTRAL | Family.QWEN3_MOE:
            full = 0
        case _:
            full = layers
    return ((Reach.FULL, None),) * full + ((Reach.SLIDING, window),) * (layers - full)


def _window(fields: ConfigFields, reach: Reach, window: int | None) -> tuple[Reach, int | None]:
    if reach is Reach.CHUNKED:
        return reach, fields.count("attention_chunk_size")
    return (
        (Reach.FULL, None)
        if window is None
        else (reach, window if reach is Reach.SLIDING else None)
    )


def _dtype_bytes(fields: ConfigFields) -> int:
    name = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(name):
        return _DTYPE_BYTES["bfloat16"]
    return _DTYPE_BYTES[fields.name(name, among=tuple(_DTYPE_BYTES))]


def _is_fp8(fields: ConfigFields) -> bool:
    """Return whether the checkpoint is FP8; other ways to quantise are refused, not guessed."""
    if not fields.has("quantization_config"):
        return False
    fields.within("quantization_config").name("quant_method", among=("fp8",))
    return True
