"""What a config.json says, against the published sizes and against transformers' own models."""

import json
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rose.errors import InvalidArgument
from rose.memory.attention import Reach
from rose.memory.model_config import read_shape
from rose.memory.model_shape import Experts, Family, KVDtype, ModelShape
from rose.memory.model_weights import WeightDtype, matrices, parameters, weight_bytes
from rose.memory.presets import find_model, preset_names

BF16 = KVDtype(2)

# As their publishers count them, embeddings that are tied once. DeepSeek-V3 without its layer for
# multi-token prediction; Gemma 3 27B without its eyes, with 64 rows of vocabulary that are padding.
PUBLISHED = {
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "DeepSeek-V3": 671_026_419_200,
    "gemma-3-1b": 999_885_952,
    "gemma-3-27b": 27_009_002_240 + 64 * 5376,
}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 100,
}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
QWEN3_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [1],
}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "moe_intermediate_size": 24,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 2,
}
GEMMA3 = {**LLAMA, "model_type": "gemma3_text", "head_dim": 12, "sliding_window": 32}


def shape_of(config, **changed) -> ModelShape:
    return read_shape({**config, **changed}, name="it")


def preset_config(name: str) -> dict:
    from importlib import resources

    return json.loads(resources.files("rose.memory").joinpath("presets.json").read_text())[name]


# --- how many parameters --------------------------------------------------------------------------


@pytest.mark.parametrize("name", preset_names())
def test_preset_has_the_published_number_of_parameters(name: str) -> None:
    assert parameters(find_model(name)) == PUBLISHED[name]


def parameters_of_transformers(config: dict) -> int:
    """Count what transformers builds from a config, without memory for any of it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = dict(config.get("text_config", config))
    config.pop("quantization_config", None)
    built = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(built)
    model.tie_weights()
    stored = dict(model.named_parameters())  # what is tied once
    stored |= {
        name: buffer
        for name, buffer in model.named_buffers()
        if name.endswith("e_score_correction_bias")  # learnt and stored, though not by gradients
    }
    return sum(one.numel() for one in stored.values())


@pytest.mark.parametrize(
    "config",
    [
        {**LLAMA, "head_dim": 20},
        {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {**LLAMA, "model_type": "mistral", "head_dim": 8},
        QWEN2,
        {**LLAMA, "model_type": "qwen3"},
        {**LLAMA, "model_type": "qwen3", "attention_bias": True},
        QWEN3_MOE,
        {**QWEN3_MOE, "attention_bias": True, "head_dim": 16},
        {**QWEN3_MOE, "mlp_only_layers": [0, 1, 2, 3, 4]},
        DEEPSEEK,
        {**DEEPSEEK, "q_lora_rank": None, "attention_bias": True},
        {**DEEPSEEK, "attention_bias": True, "first_k_dense_replace": 0},
        GEMMA3,
        {**GEMMA3, "attention_bias": True},
    ],
    ids=lambda config: config["model_type"],
)
def test_small_model_counts_as_transformers_builds_it(config) -> None:
    assert parameters(shape_of(config)) == parameters_of_transformers(config)


# --- how many bytes -------------------------------------------------------------------------------


def test_published_fp8_is_one_byte_for_matrices_of_layers() -> None:
    deepseek = find_model("DeepSeek-V3")
    as_published, as_bf16 = weight_bytes(deepseek), weight_bytes(deepseek, dtype=WeightDtype.BF16)
    assert as_bf16 == 2 * parameters(deepseek)
    quantised = sum(one.parameters for one in matrices(deepseek) if one.can_be_fp8)
    # Embedding, output matrix, routers and norms stay; a scale for each 128 x 128 weights comes to
    # 4/16384 of a byte each, and a little more where 576 and 1536 rows are no multiple of 128.
    scales = as_published - quantised - 2 * (parameters(deepseek) - quantised)
    assert 4 * quantised / 128**2 <= scales <= 4.02 * quantised / 128**2
    assert quantised > 0.995 * parameters(deepseek)


def test_weights_are_stored_as_published_or_as_asked() -> None:
    for published, size in (("float32", 4), ("bfloat16", 2), (None, 2)):
        shape = shape_of(LLAMA, torch_dtype=published)
        assert weight_bytes(shape) == size * parameters(shape)
        assert weight_bytes(shape, dtype=WeightDtype.BF16) == 2 * parameters(shape)
    assert shape_of(LLAMA, dtype="float32", torch_dtype="bfloat16").dtype_bytes == 4


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("dtype", [None, *WeightDtype])
def test_shards_hold_the_model_once_and_what_each_needs_whole(name: str, dtype) -> None:
    shape = find_model(name)
    whole = weight_bytes(shape, dtype=dtype)
    assert weight_bytes(shape, dtype=dtype, tp=1) == whole
    for tp in (2, 4, 8):
        if any(size % tp for size in (shape.heads, shape.intermediate)):
            with pytest.raises(InvalidArgument, match=f"cannot be divided by tp {tp}"):
                weight_bytes(shape, dtype=dtype, tp=tp)
            continue
        each = weight_bytes(shape, dtype=dtype, tp=tp)
        assert whole <= tp * each
        assert each <= whole * (1 / tp + 0.06)


def test_kv_heads_are_repeated_when_devices_outnumber_them() -> None:
    shape = shape_of(LLAMA)  # 8 heads, 4 of them with KV of their own
    bytes_of = {tp: weight_bytes(shape, tp=tp) for tp in (4, 8)}
    divided = [one for one in matrices(shape) if one.ways is not None]
    repeated = sum(one.bytes_of_shard(tp=8, dtype_bytes=2, is_fp8=False) for one in divided)
    assert repeated == sum(one.bytes_of_shard(tp=4, dtype_bytes=2, is_fp8=False) for one in divided)
    assert repeated == 2 * 5 * (8 * 64) * 2  # K and V, five layers, a head of 8 by 64
    assert bytes_of[8] < bytes_of[4]


# --- attention groups -----------------------------------------------------------------------------


def windows_of(config, **changed) -> list[tuple[str, int, int | None]]:
    groups = shape_of(config, **changed).groups(block_tokens=16, kv=BF16)
    return [(one.reach.value, one.geometry.layers, one.window_tokens) for one in groups]


def test_windows_follow_the_rules_of_each_family() -> None:
    assert windows_of(LLAMA) == [("full", 5, None)]
    unused = {"sliding_window": 8, "max_window_layers": 2}
    assert windows_of(QWEN2, **unused) == [("full", 5, None)]
    used = {"use_sliding_window": True, "sliding_window": 8}
    assert windows_of(QWEN2, **used) == [("full", 5, None)]  # layers from the 28th on
    assert windows_of(QWEN2, **used, max_window_layers=2) == [
        ("sliding", 3, 8),
        ("full", 2, None),
    ]
    mistral = {**LLAMA, "model_type": "mistral"}
    assert windows_of(mistral) == [("sliding", 5, 4096)]
    assert windows_of(mistral, sliding_window=None) == [("full", 5, None)]
    assert windows_of(GEMMA3, num_hidden_layers=13) == [("sliding", 11, 32), ("full", 2, None)]
    assert windows_of(GEMMA3, sliding_window_pattern=2) == [("sliding", 3, 32), ("full", 2, None)]


def test_layer_types_are_taken_at_their_word() -> None:
    kinds = ["chunked_attention", "full_attention", "chunked_attention"]
    config = {**LLAMA, "num_hidden_layers": 3, "layer_types": kinds, "attention_chunk_size": 64}
    assert windows_of(config) == [("chunked", 2, 64), ("full", 1, None)]
    sliding = {**GEMMA3, "layer_types": ["full_attention"] * 4 + ["sliding_attention"]}
    assert windows_of(sliding) == [("full", 4, None), ("sliding", 1, 32)]


def test_text_part_of_a_larger_model_is_read() -> None:
    gemma = find_model("gemma-3-27b")
    assert gemma.is_part
    assert gemma.vocab == 262_208  # the default of its family
    assert not find_model("gemma-3-1b").is_part
    nested = {"model_type": "some_vlm", "text_config": LLAMA, "tie_word_embeddings": True}
    assert read_shape(nested, name="it") == replace(shape_of(LLAMA), is_tied=True, is_part=True)


@pytest.mark.parametrize("name", preset_names())
def test_windows_are_those_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = dict(preset_config(name))
    config = dict(config.get("text_config", config))
    config.pop("quantization_config", None)
    built = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    kinds = getattr(built, "layer_types", None) or ["full_attention"] * built.num_hidden_layers
    reaches = {"full_attention": Reach.FULL, "sliding_attention": Reach.SLIDING}
    assert [reach for reach, _ in find_model(name).windows] == [reaches[kind] for kind in kinds]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "model_type is None"),
        ({**LLAMA, "model_type": "mamba"}, "model_type is 'mamba'; rose knows only llama, "),
        ({**LLAMA, "model_type": ["llama"]}, "model_type is"),
        ({**LLAMA, "vocab_size": None}, "vocab_size is missing"),
        ({**LLAMA, "hidden_size": "64"}, "hidden_size is '64', not a whole number"),
        ({**LLAMA, "hidden_size": True}, "hidden_size is True"),
        ({**LLAMA, "hidden_size": 65}, "does not divide into 8 heads"),
        ({**LLAMA, "num_key_value_heads": 3}, "8 attention heads cannot share 3 KV heads"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({**LLAMA, "num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({**LLAMA, "tie_word_embeddings": "yes"}, "neither true nor false"),
        ({**LLAMA, "torch_dtype": "int3"}, "torch_dtype is 'int3'; rose knows float32"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "has 1 entries instead of 5"),
        ({**LLAMA, "layer_types": ["linear_attention"] * 5}, "is 'linear_attention'; rose knows"),
        ({**LLAMA, "layer_types": "full"}, "not a list"),
        ({**LLAMA, "layer_types": ["chunked_attention"] * 5}, "attention_chunk_size is missing"),
        ({**LLAMA, "quantization_config": {"quant_method": "awq"}}, "quant_method is 'awq'"),
        ({**LLAMA, "quantization_config": "fp8"}, "not an object"),
        ({**QWEN3_MOE, "mlp_only_layers": ["1"]}, "not a list of whole numbers"),
        ({**DEEPSEEK, "kv_lora_rank": None}, "kv_lora_rank is missing"),
    ],
)
def test_config_that_cannot_be_counted_is_one_sentence(config, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_shape(config, name="it")
    assert str(caught.value).startswith("it: ")
    assert says in str(caught.value)


@given(
    config=st.dictionaries(
        st.sampled_from([*DEEPSEEK, *QWEN3_MOE, "layer_types", "quantization_config", "dtype"]),
        st.none() | st.booleans() | st.integers(-2, 9) | st.text(max_size=3) | st.just([1]),
    ),
    base=st.sampled_from([LLAMA, QWEN2, QWEN3_MOE, DEEPSEEK, GEMMA3]),
)
def test_any_fields_are_counted_or_refused(config, base) -> None:
    try:
        shape = shape_of(base, **config)
    except InvalidArgument:
        return
    assert parameters(shape) > 0
    assert len(shape.windows) == shape.layers


def test_model_is_found_by_name_by_file_and_by_folder(tmp_path) -> None:
    assert find_model("llama-3.1-8b") == find_model("Llama-3.1-8B")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for place in (tmp_path, tmp_path / "config.json"):
        assert find_model(str(place)) == replace(shape_of(LLAMA), name=str(place))


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "no model"), ("{", "is not JSON"), ("[1]", "must contain a JSON object")],
)
def test_file_that_is_no_config_is_one_sentence(tmp_path, text, says) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidArgument, match=says):
        find_model(str(tmp_path))


def test_experts_are_in_the_layers_that_the_config_says() -> None:
    assert shape_of(QWEN3_MOE).experts == Experts(6, 24, 0, 1, 6)  # every second, without the first
    assert shape_of(DEEPSEEK).experts == Experts(8, 24, 2, 3, 8)
    assert shape_of(QWEN3_MOE, mlp_only_layers=[0, 1, 2, 3, 4]).experts is None
    assert find_model("Qwen3-8B").family is Family.QWEN3
