"""Answers in token ids, for vLLM's `/inference/v1/generate` and SGLang's `/generate`."""

import uuid
from collections.abc import Sequence
from typing import Any

from rose.adapters.bodies import GenerateBody, SglangBody
from rose.adapters.sequences import SequenceInFlight
from rose.adapters.text import Tokenizer
from rose.adapters.versions import spans


def vllm_tokens(body: GenerateBody, sequences: Sequence[SequenceInFlight]) -> dict[str, Any]:
    """Return the answer of `/inference/v1/generate`."""
    wants = body.sampling_params.logprobs is not None
    choices = [
        {
            "index": place,
            "token_ids": one.tokens,
            "logprobs": {"content": _content(one)} if wants else None,
            "finish_reason": one.finish_reason,
            "weight_versions": spans(one.versions),
        }
        for place, one in enumerate(sequences)
    ]
    return {"request_id": body.request_id or f"generate-{uuid.uuid4().hex}", "choices": choices}


def _content(sequence: SequenceInFlight) -> list[dict[str, Any]]:
    pairs = zip(sequence.tokens, sequence.logprobs, strict=True)
    return [
        {"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []}
        for token, logprob in pairs
    ]


def sglang_tokens(
    body: SglangBody, sequences: Sequence[SequenceInFlight], tokenizer: Tokenizer | None
) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the answer of `/generate`: one object, or a list of `n` objects if `n` > 1."""
    answers = [_sglang(body, one, tokenizer) for one in sequences]
    return answers if (body.sampling_params.n or 1) > 1 else answers[0]


def _sglang(
    body: SglangBody, sequence: SequenceInFlight, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    tokens, versions = sequence.tokens, sequence.versions
    finish: dict[str, Any] = {"type": sequence.finish_reason}
    if sequence.finish_reason == "stop":
        finish["matched"] = tokens[-1]
    meta: dict[str, Any] = {
        "id": body.rid or uuid.uuid4().hex,
        "finish_reason": finish,
        "prompt_tokens": len(sequence.ask.prompt),
        "completion_tokens": len(tokens),
        "cached_tokens": 0,
    }
    if versions:
        # Trainers limit staleness by `weight_version`, so it is the version of the first token.
        meta["weight_version"] = meta["weight_version_start"] = str(versions[0])
        meta["weight_version_end"] = str(versions[-1])
    if body.return_logprob:
        pairs = zip(sequence.logprobs, tokens, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
    text = ""
    if tokenizer is not None:
        text = "".join(sequence.pieces)
    return {"text": text, "output_ids": tokens, "meta_info": meta}
