"""Bodies of the requests that generate tokens, in the formats of vLLM, OpenAI and SGLang."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field

from rose.scheduler.checks import COUNT_MAX
from rose.scheduler.versions import VersionRange

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Some = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
# msgspec's schema of a number without bounds is complete; a seed may be any whole number.
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Share = Annotated[float, Meta(ge=0, le=1)]
# vLLM and OpenAI return at most this many alternatives for a token.
Alternatives = Annotated[int, Meta(ge=0, le=20)]
_IDS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
# One prompt of ids or text, or several. Only the first level is checked on parsing: the union of
# four lists is not a type of msgspec.
Prompts = Annotated[
    str | list[Any],
    Meta(
        extra_json_schema={
            "anyOf": [{"type": "string"}, _TEXTS, _IDS, {"type": "array", "items": _IDS}]
        }
    ),
]


class WantedVersions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Versions of weights that may generate a request's tokens."""

    least: Count | None = field(name="min", default=None)
    min_version: Count | None = None
    only: Count | None = field(name="exact", default=None)
    exact_version: Count | None = None

    def range(self) -> VersionRange:
        """Return the range in the service's own type."""
        return VersionRange(
            self.min_version if self.least is None else self.least,
            self.exact_version if self.only is None else self.only,
        )


class StreamOptions(Struct, kw_only=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """Sampling fields that all formats have in common; null has the meaning of the default."""

    temperature: Annotated[float, Meta(ge=0, le=1000)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: _Share | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    logit_bias: dict[str, float] | None = None
    n: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Count | None = None
    structured_outputs: dict[str, Any] | None = None
    prompt_logprobs: Alternatives | None = None

    @property
    def count(self) -> int:
        """Number of sequences per prompt."""
        return self.n or 1


class RequestFields(Struct, kw_only=True):
    """Fields of a request whose sampling fields are a part of their own."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    weight_version: WantedVersions | None = None
    session_id: str | int | None = None
    request_id: str | None = None
    job: Count | None = None
    cache_salt: str | None = None


class Sampled(SamplingFields, kw_only=True):
    """Fields that completions and chat completions have in common."""

    # As in `RequestFields`: a struct of msgspec cannot inherit fields from two others.
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    weight_version: WantedVersions | None = None
    session_id: str | int | None = None
    request_id: str | None = None
    job: Count | None = None
    cache_salt: str | None = None
    return_weight_versions: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None


class CompletionBody(Sampled, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: Prompts
    max_tokens: Count | None = 16  # as in OpenAI's API; null: all that fit
    logprobs: Alternatives | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None


class ChatBody(Sampled, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_tokens: Some | None = None
    max_completion_tokens: Some | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None


class TokenSampling(SamplingFields, kw_only=True):
    """Sampling parameters of `/inference/v1/generate`."""

    max_tokens: Some | None = 16
    logprobs: Alternatives | None = None


class GenerateBody(RequestFields, kw_only=True):
    """Body of `/inference/v1/generate`: token ids in and out."""

    token_ids: Annotated[list[Count], Meta(min_length=1)]
    sampling_params: TokenSampling = field(default_factory=TokenSampling)


class SglangSampling(SamplingFields, kw_only=True):
    """Sampling parameters of `/generate`."""

    max_new_tokens: Some | None = 128
    min_new_tokens: Count | None = None
    sampling_seed: int | None = None
    no_stop_trim: bool | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    def __post_init__(self) -> None:
        """Give fields of SGLang the names that all formats have in common."""
        self.seed = self.sampling_seed if self.seed is None else self.seed
        self.min_tokens = self.min_new_tokens if self.min_tokens is None else self.min_tokens
        self.include_stop_str_in_output = self.no_stop_trim
        given = {"json": self.json_schema, "regex": self.regex, "grammar": self.ebnf}
        grammars = {name: text for name, text in given.items() if text is not None}
        self.structured_outputs = self.structured_outputs or grammars or None


class SglangBody(RequestFields, kw_only=True):
    """Body of `/generate`, in the format of SGLang: prompts of token ids or text."""

    input_ids: list[Any] | None = None
    text: str | list[str] | None = None
    sampling_params: SglangSampling = field(default_factory=SglangSampling)
    rid: str | None = None
    return_logprob: bool | None = None
    logprob_start_len: Annotated[int, Meta(ge=-1)] | None = None
    top_logprobs_num: Alternatives | None = None
    return_text_in_logprobs: bool | None = None


Body = CompletionBody | ChatBody | GenerateBody | SglangBody


def schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON schema of each body by its name, and the schemas that these refer to."""
    kinds = (CompletionBody, ChatBody, GenerateBody, SglangBody)
    made, parts = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for kind in (GenerateBody, SglangBody):  # null stands for the defaults
        fields = parts[kind.__name__]["properties"]
        fields["sampling_params"] = {"anyOf": [fields["sampling_params"], {"type": "null"}]}
    return {kind.__name__: one for kind, one in zip(kinds, made, strict=True)}, parts
