"""The routes that generate tokens. They are plain ASGI, because each token of a stream passes."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec

from rose.adapters.asking import asks_of
from rose.adapters.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    GenerateBody,
    SglangBody,
)
from rose.adapters.exchange import Exchange
from rose.adapters.generation import Generation
from rose.adapters.http_errors import Denied, body_of
from rose.adapters.logprobs import TokenTexts
from rose.adapters.openai_answers import OpenAiAnswer
from rose.adapters.parsing import parsed
from rose.adapters.pieces import OutputPieces
from rose.adapters.prompting import is_batch, prompts_of
from rose.adapters.sequences import Ask
from rose.adapters.service import RolloutService
from rose.adapters.token_answers import SglangTokens, VllmTokens
from rose.clock import unix_s
from rose.errors import RoseError, Unavailable

PATHS: Final[dict[str, type[Body]]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/inference/v1/generate": GenerateBody,
    "/generate": SglangBody,
}
# Headers with the name of a conversation: SkyRL and prime-rl send the first, slime the second.
_SESSIONS: Final = (b"x-session-id", b"x-smg-routing-key")
# Answers with more tokens are decoded in another thread.
_LONG_TOKENS: Final = 4096


class Answer(Protocol):
    """The answer to one request in one format."""

    def whole(self) -> Any:
        """Return the answer of a generation that is over."""
        ...

    def first(self) -> bytes:
        """Return the events at the beginning of a stream."""
        ...

    def news(self) -> bytes:
        """Return the events of all new tokens."""
        ...

    def last(self) -> bytes:
        """Return the events after the last token."""
        ...


class Generating:
    """Answers the requests that generate tokens.

    Args:
        service: service that generates them.
    """

    def __init__(self, service: RolloutService) -> None:
        self._service = service
        self._texts = TokenTexts(service.tokenizer)
        self._running: dict[Generation, str | None] = {}  # with the request's id

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request.

        Raises:
            RoseError: the request is refused or failed, and nothing was sent yet.
        """
        kind = PATHS[exchange.scope["path"]]
        body = await parsed(exchange.body, kind)
        if body.model and body.model != (name := self._service.model_name()):
            raise Denied(404, f"model must be '{name}', got '{body.model}'")
        generation, answer = await self._begun(exchange, body)
        self._running[generation] = _identity(body)
        here = asyncio.current_task()
        leave: Callable[[], object] = here.cancel if here is not None else generation.close
        watching = asyncio.ensure_future(exchange.watch(leave))
        try:
            if body.stream:
                await exchange.stream(_events(generation, answer))
            else:
                await generation.finished()
                count = sum(len(one.tokens) for one in generation.sequences)
                is_long = self._service.tokenizer is not None and count > _LONG_TOKENS
                made = await asyncio.to_thread(answer.whole) if is_long else answer.whole()
                await exchange.answer(made)
        except asyncio.CancelledError:
            if not exchange.is_gone:
                raise
        finally:
            watching.cancel()
            generation.close()
            self._running.pop(generation, None)

    def abort(self, request: str | None) -> int:
        """End running requests with the tokens that they have.

        Args:
            request: id of a request, or the beginning of ids, as in SGLang; None: all requests.

        Returns:
            Number of requests that were ended.
        """
        chosen = [
            generation
            for generation, own in self._running.items()
            if request is None or (own is not None and own.startswith(request))
        ]
        for generation in chosen:
            for sequence in generation.sequences:
                sequence.abort()
        return len(chosen)

    def fail(self) -> None:
        """End running requests with an error, because the service stops."""
        for generation in tuple(self._running):
            generation.fail(Unavailable("the service stops: send the request again"))

    async def _begun(self, exchange: Exchange, body: Body) -> tuple[Generation, Answer]:
        prompts = await prompts_of(body, exchange.body, self._service.tokenizer)
        max_tokens, logprobs = _limits(body)
        asks = asks_of(
            body,
            prompts,
            max_tokens=max_tokens,
            logprobs=logprobs,
            service=self._service,
            tokenizer=self._service.tokenizer,
        )
        generation = self._service.generate(
            asks, session=_session(exchange, body), request=_key(exchange, body), job=body.job or 0
        )
        return generation, self._answer(body, generation, asks)

    def _answer(self, body: Body, generation: Generation, asks: list[Ask]) -> Answer:
        tokenizer = self._service.tokenizer
        if self._texts.tokenizer is not tokenizer:
            self._texts = TokenTexts(tokenizer)
        pieces = OutputPieces(generation, has_text=not isinstance(body, GenerateBody))
        match body:
            case GenerateBody():
                return VllmTokens(body, generation, pieces)
            case SglangBody():
                is_list = is_batch(body) or len(asks) > 1
                return SglangTokens(body, generation, pieces, self._texts, is_list=is_list)
        prefix = "chatcmpl" if isinstance(body, ChatBody) else "cmpl"
        identity = f"{prefix}-{body.request_id or uuid.uuid4().hex}"
        head = {"id": identity, "created": unix_s(), "model": self._service.model_name()}
        has_text = tokenizer is not None
        return OpenAiAnswer(body, generation, pieces, self._texts, has_text=has_text, head=head)


def _limits(body: Body) -> tuple[int | None, int]:
    """Return the most tokens of an output, and the alternatives that are reported per token."""
    match body:
        case CompletionBody():
            # An echo without output is scored together with one token, which is left out.
            return 1 if body.echo and body.max_tokens == 0 else body.max_tokens, body.logprobs or 0
        case ChatBody():
            return body.max_completion_tokens or body.max_tokens, body.top_logprobs or 0
        case GenerateBody():
            return body.sampling_params.max_tokens, body.sampling_params.logprobs or 0
    return body.sampling_params.max_new_tokens, body.top_logprobs_num or 0


def _session(exchange: Exchange, body: Body) -> str | None:
    """Return the name of the conversation that a request belongs to, if it has one."""
    if body.session_id is not None:
        return str(body.session_id)
    return next((name for name in map(exchange.header, _SESSIONS) if name), None)


def _identity(body: Body) -> str | None:
    return (body.rid if isinstance(body, SglangBody) else None) or body.request_id


def _key(exchange: Exchange, body: Body) -> str | None:
    """Return the key by which a repeated request is known; None if it must run again.

    A request is repeated if it has the same `Idempotency-Key`, or the same id in its body, and the
    same body. `X-Request-Id` is not such a key: proxies set it, and programs pass it on to all
    requests that they make for one of theirs.
    """
    given = exchange.header(b"idempotency-key") or _identity(body)
    if not given:
        return None
    digest = blake2b(exchange.body, digest_size=16).hexdigest()
    return f"{exchange.scope['path']} {given} {digest}"


async def _events(generation: Generation, answer: Answer) -> AsyncIterator[bytes]:
    """Yield the events of a stream. An error is the last event."""
    try:
        if first := answer.first():
            yield first
        async for _ in generation.changes():
            if news := answer.news():
                yield news
        if last := answer.last():
            yield last
    except RoseError as error:
        yield b"data: " + msgspec.json.encode(body_of(error)) + b"\n\n"
