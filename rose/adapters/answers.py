"""Answers to completion requests, whole or streamed, in the format of vLLM and OpenAI."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from rose.adapters.bodies import ChatBody, CompletionBody
from rose.adapters.generation import Generation
from rose.adapters.guard import error_body, status_of
from rose.adapters.sequences import SequenceInFlight
from rose.adapters.text import Tokenizer
from rose.adapters.versions import spans
from rose.errors import RoseError

Choice = dict[str, Any]
B = TypeVar("B", CompletionBody, ChatBody)
_DONE: Final = b"data: [DONE]\n\n"


@dataclass(slots=True)
class _Streamed:
    """The part of a sequence that was already sent to the client."""

    tokens: int = 0
    pieces: int = 0  # of its text
    is_over: bool = False


@dataclass(slots=True)
class _Piece:
    """Tokens of a sequence that were not sent yet.

    Args:
        place: index of the sequence in its request.
        start: index of the first new token in the sequence.
        end: index after the last new token.
        text: text of the new tokens.
        is_last: whether no further tokens follow.
    """

    place: int
    start: int
    end: int
    text: str
    is_last: bool


@dataclass(slots=True)
class Answer(Generic[B]):
    """The answer to one request.

    Args:
        body: body of the request.
        generation: sequences of the request.
        model: name of the model.
        created: time of the answer, seconds since 1970.
        identity: id of the answer.
        tokenizer: tokenizer that decodes the tokens; None: the answer has no text.
    """

    body: B
    generation: Generation
    model: str
    created: int
    identity: str
    tokenizer: Tokenizer | None
    _streamed: list[_Streamed] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Prepare the text of each sequence."""
        self._streamed = [_Streamed() for _ in self.generation.sequences]

    async def whole(self) -> dict[str, Any]:
        """Wait until all sequences have ended, and return the answer.

        Raises:
            RoseError: as in `Generation.finished`.
        """
        await self.generation.finished()
        choices = [self._choice(piece, is_whole=True) for piece in self._pieces()]
        return {**self._head(is_chunk=False), "choices": choices, "usage": self._usage()}

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the answer as server-sent events, token by token. An error is the last event."""
        head = self._head(is_chunk=True)
        options = self.body.stream_options
        wants_usage = options is not None and bool(options.include_usage)
        if wants_usage:
            head["usage"] = None
        try:
            if isinstance(self.body, ChatBody):
                for place in range(len(self._streamed)):
                    start = {"role": "assistant", "content": ""}
                    choice = {"index": place, "delta": start, "finish_reason": None}
                    yield _event({**head, "choices": [choice]})
            async for _ in self.generation.changes():
                for piece in self._pieces():
                    yield _event({**head, "choices": [self._choice(piece, is_whole=False)]})
            if wants_usage:
                yield _event({**head, "choices": [], "usage": self._usage()})
        except RoseError as error:
            yield _event(error_body(status_of(error), str(error)))
        yield _DONE

    def _pieces(self) -> list[_Piece]:
        """Return the tokens of each sequence that were not sent yet."""
        pieces = []
        for place, (streamed, sequence) in enumerate(
            zip(self._streamed, self.generation.sequences, strict=True)
        ):
            start, end, is_last = streamed.tokens, len(sequence.tokens), sequence.is_over
            if streamed.is_over or (start == end and not is_last):
                continue
            texts = sequence.pieces
            text = "".join(texts[streamed.pieces :])
            streamed.pieces = len(texts)
            streamed.tokens, streamed.is_over = end, is_last
            pieces.append(_Piece(place, start, end, text, is_last))
        return pieces

    def _head(self, *, is_chunk: bool) -> dict[str, Any]:
        kind = "text_completion"
        if isinstance(self.body, ChatBody):
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        return {
            "id": self.identity,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _usage(self) -> dict[str, int]:
        sequences = self.generation.sequences
        prompts = sequences[:: self.body.n or 1]
        read = sum(len(one.ask.prompt) for one in prompts)
        generated = sum(len(one.tokens) for one in sequences)
        return {
            "prompt_tokens": read,
            "completion_tokens": generated,
            "total_tokens": read + generated,
        }

    def _choice(self, piece: _Piece, *, is_whole: bool) -> Choice:
        sequence = self.generation.sequences[piece.place]
        choice: Choice = {"index": piece.place}
        if isinstance(self.body, ChatBody):
            content = {"content": piece.text}
            choice["message" if is_whole else "delta"] = (
                {"role": "assistant", **content} if is_whole else content
            )
            logprobs = self._chat_logprobs(sequence, piece) if self.body.logprobs else None
        else:
            choice["text"] = piece.text
            wants = self.body.logprobs is not None
            logprobs = self._logprobs(sequence, piece) if wants else None
        choice["logprobs"] = logprobs
        choice["finish_reason"] = sequence.finish_reason if piece.is_last else None
        if self.body.return_token_ids:
            choice["token_ids"] = sequence.tokens[piece.start : piece.end]
            if piece.start == 0:
                choice["prompt_token_ids"] = sequence.ask.prompt
        if piece.is_last:
            choice["stop_reason"] = self._stop_reason(sequence)
            versions = sequence.versions
            if versions:
                choice["weight_version"] = {"start": versions[0], "end": versions[-1]}
            if self.body.return_weight_versions:
                choice["weight_versions"] = spans(versions)
        return choice

    def _stop_reason(self, sequence: SequenceInFlight) -> int | str | None:
        return sequence.stop_reason

    def _token_text(self, token: int) -> str:
        if self.tokenizer is None or self.body.return_tokens_as_token_ids:
            return f"token_id:{token}"
        return str(self.tokenizer.decode([token], skip_special_tokens=False))

    def _logprobs(self, sequence: SequenceInFlight, piece: _Piece) -> dict[str, Any]:
        texts = [self._token_text(token) for token in sequence.tokens[piece.start : piece.end]]
        logprobs = sequence.logprobs[piece.start : piece.end]
        pairs = zip(texts, logprobs, strict=True)
        offsets, at = [], 0
        for text in texts:
            offsets.append(at)
            at += len(text)
        return {
            "tokens": texts,
            "token_logprobs": logprobs,
            "top_logprobs": [{text: logprob} for text, logprob in pairs],
            "text_offset": offsets,
        }

    def _chat_logprobs(self, sequence: SequenceInFlight, piece: _Piece) -> dict[str, Any]:
        content = []
        for place in range(piece.start, piece.end):
            text = self._token_text(sequence.tokens[place])
            logprob = sequence.logprobs[place]
            one = {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace"))}
            content.append({**one, "top_logprobs": []})
        return {"content": content}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
