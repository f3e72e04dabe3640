"""Answers in token ids, for vLLM's `/inference/v1/generate` and SGLang's `/generate`."""

import uuid
from typing import Any

import msgspec

from rose.adapters.bodies import GenerateBody, SglangBody
from rose.adapters.generation import Generation
from rose.adapters.logprobs import (
    TokenTexts,
    chat_logprobs,
    logprobs_of,
    numbered,
    of_prompt,
    sglang_logprobs,
)
from rose.adapters.pieces import OutputPiece, OutputPieces
from rose.adapters.sequences import SequenceInFlight
from rose.adapters.versions import spans

encode = msgspec.json.Encoder().encode


class VllmTokens:
    """The answer of `/inference/v1/generate`."""

    def __init__(self, body: GenerateBody, generation: Generation, pieces: OutputPieces) -> None:
        self._body, self._generation, self._pieces = body, generation, pieces
        self._id = body.request_id or f"generate-{uuid.uuid4().hex}"

    def whole(self) -> dict[str, Any]:
        """Return the answer of a generation that is over."""
        answer = {"request_id": self._id, "choices": list(map(self._choice, self._pieces.news()))}
        extras = self._generation.sequences[0].extras
        if "prompt_logprobs" in extras:
            answer["prompt_logprobs"] = extras["prompt_logprobs"]
        return answer

    def first(self) -> bytes:
        """Return nothing: a stream begins with its first token."""
        return b""

    def news(self) -> bytes:
        """Return the events of all new tokens."""
        events = (
            {"request_id": self._id, "choices": [self._choice(p)]} for p in self._pieces.news()
        )
        return b"".join(b"data: " + encode(event) + b"\n\n" for event in events)

    def last(self) -> bytes:
        """Return nothing: the last token's event ends the answer."""
        return b""

    def _choice(self, piece: OutputPiece) -> dict[str, Any]:
        sequence, count = piece.sequence, self._body.sampling_params.logprobs
        choice: dict[str, Any] = {
            "index": piece.place,
            "token_ids": sequence.tokens[piece.start : piece.end],
            "logprobs": None,
            "finish_reason": sequence.finish_reason if piece.is_last else None,
        }
        if count is not None:
            choice["logprobs"] = chat_logprobs(logprobs_of(piece, count), numbered, None)
        if piece.is_last:
            choice["stop_reason"] = sequence.stop_reason
            choice["weight_versions"] = spans(sequence.versions)
        return choice


class SglangTokens:
    """The answer of `/generate`. Each event of a stream has the whole output so far."""

    def __init__(
        self,
        body: SglangBody,
        generation: Generation,
        pieces: OutputPieces,
        texts: TokenTexts,
        *,
        is_list: bool,
    ) -> None:
        self._body, self._generation, self._pieces, self._texts = body, generation, pieces, texts
        self._is_list = is_list
        self._ids = [body.rid or uuid.uuid4().hex] * len(generation.sequences)
        self._text = [""] * len(generation.sequences)

    def whole(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Return one object; a list of objects for several prompts or sequences."""
        answers = list(map(self._answer, self._pieces.news()))
        return answers if self._is_list else answers[0]

    def first(self) -> bytes:
        """Return nothing: a stream begins with its first token."""
        return b""

    def news(self) -> bytes:
        """Return the events of all sequences with new tokens."""
        events = []
        for piece in self._pieces.news():
            answer = self._answer(piece)
            if self._is_list:
                answer["index"] = piece.place
            events.append(b"data: " + encode(answer) + b"\n\n")
        return b"".join(events)

    def last(self) -> bytes:
        """Return nothing: the last token's event ends the answer."""
        return b""

    def _answer(self, piece: OutputPiece) -> dict[str, Any]:
        self._text[piece.place] += piece.text
        sequence = piece.sequence
        meta: dict[str, Any] = {
            "id": self._ids[piece.place],
            "finish_reason": _finish(sequence) if piece.is_last else None,
            "prompt_tokens": len(sequence.ask.prompt),
            "completion_tokens": len(sequence.tokens),
            "cached_tokens": sequence.cached_tokens,
        }
        versions = sequence.versions
        if versions:
            # Trainers limit staleness by `weight_version`, so it is that of the first token.
            meta["weight_version"] = meta["weight_version_start"] = str(versions[0])
            meta["weight_version_end"] = str(versions[-1])
        if self._body.return_logprob:
            self._add_logprobs(meta, piece)
        text = self._text[piece.place]
        return {"text": text, "output_ids": sequence.tokens, "meta_info": meta}

    def _add_logprobs(self, meta: dict[str, Any], piece: OutputPiece) -> None:
        body, sequence = self._body, piece.sequence
        text = self._texts.text if body.return_text_in_logprobs else _no_text
        so_far = OutputPiece(piece.place, sequence, 0, piece.end, "", piece.is_last)
        own, top = sglang_logprobs(logprobs_of(so_far, body.top_logprobs_num or 0), text)
        meta["output_token_logprobs"] = own
        if body.top_logprobs_num:
            meta["output_top_logprobs"] = top
        if "prompt_logprobs" in sequence.extras:
            prompt = sequence.ask.prompt
            known = of_prompt(prompt, sequence.extras["prompt_logprobs"])
            pairs = list(zip(prompt, known, strict=True))[body.logprob_start_len or 0 :]
            meta["input_token_logprobs"] = [
                [None if one is None else one.logprob, token, text(token)] for token, one in pairs
            ]


def _no_text(_: int) -> None:
    return None


def _finish(sequence: SequenceInFlight) -> dict[str, Any]:
    match sequence.finish_reason:
        case "stop":
            matched = sequence.stop_reason
            if matched is None and sequence.tokens:
                matched = sequence.tokens[-1]
            return {"type": "stop", "matched": matched}
        case "length":
            return {"type": "length", "length": len(sequence.tokens)}
        case "abort":
            return {"type": "abort", "message": "the service was told to abort"}
    return {"type": sequence.finish_reason}
