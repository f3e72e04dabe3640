"""Bodies of HTTP requests.

Unknown fields are refused, except in `UpdateBody`. Workers sample from the full distribution. So a
field that would change the distribution, such as `top_p`, may only have its neutral value. The same
holds for fields of features that workers do not have, such as `tools`.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

from rose.adapters.sequences import Ask, seed_of
from rose.adapters.service import RolloutService
from rose.adapters.text import Tokenizer, encoded, templated
from rose.errors import InvalidArgument
from rose.scheduler.coerce import COUNT_MAX
from rose.scheduler.turns import Sampling
from rose.scheduler.versions import VersionRange
from rose.scheduler.worker import Options

# Defaults of `max_tokens` in vLLM and OpenAI, and of `max_new_tokens` in SGLang.
_TOKENS_DEFAULT: Final = 16
_TOKENS_DEFAULT_SGLANG: Final = 128
_SEED_MAX: Final = 1 << 64


def _neutral(*values: Any) -> Any:
    """Return the type of a field whose value must be null or one of `values`."""

    def check(value: Any) -> Any:
        if value is not None and value not in values:
            shown = " or ".join(map(repr, values)) or "null"
            raise ValueError(f"must be {shown}: workers support no other value")
        return value

    return Annotated[Any, AfterValidator(check), WithJsonSchema({"enum": [*values, None]})]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]


class WantedVersions(_Body):
    """Versions of weights that may generate a request's tokens."""

    at_least: Count | None = Field(
        default=None, validation_alias=AliasChoices("min", "min_version")
    )
    exact: Count | None = Field(
        default=None, validation_alias=AliasChoices("exact", "exact_version")
    )

    def range(self) -> VersionRange:
        """Return the range in the service's own type."""
        return VersionRange(self.at_least, self.exact)


class StreamOptions(_Body):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    continuous_usage_stats: _neutral(False) = None  # type: ignore[valid-type]


class SamplingFields(_Body):
    """Sampling fields that all formats have in common."""

    temperature: Annotated[float, Field(ge=0, le=1000)] | None = 1.0
    n: Annotated[int, Field(ge=1, le=1 << 16)] | None = 1
    seed: Annotated[int, Field(ge=-_SEED_MAX, le=_SEED_MAX)] | None = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    # Accepted but not used, since they do not change the tokens.
    include_stop_str_in_output: bool = False
    spaces_between_special_tokens: bool = True
    # Only neutral values are accepted.
    top_p: _neutral(1) = 1  # type: ignore[valid-type]
    top_k: _neutral(0, -1) = 0  # type: ignore[valid-type]
    min_p: _neutral(0) = 0  # type: ignore[valid-type]
    repetition_penalty: _neutral(1) = 1  # type: ignore[valid-type]
    presence_penalty: _neutral(0) = 0  # type: ignore[valid-type]
    frequency_penalty: _neutral(0) = 0  # type: ignore[valid-type]
    min_tokens: _neutral(0) = 0  # type: ignore[valid-type]
    logit_bias: _neutral({}) = None  # type: ignore[valid-type]
    stop: _neutral([]) = None  # type: ignore[valid-type]
    structured_outputs: _neutral() = None  # type: ignore[valid-type]
    prompt_logprobs: _neutral() = None  # type: ignore[valid-type]

    def asks(
        self,
        prompts: list[list[int]],
        max_tokens: int | None,
        wanted: WantedVersions | None,
        service: RolloutService,
        tokenizer: Tokenizer | None,
    ) -> list[Ask]:
        """Return the sequences of the request, in order of their prompts.

        Args:
            prompts: token ids of each prompt.
            max_tokens: largest number of tokens to generate per sequence; None: all that fit into
                the context.
            wanted: versions that may generate the tokens; None: any version.
            service: service that runs the sequences.
            tokenizer: tokenizer whose end-of-sequence token ends a sequence, or None.

        Raises:
            InvalidArgument: there are too many sequences.
        """
        count, limit = (self.n or 1), service.limits.choices
        if len(prompts) * count > limit:
            raise InvalidArgument(
                f"a request must have 1 to {limit} sequences, got {len(prompts) * count}"
            )
        versions = VersionRange() if wanted is None else wanted.range()
        stops = tuple(self.stop_token_ids or ())
        temperature = 1.0 if self.temperature is None else self.temperature
        asks: list[Ask] = []
        for prompt in prompts:
            most = max_tokens or service.room(len(prompt))
            options = Options(ignore_eos=self.ignore_eos)
            sampling = Sampling(most, temperature, stops, None, options)
            for _ in range(count):
                seed = seed_of(self.seed, len(asks))
                of = tuple(prompt), sampling, seed, versions, (), self.include_stop_str_in_output
                asks.append(Ask(*of, skip_special_tokens=self.skip_special_tokens))
        return asks


class Sampled(SamplingFields):
    """Fields that completions and chat completions have in common."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    weight_version: WantedVersions | None = None
    return_weight_versions: bool | None = False
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    # Accepted but not used, since they do not change the tokens.
    user: str | None = None
    request_id: str | None = None
    metadata: dict[str, str] | None = None
    cache_salt: str | None = None
    priority: int | None = None


class CompletionBody(Sampled):
    """Body of `/v1/completions`."""

    prompt: str | list[str] | list[Count] | list[list[Count]]
    max_tokens: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = _TOKENS_DEFAULT
    logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    echo: _neutral(False) = False  # type: ignore[valid-type]
    best_of: _neutral(1) = None  # type: ignore[valid-type]
    suffix: _neutral("") = None  # type: ignore[valid-type]
    add_special_tokens: bool = True

    def prompts(self, tokenizer: Tokenizer | None) -> list[list[int]]:
        """Return the token ids of each prompt.

        Raises:
            InvalidArgument: the prompt is empty, or it is text and there is no tokenizer.
        """
        prompt: Any = self.prompt
        if not prompt:
            raise InvalidArgument("prompt must have at least one token")
        several = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        return [
            encoded(tokenizer, one, add_special_tokens=self.add_special_tokens)
            if isinstance(one, str)
            else one
            for one in several
        ]


class TextPart(_Body):
    """A part of a message; only parts with text are accepted."""

    type: Literal["text"]
    text: str


class Message(_Body):
    """A message of a conversation."""

    role: str
    content: str | list[TextPart] | None = ""
    name: str | None = None
    tool_call_id: str | None = None

    def plain(self) -> dict[str, str]:
        """Return the message in the format of chat templates."""
        content = self.content or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        names = {"name": self.name, "tool_call_id": self.tool_call_id}
        given = {key: value for key, value in names.items() if value is not None}
        return {"role": self.role, "content": content, **given}


class ChatBody(Sampled):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    logprobs: bool | None = False
    top_logprobs: _neutral(0) = None  # type: ignore[valid-type]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: _neutral([]) = None  # type: ignore[valid-type]
    tool_choice: _neutral("none") = None  # type: ignore[valid-type]
    response_format: _neutral({"type": "text"}) = None  # type: ignore[valid-type]

    def prompts(self, tokenizer: Tokenizer | None) -> list[list[int]]:
        """Return the token ids of the conversation.

        Raises:
            InvalidArgument: as in `templated`.
        """
        options = {
            **(self.chat_template_kwargs or {}),
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
        }
        return [templated(tokenizer, [one.plain() for one in self.messages], options)]


class TokenSampling(SamplingFields):
    """Sampling parameters of `/inference/v1/generate`."""

    max_tokens: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = _TOKENS_DEFAULT
    # With 0 and with 1 the answer has only the logprob of the sampled token.
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    # Accepted but not used.
    detokenize: bool = True
    output_kind: int | None = None


class GenerateBody(_Body):
    """Body of `/inference/v1/generate`: token ids in and out."""

    token_ids: list[Count]
    sampling_params: TokenSampling = TokenSampling()
    model: str | None = None
    weight_version: WantedVersions | None = None
    stream: _neutral(False) = False  # type: ignore[valid-type]
    features: _neutral() = None  # type: ignore[valid-type]
    # Accepted but not used.
    request_id: str | None = None
    cache_salt: str | None = None
    priority: int | None = None


class SglangSampling(SamplingFields):
    """Sampling parameters of `/generate`."""

    max_new_tokens: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = _TOKENS_DEFAULT_SGLANG
    sampling_seed: Annotated[int, Field(ge=-_SEED_MAX, le=_SEED_MAX)] | None = None
    no_stop_trim: bool = True  # a stop token is always part of the output

    @model_validator(mode="after")
    def _one_seed(self) -> "SglangSampling":
        if self.seed is None:
            self.seed = self.sampling_seed
        return self


class SglangBody(_Body):
    """Body of `/generate`: one prompt of token ids, in the format of SGLang."""

    input_ids: list[Count]
    sampling_params: SglangSampling = SglangSampling()
    weight_version: WantedVersions | None = None
    return_logprob: bool = False
    stream: _neutral(False) = False  # type: ignore[valid-type]
    return_routed_experts: _neutral(False) = False  # type: ignore[valid-type]
    return_indexer_topk: _neutral(False) = False  # type: ignore[valid-type]
    top_logprobs_num: _neutral(0) = 0  # type: ignore[valid-type]
    # Accepted but not used.
    rid: str | None = None


class InitBody(_Body):
    """Body of `/init_weight_transfer_engine`."""

    init_info: dict[str, Any] = {}


class StartBody(_Body):
    """Body of `/start_weight_update`."""

    is_checkpoint_format: bool = True


class UpdateBody(BaseModel):
    """Body of `/update_weights`.

    The content of `update_info` and all other fields are passed to the weight source.
    """

    model_config = ConfigDict(extra="allow")

    update_info: dict[str, Any] = {}


class FinishBody(_Body):
    """Body of `/finish_weight_update`."""

    weight_version: Count | None = None


class VersionBody(_Body):
    """Body of `/publish_weight_version`."""

    version: Count
