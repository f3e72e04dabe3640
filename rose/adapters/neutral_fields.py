"""Fields that clients send without meaning anything by them, or that rose does not have.

Clients and routers write every field of their own classes into a body. A field that rose does not
have is accepted if it is null or has the value that changes nothing, and refused by its name
otherwise, so that no field changes tokens without effect.
"""

from typing import Any, Final

from rose.errors import InvalidArgument

_ANY: Final = None  # every value changes nothing
_OFF: Final = (False,)
_NONE: Final[tuple[Any, ...]] = ([], {}, "")

# Field → values that change no token of rose's.
_VALUES: Final[dict[str, tuple[Any, ...] | None]] = {
    # Logs, accounts, caches and transport.
    **dict.fromkeys(
        ("user", "metadata", "priority", "service_tier", "safety_identifier", "custom_labels"), _ANY
    ),
    **dict.fromkeys(("prompt_cache_key", "routing_key", "conversation_id", "extra_key"), _ANY),
    **dict.fromkeys(("log_metrics", "no_logs", "background", "received_time"), _ANY),
    **dict.fromkeys(("stream_interval", "output_kind", "detokenize", "skip_clone"), _ANY),
    "store": _OFF,
    # Text and its parts: rose returns the text as it is.
    **dict.fromkeys(("spaces_between_special_tokens", "parallel_tool_calls"), _ANY),
    "no_stop_trim": _OFF,
    **dict.fromkeys(("separate_reasoning", "stream_reasoning", "include_reasoning"), _ANY),
    "modalities": (["text"],),
    # Beam search, and fields that act in it only.
    **dict.fromkeys(("use_beam_search", "early_stopping"), _OFF),
    "length_penalty": _ANY,
    "best_of": (1,),
    # Further output.
    **dict.fromkeys(("return_hidden_states", "return_routed_experts", "return_indexer_topk"), _OFF),
    **dict.fromkeys(("return_bytes", "return_entropy", "return_sampling_mask"), _OFF),
    **dict.fromkeys(("return_token_offsets", "return_prompt_text", "return_mm_kwargs"), _ANY),
    **dict.fromkeys(("return_flat_raw_top_logprobs", "flat_logprobs"), _OFF),
    **dict.fromkeys(("routed_experts_prompt_start", "routed_experts_start_len"), (0,)),
    # Sampling that rose does not have.
    **dict.fromkeys(("watermarking", "require_reasoning", "echo"), _OFF),
    **dict.fromkeys(("bad_words", "logits_processors", "allowed_token_ids"), _NONE),
    **dict.fromkeys(("custom_params", "vllm_xargs", "extra_args", "suffix"), _NONE),
    **dict.fromkeys(("tools", "functions", "documents"), _NONE),
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),
    "truncate_prompt_tokens": (),
    "thinking_token_budget": (-1,),
    "verbosity": ("medium",),
    # Images and sound.
    **dict.fromkeys(("image_data", "video_data", "audio_data", "features"), _NONE),
    **dict.fromkeys(("mm_processor_kwargs", "media_io_kwargs", "multi_modal_data"), _NONE),
    "use_audio_in_video": _OFF,
}


def drop_neutral(given: dict[str, Any], known: frozenset[str], *, place: str = "") -> None:
    """Remove the fields of a body that are neutral.

    Args:
        given: body, or a part of one; changed in place.
        known: names of the fields that have a meaning.
        place: name of the part with a dot, for errors.

    Raises:
        InvalidArgument: a field is not known and not neutral.
    """
    for name in given.keys() - known:
        value = given.pop(name)
        if value is None:
            continue
        if name not in _VALUES:
            raise InvalidArgument(f"{place}{name}: no such field")
        values = _VALUES[name]
        if values is not None and not any(_is_same(value, one) for one in values):
            shown = " or ".join(map(repr, values)) or "null"
            raise InvalidArgument(
                f"{place}{name} must be {shown}, got {value!r:.80}: rose supports no other value"
            )


def _is_same(value: Any, other: Any) -> bool:
    """Compare two values; unlike in Python, True is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
