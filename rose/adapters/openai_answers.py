"""Answers to completions and chat completions, whole or streamed, as vLLM and OpenAI have them."""

from typing import Any

import msgspec

from rose.adapters.bodies import ChatBody, CompletionBody
from rose.adapters.generation import Generation
from rose.adapters.logprobs import (
    TokenTexts,
    chat_logprobs,
    completion_logprobs,
    logprobs_of,
    numbered,
    of_prompt,
)
from rose.adapters.pieces import OutputPiece, OutputPieces
from rose.adapters.sequences import SequenceInFlight
from rose.adapters.versions import spans

Choice = dict[str, Any]
encode = msgspec.json.Encoder().encode


class OpenAiAnswer:
    """The answer to one request.

    Args:
        body: body of the request.
        generation: sequences of the request.
        pieces: the tokens that were not reported yet.
        texts: texts of single tokens.
        has_text: whether the service has a tokenizer; without one each choice has token ids.
        head: the fields `id`, `created` and `model`.
    """

    def __init__(
        self,
        body: CompletionBody | ChatBody,
        generation: Generation,
        pieces: OutputPieces,
        texts: TokenTexts,
        *,
        has_text: bool,
        head: dict[str, Any],
    ) -> None:
        self._body, self._generation, self._pieces, self._texts = body, generation, pieces, texts
        self._is_chat = isinstance(body, ChatBody)
        self._has_ids = bool(body.return_token_ids) or not has_text
        self._has_text = has_text
        self._text = numbered if body.return_tokens_as_token_ids or not has_text else texts.text
        self._head = head
        self._offsets = [0] * len(generation.sequences)
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        opened = encode({**head, "object": kind})[:-1]
        options = body.stream_options
        self._wants_usage = options is not None and bool(options.include_usage)
        self._before = b"data: " + opened + b',"choices":['
        self._after = b'],"usage":null}\n\n' if self._wants_usage else b"]}\n\n"

    def whole(self) -> dict[str, Any]:
        """Return the answer of a generation that is over."""
        choices = [self._choice(piece, is_whole=True) for piece in self._pieces.news()]
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": self._usage()}

    def first(self) -> bytes:
        """Return the events at the beginning of a stream."""
        if not self._is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return b"".join(
            self._event({"index": place, "delta": delta, "finish_reason": None})
            for place in range(len(self._offsets))
        )

    def news(self) -> bytes:
        """Return the events of all new tokens."""
        return b"".join(
            self._event(self._choice(piece, is_whole=False)) for piece in self._pieces.news()
        )

    def last(self) -> bytes:
        """Return the events after the last token."""
        if not self._wants_usage:
            return b""
        usage = encode(self._usage())
        return self._before + b'],"usage":' + usage + b"}\n\n"

    def _event(self, choice: Choice) -> bytes:
        return self._before + encode(choice) + self._after

    def _usage(self) -> dict[str, Any]:
        sequences = self._generation.sequences
        prompts = sequences[:: self._body.count]
        read = sum(len(one.ask.prompt) for one in prompts)
        generated = sum(len(one.tokens) for one in sequences)
        return {
            "prompt_tokens": read,
            "completion_tokens": generated,
            "total_tokens": read + generated,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in prompts)},
        }

    def _choice(self, piece: OutputPiece, *, is_whole: bool) -> Choice:
        sequence, body = piece.sequence, self._body
        choice: Choice = {"index": piece.place}
        if self._is_chat:
            content: dict[str, Any] = {"content": piece.text}
            if is_whole:
                content = {"role": "assistant", **content}
            choice["message" if is_whole else "delta"] = content
        else:
            choice["text"] = piece.text
        choice["logprobs"] = None if body.logprobs is None else self._logprobs(piece)
        choice["finish_reason"] = sequence.finish_reason if piece.is_last else None
        if self._has_ids:
            choice["token_ids"] = sequence.tokens[piece.start : piece.end]
            if piece.start == 0 and body.return_token_ids:
                choice["prompt_token_ids"] = sequence.ask.prompt
        if isinstance(body, CompletionBody) and body.echo and piece.start == 0:
            self._echo(choice, sequence, drops=body.max_tokens == 0)
        if piece.is_last:
            self._end(choice, sequence)
        return choice

    def _end(self, choice: Choice, sequence: SequenceInFlight) -> None:
        """Add what is known at the end of a sequence."""
        choice["stop_reason"] = sequence.stop_reason
        versions = sequence.versions
        if versions:
            choice["weight_version"] = {"start": versions[0], "end": versions[-1]}
        if self._body.return_weight_versions:
            choice["weight_versions"] = spans(versions)
        if "prompt_logprobs" in sequence.extras:
            choice["prompt_logprobs"] = sequence.extras["prompt_logprobs"]

    def _logprobs(self, piece: OutputPiece) -> dict[str, Any] | None:
        body = self._body
        if isinstance(body, ChatBody):
            if not body.logprobs:
                return None
            entries = logprobs_of(piece, body.top_logprobs or 0)
            return chat_logprobs(entries, self._text, self._texts.bytes)
        at = self._offsets[piece.place]
        made = completion_logprobs(logprobs_of(piece, body.logprobs or 0), self._text, at)
        self._offsets[piece.place] = at + sum(map(len, made["tokens"]))
        return made

    def _echo(self, choice: Choice, sequence: SequenceInFlight, *, drops: bool) -> None:
        """Put the prompt before the output; `drops` leaves the output out."""
        prompt = sequence.ask.prompt
        text = "".join(map(self._texts.text, prompt)) if self._has_text else ""
        choice["text"] = text if drops else text + choice["text"]
        if drops and self._has_ids:
            choice["token_ids"] = []
        made = choice["logprobs"]
        if made is None:
            return
        known = of_prompt(prompt, sequence.extras.get("prompt_logprobs"))
        texts = [self._text(token) for token in prompt]
        offsets, at = [], 0
        for shown in texts:
            offsets.append(at)
            at += len(shown)
        before: dict[str, list[Any]] = {
            "tokens": texts,
            "token_logprobs": [None if one is None else one.logprob for one in known],
            "top_logprobs": [
                None if one is None else {self._text(token): value for token, value in one.top}
                for one in known
            ],
            "text_offset": offsets,
        }
        after = {name: [] for name in made} if drops else made
        after = {**after, "text_offset": [at + one for one in after["text_offset"]]}
        choice["logprobs"] = {name: [*before[name], *after[name]] for name in before}
