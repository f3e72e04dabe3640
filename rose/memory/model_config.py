"""Reading of a model's `config.json`, by the rules of its family's config class in transformers."""

from collections.abc import Mapping
from typing import Any, Final

from rose.errors import InvalidArgument
from rose.memory.attention import Reach
from rose.memory.config_fields import ConfigFields
from rose.memory.model_shape import Experts, Family, Latent, ModelShape

# Values that transformers assumes for fields that a family's config.json may leave out.
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
_LAYERS_MAX: Final = 10_000  # bounds `ModelShape.windows`, which has an entry per layer
_DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_REACHES: Final = {
    "full_attention": Reach.FULL,
    "sliding_attention": Reach.SLIDING,
    "chunked_attention": Reach.CHUNKED,
}
# Fields that multimodal models write beside `text_config`, but that apply to the text part too.
_OF_THE_WHOLE: Final = ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")


def read_shape(config: Mapping[str, Any], *, name: str) -> ModelShape:
    """Return the shape described by the fields of a Hugging Face `config.json`.

    Raises:
        InvalidArgument: a field is missing or invalid, or the family is unknown.
    """
    text = config.get("text_config")
    is_part = isinstance(text, Mapping)
    if isinstance(text, Mapping):
        config = {key: config[key] for key in _OF_THE_WHOLE if key in config} | dict(text)
    family = _family(config, name)
    fields = ConfigFields({**_DEFAULTS.get(family, {}), **config}, name)
    layers = fields.count("num_hidden_layers", at_most=_LAYERS_MAX)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.error(f"{heads} attention heads cannot share {kv_heads} KV heads evenly")
    latent = _latent(fields) if family is Family.DEEPSEEK_V3 else None
    return ModelShape(
        name=name,
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
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


def _family(config: Mapping[str, Any], name: str) -> Family:
    found = config.get("model_type")
    for family in Family:
        if family.value == found:
            return family
    known = ", ".join(family.value for family in Family)
    raise InvalidArgument(f"{name}: model_type is {found!r}; rose knows only {known}")


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
    # The config classes of both families default to eight.
    per_token = min(fields.count("num_experts_per_tok", default=8), count)
    return Experts(count, fields.count("moe_intermediate_size"), shared, len(routed), per_token)


def _windows(
    fields: ConfigFields, family: Family, layers: int
) -> tuple[tuple[Reach, int | None], ...]:
    """Return (reach, window) of each layer, by the rules of the family's config class."""
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
    if reach is Reach.FULL or window is None:
        return Reach.FULL, None
    return reach, window


def _dtype_bytes(fields: ConfigFields) -> int:
    name = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(name):
        return _DTYPE_BYTES["bfloat16"]
    return _DTYPE_BYTES[fields.name(name, among=tuple(_DTYPE_BYTES))]


def _is_fp8(fields: ConfigFields) -> bool:
    """Return whether the checkpoint is FP8; other quantisation is refused."""
    if not fields.has("quantization_config"):
        return False
    fields.within("quantization_config").name("quant_method", among=("fp8",))
    return True
