"""Bodies of the routes for trainers. FastAPI reads them, so they are pydantic's."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rose.scheduler.checks import COUNT_MAX

Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


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


class AbortBody(BaseModel):
    """Body of `/abort_request`."""

    rid: str | None = None
    abort_all: bool = False


class PauseBody(BaseModel):
    """Body of `/pause_generation`; the modes are those of SGLang."""

    mode: str = "abort"


class TokenizeBody(BaseModel):
    """Body of `/tokenize`: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(BaseModel):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: list[Count]
