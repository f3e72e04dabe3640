"""The HTTP application of the rollout service: FastAPI routes over `RolloutService`."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from rose import __version__
from rose.adapters.answers import Answer
from rose.adapters.bodies import (
    ChatBody,
    CompletionBody,
    GenerateBody,
    SglangBody,
)
from rose.adapters.control import add_control, add_status
from rose.adapters.generation import Generation
from rose.adapters.guard import Guard, error_body, headers_of, status_of
from rose.adapters.json_answer import Json
from rose.adapters.sequences import SequenceInFlight
from rose.adapters.service import RolloutService
from rose.adapters.text import Tokenizer
from rose.adapters.token_answers import sglang_tokens, vllm_tokens
from rose.adapters.weight_updates import WeightSource, WeightUpdates
from rose.clock import unix_s
from rose.errors import RoseError

T = TypeVar("T")
# Error responses of the routes, for the OpenAPI schema.
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"description": "The request breaks a rule; the message names the rule."},
    401: {"description": "The bearer token is missing or wrong."},
    404: {"description": "The model is not served."},
    408: {"description": "The body took too long to arrive."},
    409: {
        "description": "No worker has weights that the request accepts; `versions` has the number "
        "of workers by version."
    },
    413: {"description": "The body is too large."},
    429: {"description": "Too many sequences are in flight; retry after Retry-After seconds."},
    501: {"description": "The service has no source of weights."},
    503: {"description": "The service has no workers, or is closing."},
    504: {"description": "A time limit was reached."},
}


class _Stream(StreamingResponse):
    """A streamed answer. At its end the generation is closed, even if the client never reads."""

    def __init__(self, answer: Answer[Any]) -> None:
        super().__init__(answer.events(), media_type="text/event-stream")
        self._generation = answer.generation

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Stream until the answer is complete or the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()


def rollout_app(
    service: RolloutService,
    *,
    model: str,
    dtype: str = "bfloat16",
    tokenizer: Tokenizer | None = None,
    token: str | None = None,
    weights: WeightSource | None = None,
) -> Callable[..., Awaitable[None]]:
    """Return the ASGI application of an open service.

    Args:
        service: service that generates the tokens.
        model: name of the model; requests may name no other.
        dtype: dtype of the weights, as `/server_info` reports it.
        tokenizer: tokenizer for text and chat; None: only token ids are accepted and returned.
        token: bearer token that clients must send; None: no token is needed.
        weights: function that makes workers commit the versions which clients send over HTTP; None:
            versions come from `rose.publish` only.
    """
    service.tokenizer = service.tokenizer or tokenizer
    app = FastAPI(
        title="rose rollout service", version=__version__, responses=_ERRORS, docs_url=None
    )
    _add_errors(app, service)
    _add_completions(app, service, model, tokenizer)
    _add_token_routes(app, service, model, tokenizer)
    add_status(app, service, model, dtype, has_source=weights is not None)
    add_control(app, service, WeightUpdates(service, weights))
    return Guard(app, service=service, token=token)


def _add_errors(app: FastAPI, service: RolloutService) -> None:
    def answer(status: int, message: str, there: dict[int, int] | None = None) -> Response:
        return Json(error_body(status, message, there), status, headers_of(status))

    async def invalid(_: Request, error: Exception) -> Response:
        found = error.errors() if isinstance(error, RequestValidationError) else []
        return answer(400, "; ".join(map(_sentence, found[:3])) or "the body must be JSON")

    async def http(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = str(getattr(error, "detail", error))
        made = answer(status, message)
        made.headers.update(getattr(error, "headers", None) or {})
        return made

    async def refused(_: Request, error: Exception) -> Response:
        status = status_of(error) if isinstance(error, RoseError) else 500
        return answer(status, str(error), service.versions() if status == 409 else None)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RoseError, refused)


def _sentence(error: Any) -> str:
    """Return one error of pydantic as `place: rule`."""
    place = ".".join(str(part) for part in error["loc"] if part != "body") or "the body"
    return f"{place}: {error['msg'].removeprefix('Value error, ')}"


def _add_completions(
    app: FastAPI, service: RolloutService, model: str, tokenizer: Tokenizer | None
) -> None:
    def begin(body: CompletionBody | ChatBody, max_tokens: int | None) -> Generation:
        _check_model(body.model, model)
        prompts = body.prompts(tokenizer)
        asks = body.asks(prompts, max_tokens, body.weight_version, service, tokenizer)
        return service.generate(asks)

    async def reply(answer: Answer[Any], request: Request) -> Response:
        if answer.body.stream:
            return _Stream(answer)
        async with answer.generation:
            return Json(await _unless_gone(answer.whole(), request))

    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Complete prompts of token ids, or of text if the service has a tokenizer."""
        generation = begin(body, body.max_tokens)
        identity = f"cmpl-{uuid.uuid4().hex}"
        return await reply(Answer(body, generation, model, unix_s(), identity, tokenizer), request)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        """Answer a conversation. The service must have a tokenizer with a chat template."""
        generation = begin(body, body.max_completion_tokens or body.max_tokens)
        identity = f"chatcmpl-{uuid.uuid4().hex}"
        return await reply(Answer(body, generation, model, unix_s(), identity, tokenizer), request)


def _check_model(asked: str | None, model: str) -> None:
    if asked not in (None, "", model):
        raise HTTPException(404, f"model must be '{model}', got '{asked}'")


def _add_token_routes(
    app: FastAPI, service: RolloutService, model: str, tokenizer: Tokenizer | None
) -> None:
    async def finished(
        prompt: list[int],
        max_tokens: int | None,
        body: GenerateBody | SglangBody,
        request: Request,
    ) -> Sequence[SequenceInFlight]:
        sampling, wanted = body.sampling_params, body.weight_version
        asks = sampling.asks([prompt], max_tokens, wanted, service, tokenizer)
        async with service.generate(asks) as generation:
            return await _unless_gone(generation.finished(), request)

    @app.post("/inference/v1/generate")
    async def inference(body: GenerateBody, request: Request) -> Response:
        """Complete a prompt of token ids, in the vLLM format that SkyRL, prime-rl and TRL use."""
        _check_model(body.model, model)
        limit = body.sampling_params.max_tokens
        sequences = await finished(body.token_ids, limit, body, request)
        return Json(vllm_tokens(body, sequences))

    @app.post("/generate")
    async def generate(body: SglangBody, request: Request) -> Response:
        """Complete a prompt of token ids, in the SGLang format that slime and miles use."""
        limit = body.sampling_params.max_new_tokens
        sequences = await finished(body.input_ids, limit, body, request)
        return Json(sglang_tokens(body, sequences, tokenizer))


async def _unless_gone(work: Awaitable[T], request: Request) -> T:
    """Wait for `work` and return its result; cancel it if the client disconnects.

    Raises:
        HTTPException: the client has disconnected, so nobody reads the answer.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(499, "the client has disconnected")
        return working.result()
    finally:
        for one in (working, watching):
            one.cancel()
            with suppress(asyncio.CancelledError, RoseError):
                await one


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
