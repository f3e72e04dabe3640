"""Requests as stock clients and routers send them: captured from the wire, or built by their code.

SkyRL a9564572 and 0.4.0, prime-rl 559b4477 with renderers 0.1.12, slime 624b824a, AReaL 1.0.4,
vllm-router 0.1.17, sglang-router 0.3.2, openai 3.57, verifiers 0.4.0.
"""

from dataclasses import dataclass, field
from typing import Any

IDS = [10, 20, 30]
SKYRL = {
    "min_tokens": 1,
    "skip_special_tokens": True,
    "include_stop_str_in_output": True,
    "max_tokens": 8,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "logprobs": 1,
    "stop": None,
}
SLIME = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_new_tokens": 8,
    "stop": None,
    "stop_token_ids": None,
    "skip_special_tokens": True,
    "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}
AREAL = {
    "top_p": 1.0,
    "top_k": 100000000,
    "max_new_tokens": 8,
    "temperature": 1.0,
    "stop_token_ids": [2],
    "ignore_eos": False,
    "skip_special_tokens": False,
    "frequency_penalty": 0.0,
}
# Fields that both routers add to a body of OpenAI's API.
ROUTED = {
    "no_stop_trim": False,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "return_hidden_states": False,
}
SGLANG_ROUTED = {
    "return_text_in_logprobs": False,
    "stream": False,
    "log_metrics": True,
    "return_hidden_states": False,
    "background": False,
    "no_logs": False,
    "return_bytes": False,
    "return_entropy": False,
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
# `message.model_dump()` of openai, with tool calls and reasoning, and the tool's reply.
HISTORY = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [CALL],
        "reasoning_content": "b",
    },
    {"role": "tool", "tool_call_id": "c", "content": "d"},
    {"role": "assistant", "content": "e", "refusal": None, "tool_calls": None},
    {"role": "user", "content": [{"type": "text", "text": "f"}]},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
USER = [{"role": "user", "content": "a"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOKENS = "/inference/v1/generate"


@dataclass(frozen=True)
class Recorded:
    """A request, and the status of its answer."""

    who: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200


REQUESTS = [
    Recorded(
        "SkyRL generate",
        TOKENS,
        {"sampling_params": SKYRL, "model": "trial", "token_ids": IDS},
        headers={"X-Session-ID": "s1"},
    ),
    Recorded(
        "SkyRL search recipe",
        TOKENS,
        {"sampling_params": {**SKYRL, "stop": ["</search>"]}, "token_ids": IDS},
    ),
    Recorded(
        "SkyRL sample for Tinker",
        TOKENS,
        {
            "sampling_params": {
                "n": 2,
                "logprobs": 0,
                "output_kind": 2,
                "prompt_logprobs": None,
                "max_tokens": 4,
            },
            "model": "trial",
            "token_ids": IDS,
        },
    ),
    Recorded("SkyRL chat", CHAT, {"messages": USER, "max_tokens": 4, "session_id": "s"}),
    Recorded("SkyRL detokenize", "/detokenize", {"model": "trial", "tokens": IDS}),
    Recorded("SkyRL tokenize", "/tokenize", {"model": "trial", "prompt": "a"}),
    Recorded("SkyRL render", CHAT + "/render", {"messages": USER, "session_id": "s"}),
    Recorded("SkyRL finish_session", "/finish_session?session_id=s1"),
    Recorded("SkyRL pause", "/pause?mode=keep&clear_cache=false"),
    Recorded("SkyRL resume", "/resume"),
    Recorded("SkyRL reset", "/reset_prefix_cache", {"reset_running_requests": False}),
    Recorded("SkyRL world size", "/get_world_size", method="GET"),
    Recorded(
        "SkyRL weights over NCCL",
        "/init_weight_transfer_engine",
        {"init_info": {"master_address": "a", "master_port": 1, "rank_offset": 1, "world_size": 3}},
        status=501,
    ),
    Recorded(
        "SkyRL weights by its worker extension",
        "/collective_rpc",
        {"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": True}},
        status=501,
    ),
    Recorded("SkyRL deltas", "/fetch_weights", {"target_version": 1}, status=501),
    Recorded(
        "prime-rl renderers",
        TOKENS,
        {
            "model": "trial",
            "token_ids": IDS,
            "sampling_params": {
                "max_tokens": 8,
                "temperature": 1.0,
                "logprobs": 1,
                "skip_special_tokens": False,
                "stop_token_ids": [2],
            },
            "cache_salt": "3",
        },
    ),
    Recorded("prime-rl broadcaster", "/init_broadcaster", {"host": "a", "port": 1}, status=501),
    Recorded("prime-rl liveness", "/liveness", method="GET"),
    Recorded("prime-rl adapter", "/v1/load_lora_adapter", {"lora_name": "a"}, status=501),
    Recorded(
        "slime generate",
        "/generate",
        {"sampling_params": SLIME, "return_logprob": True, "input_ids": IDS},
        headers={"X-SMG-Routing-Key": "s"},
    ),
    Recorded(
        "slime agent",
        "/generate",
        {
            "rid": "0f",
            "input_ids": IDS,
            "sampling_params": {
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
                "no_stop_trim": True,
                "max_new_tokens": 4,
                "temperature": 1.0,
                "top_p": 1.0,
            },
            "return_logprob": True,
        },
    ),
    Recorded(
        "slime stream",
        "/generate",
        {"sampling_params": SLIME, "return_logprob": True, "input_ids": IDS, "stream": True},
    ),
    Recorded("slime text", "/generate", {"text": "hello", "sampling_params": SLIME}),
    Recorded("slime abort", "/abort_request", {"abort_all": True}),
    Recorded("slime loads", "/v1/loads?include=core", method="GET"),
    Recorded("slime health", "/health_generate", method="GET"),
    Recorded("slime version", "/get_weight_version", method="GET"),
    Recorded("slime pause", "/pause_generation", {}),
    Recorded("slime flush", "/flush_cache", method="GET"),
    Recorded("slime continue", "/continue_generation", {}),
    Recorded("slime weights", "/update_weights_from_distributed", {"names": []}, status=501),
    Recorded(
        "SGLang batch",
        "/generate",
        {"input_ids": [IDS, IDS], "sampling_params": {"max_new_tokens": 4}},
    ),
    Recorded(
        "AReaL on SGLang",
        "/generate",
        {
            "input_ids": IDS,
            "image_data": None,
            "sampling_params": {**AREAL, "top_k": 1 << 30},
            "return_logprob": True,
            "stream": False,
        },
    ),
    Recorded(
        "AReaL on vLLM",
        COMPLETIONS,
        {
            "top_p": 1.0,
            "top_k": -1,
            "max_tokens": 8,
            "temperature": 1.0,
            "stop_token_ids": None,
            "ignore_eos": False,
            "skip_special_tokens": True,
            "frequency_penalty": 0.0,
            "return_tokens_as_token_ids": True,
            "logprobs": 0,
            "use_beam_search": False,
            "stream": False,
            "prompt": IDS,
        },
    ),
    Recorded(
        "vllm-router completion",
        COMPLETIONS,
        {
            "model": "trial",
            "prompt": IDS,
            "max_tokens": 2,
            "stream": False,
            "echo": False,
            **ROUTED,
        },
    ),
    Recorded(
        "vllm-router chat",
        CHAT,
        {
            "model": "trial",
            "messages": HISTORY[:3],
            "stream": False,
            "max_tokens": 2,
            "logprobs": False,
            "tools": TOOLS,
            "continue_final_message": False,
            "separate_reasoning": True,
            "stream_reasoning": True,
            "include_reasoning": True,
            **ROUTED,
        },
    ),
    Recorded("vllm-router render", COMPLETIONS + "/render", {"prompt": "x", **ROUTED}),
    Recorded(
        "vllm-router generate",
        "/generate",
        {
            "input_ids": IDS,
            "sampling_params": {"max_new_tokens": 2},
            "stream": False,
            "return_logprob": False,
            "return_hidden_states": False,
        },
    ),
    Recorded(
        "sglang-router chat",
        CHAT,
        {
            "model": "trial",
            "messages": HISTORY[:3],
            "max_completion_tokens": 2,
            "stream": False,
            "tool_choice": "auto",
            "tools": TOOLS,
            "separate_reasoning": True,
            "stream_reasoning": True,
            **ROUTED,
        },
    ),
    Recorded(
        "sglang-router generate",
        "/generate",
        {"model": None, "text": "ab", "sampling_params": {"max_new_tokens": 2}, **SGLANG_ROUTED},
    ),
    Recorded("sglang-router probes", "/model_info", method="GET"),
    Recorded("sglang-router probes", "/server_info", method="GET"),
    Recorded("openai history", CHAT, {"messages": HISTORY, "max_completion_tokens": 4}),
    Recorded(
        "openai defaults",
        CHAT,
        {
            "messages": USER,
            "max_completion_tokens": 4,
            "store": False,
            "response_format": None,
            "tools": None,
            "tool_choice": None,
            "metadata": {"a": "b"},
            "user": "me",
            "logit_bias": None,
            "service_tier": "auto",
            "parallel_tool_calls": True,
            "modalities": ["text"],
        },
    ),
    Recorded(
        "verifiers chat",
        CHAT,
        {
            "messages": USER,
            "max_completion_tokens": 4,
            "logprobs": True,
            "return_token_ids": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "tools": None,
            "n": 1,
        },
    ),
    Recorded(
        "OpenRLHF, ART, atropos",
        COMPLETIONS,
        {"prompt": "a", "n": 4, "max_tokens": 8, "stop": ["</s>"], "logprobs": 1},
    ),
    Recorded(
        "vLLM of old",
        COMPLETIONS,
        {
            "prompt": IDS,
            "max_tokens": 2,
            "guided_json": None,
            "guided_regex": None,
            "logits_processors": None,
            "detokenize": True,
            "bad_words": [],
            "best_of": 1,
            "length_penalty": 1.0,
        },
    ),
]
