"""From a body to what the service is asked for: sampling parameters within the fleet's limits."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rose.adapters.bodies import (
    Body,
    CompletionBody,
    Sampled,
    SamplingFields,
    SglangBody,
    WantedVersions,
)
from rose.adapters.limits import check_count
from rose.adapters.sequences import Ask, seed_of
from rose.adapters.service import RolloutService
from rose.adapters.text import Tokenizer
from rose.errors import InvalidArgument
from rose.scheduler.turns import Sampling
from rose.scheduler.versions import ANY, VersionRange
from rose.scheduler.worker import NO_OPTIONS, Options

# No vocabulary is as large: SGLang writes 2**30 for the whole of it, and AReaL 10**8.
_TOP_K_ALL: Final = 1 << 24
_JSON_TYPES: Final = {"json_object": "json_object", "json_schema": "json"}


def asks_of(
    body: Body,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int | None,
    logprobs: int,
    service: RolloutService,
    tokenizer: Tokenizer | None,
) -> list[Ask]:
    """Return the sequences of a request, in order of their prompts.

    Args:
        body: body of the request.
        prompts: token ids of each prompt.
        max_tokens: largest number of tokens to generate per sequence; None: all that fit into the
            context.
        logprobs: number of alternatives that the answer reports for each token.
        service: service that runs the sequences.
        tokenizer: tokenizer that finds stop texts, or None.

    Raises:
        ContextTooLong: a prompt and its output do not fit into the context.
        InvalidArgument: a value is one that the fleet cannot honour, or there are too many
            sequences.
    """
    fields = body if isinstance(body, Sampled) else body.sampling_params
    count = fields.count
    check_count(len(prompts) * count, service.limits)
    if logprobs == 1 and "logprobs" not in service.facts().features:
        logprobs = 0  # the sampled token's own is reported; clients that want one mean this
    options = _options(body, fields, logprobs)
    stop = _stop_texts(fields, tokenizer)
    stops = tuple(fields.stop_token_ids or ())
    versions = _range(body.weight_version)
    temperature = 1.0 if fields.temperature is None else fields.temperature
    asks: list[Ask] = []
    for prompt in prompts:
        if not prompt:
            raise InvalidArgument("prompt must have at least one token")
        output = service.room(len(prompt)) if max_tokens is None else max(1, max_tokens)
        sampling = Sampling(output, temperature, stops, options=options)
        for _ in range(count):
            seed = seed_of(fields.seed, len(asks))
            asks.append(
                Ask(
                    prompt=tuple(prompt),
                    sampling=sampling,
                    seed=seed,
                    versions=versions,
                    stop=stop,
                    include_stop=bool(fields.include_stop_str_in_output),
                    skip_special_tokens=fields.skip_special_tokens is not False,
                )
            )
    return asks


def _range(wanted: WantedVersions | None) -> VersionRange:
    return ANY if wanted is None else wanted.range()


def _stop_texts(fields: SamplingFields, tokenizer: Tokenizer | None) -> tuple[str, ...]:
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    if stop and tokenizer is None:
        raise InvalidArgument("stop must be null: this service has no tokenizer to find texts with")
    if not all(stop):
        raise InvalidArgument("stop must not have an empty text")
    return stop


def _options(body: Body, fields: SamplingFields, logprobs: int) -> Options:
    wants = dict(_wanted(body, fields, logprobs))
    if not (wants or fields.ignore_eos or body.cache_salt):
        return NO_OPTIONS
    extra = {name: value for name, value in wants.items() if name not in _OWN}
    if body.cache_salt:
        extra["cache_salt"] = body.cache_salt
    own = {name: value for name, value in wants.items() if name in _OWN}
    return Options(
        **own,
        ignore_eos=bool(fields.ignore_eos),
        fields=extra,
        is_whole=not _WHOLE.isdisjoint(wants),
    )


# Options with a field of their own; the others are passed to the engine by their names.
_OWN: Final = frozenset({"top_p", "top_k", "min_p", "min_tokens", "logprobs"})
# Options that depend on more than the tokens before a token: on where the output begins.
_WHOLE: Final = frozenset(
    {"presence_penalty", "frequency_penalty", "structured_outputs", "prompt_logprobs"}
)


def _wanted(body: Body, fields: SamplingFields, logprobs: int) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each option that is not at its default."""
    if fields.temperature != 0:  # the most likely token is in every set of likely tokens
        if fields.top_p is not None and fields.top_p < 1:
            yield "top_p", fields.top_p
        if fields.top_k is not None and 0 < fields.top_k < _TOP_K_ALL:
            yield "top_k", fields.top_k
        if fields.min_p:
            yield "min_p", fields.min_p
    for name in ("presence_penalty", "frequency_penalty"):
        if value := getattr(fields, name):
            yield name, value
    if fields.repetition_penalty not in {None, 1}:
        yield "repetition_penalty", fields.repetition_penalty
    if fields.min_tokens:
        yield "min_tokens", fields.min_tokens
    if fields.logit_bias:
        yield "logit_bias", fields.logit_bias
    if logprobs:
        yield "logprobs", logprobs
    if grammar := _grammar(body, fields):
        yield "structured_outputs", grammar
    if (asked := _of_prompt(body, fields)) is not None:
        yield "prompt_logprobs", asked


def _of_prompt(body: Body, fields: SamplingFields) -> int | None:
    """Return the number of alternatives for each token of the prompt; None: nothing about them."""
    if isinstance(body, SglangBody):
        start = -1 if body.logprob_start_len is None else body.logprob_start_len
        return (body.top_logprobs_num or 0) if body.return_logprob and start >= 0 else None
    if isinstance(body, CompletionBody) and body.echo and fields.prompt_logprobs is None:
        return body.logprobs
    return fields.prompt_logprobs


def _grammar(body: Body, fields: SamplingFields) -> dict[str, Any] | None:
    """Return the structure of the output in vLLM's format; None if it is free."""
    form = body.response_format if isinstance(body, Sampled) else None
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return fields.structured_outputs
    if kind not in _JSON_TYPES or fields.structured_outputs:
        raise InvalidArgument(
            f"response_format must be text, json_object or json_schema, and alone, got {kind!r:.40}"
        )
    schema = (form.get("json_schema") or {}).get("schema") if kind == "json_schema" else True
    if schema is None:
        raise InvalidArgument("response_format must have json_schema.schema")
    return {_JSON_TYPES[kind]: schema}
