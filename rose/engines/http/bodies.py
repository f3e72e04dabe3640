"""A turn as a request: in vLLM's fields for `/v1/completions`, in SGLang's for `/generate`."""

from typing import Any, Final

import msgspec

from rose.engines.http.facts import Dialect, EngineFacts
from rose.errors import InvalidArgument
from rose.scheduler.worker import TurnRequest

# Fields whose answer vLLM does not stream.
_UNSTREAMED: Final = frozenset({"prompt_logprobs", "echo"})
# Fields of vLLM that SGLang has under the same name.
_SHARED: Final = frozenset(
    {"stop", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"}
)
_SEED_BITS: Final = 40
_SGLANG_SEED_BITS: Final = 31
# An odd number, so that no two positions of a turn get the same seed.
_SPREAD: Final = 0x9E3779B97F4A7C15
_encode = msgspec.json.Encoder().encode


def path_of(facts: EngineFacts) -> str:
    """Return the route that runs turns."""
    return "/generate" if facts.dialect is Dialect.SGLANG else "/v1/completions"


def body_of(request: TurnRequest, facts: EngineFacts) -> bytes:
    """Return the body of a turn's request.

    Raises:
        InvalidArgument: the engine lacks an option of the turn.
    """
    make = _sglang if facts.dialect is Dialect.SGLANG else _completion
    return _encode(make(request, facts))


def is_streamed(request: TurnRequest) -> bool:
    """Return whether the engine can send the tokens of a turn one by one."""
    return not (request.options.is_whole and _UNSTREAMED & request.options.fields.keys())


def seed_at(request: TurnRequest, facts: EngineFacts) -> int:
    """Return the seed for the rest of a turn.

    An engine that draws its random numbers in a row would repeat the first ones of the turn, so
    the rest of the turn gets another seed there.
    """
    if facts.has_position_seeds or request.first_token == 0:
        return request.seed
    return (request.seed ^ (request.first_token * _SPREAD)) & ((1 << _SEED_BITS) - 1)


def _completion(request: TurnRequest, facts: EngineFacts) -> dict[str, Any]:
    options = request.options
    body = {
        "model": facts.model,
        "prompt": request.prompt,
        "max_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "stop_token_ids": request.stop_tokens,
        "ignore_eos": options.ignore_eos,
        "min_tokens": max(0, options.min_tokens - request.first_token),
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "logprobs": options.logprobs,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if is_streamed(request):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if options.has_seed or facts.has_position_seeds:
        body["seed"] = seed_at(request, facts)
    if facts.dialect is Dialect.ROSE:
        body["return_weight_versions"] = True
    return body | dict(options.fields)


def _sglang(request: TurnRequest, facts: EngineFacts) -> dict[str, Any]:
    options = request.options
    unknown = sorted(options.fields.keys() - _SHARED)
    if unknown:
        raise InvalidArgument(f"SGLang engines have no {', '.join(unknown)}")
    sampling = {
        "max_new_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "stop_token_ids": request.stop_tokens,
        "ignore_eos": options.ignore_eos,
        "min_new_tokens": max(0, options.min_tokens - request.first_token),
        "top_p": options.top_p,
        "top_k": options.top_k or -1,
        "min_p": options.min_p,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        **options.fields,
    }
    if options.has_seed:
        sampling["sampling_seed"] = seed_at(request, facts) & ((1 << _SGLANG_SEED_BITS) - 1)
    return {
        "input_ids": request.prompt,
        "sampling_params": sampling,
        "return_logprob": True,
        "top_logprobs_num": options.logprobs,
        "stream": True,
    }
