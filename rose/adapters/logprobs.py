"""Log-probabilities of tokens, in the formats of completions, of chat and of SGLang."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from rose.adapters.pieces import OutputPiece
from rose.adapters.text import Tokenizer

_PARTIAL: Final = "\ufffd"
_HEX_LENGTH: Final = len("<0xE2>")


@cache
def _byte_of() -> dict[str, int]:
    """Return the byte of each character with which byte-level BPE writes it, as GPT-2 does."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return {
        **{chr(byte): byte for byte in plain},
        **{chr(256 + place): byte for place, byte in enumerate(shifted)},
    }


class TokenTexts:
    """The text and the bytes of single tokens.

    Args:
        tokenizer: tokenizer that decodes them; None: a token's text is its number.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def text(self, token: int) -> str:
        """Return the text of a token."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._decoded(token)
        return found

    def bytes(self, token: int) -> list[int]:
        """Return the bytes of a token, also of one that is a part of a character."""
        text = self.text(token)
        written = getattr(self.tokenizer, "convert_ids_to_tokens", None)
        if _PARTIAL in text and written is not None:
            name = str(written([token])[0])
            if name.startswith("<0x") and len(name) == _HEX_LENGTH:
                return [int(name[3:5], 16)]
            if all(letter in _byte_of() for letter in name):
                return [_byte_of()[letter] for letter in name]
        return list(text.encode(errors="replace"))

    def _decoded(self, token: int) -> str:
        if self.tokenizer is None:
            return numbered(token)
        return str(self.tokenizer.decode([token], skip_special_tokens=False))


def numbered(token: int) -> str:
    """Return the text of a token where only its number is wanted."""
    return f"token_id:{token}"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log-probability, and the most likely tokens in its place."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]]


def logprobs_of(piece: OutputPiece, count: int) -> list[TokenLogprob]:
    """Return the tokens of a piece, each with at most `count` alternatives."""
    sequence, where = piece.sequence, slice(piece.start, piece.end)
    tokens, logprobs = sequence.tokens[where], sequence.logprobs[where]
    tops = sequence.top_logprobs[where] if count else []
    tops = tops if len(tops) == len(tokens) else [()] * len(tokens)
    return [
        TokenLogprob(token, logprob, top[:count])
        for token, logprob, top in zip(tokens, logprobs, tops, strict=True)
    ]


def completion_logprobs(
    entries: Sequence[TokenLogprob], text: Callable[[int], str], at: int
) -> dict[str, Any]:
    """Return the field `logprobs` of a completion.

    Args:
        entries: the tokens.
        text: function that returns the text of a token.
        at: offset of the first token in the text.
    """
    texts = [text(one.token) for one in entries]
    offsets = []
    for own in texts:
        offsets.append(at)
        at += len(own)
    tops = []
    for one, own in zip(entries, texts, strict=True):
        top = {text(token): logprob for token, logprob in one.top}
        tops.append({**top, own: one.logprob})
    return {
        "tokens": texts,
        "token_logprobs": [one.logprob for one in entries],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def chat_logprobs(
    entries: Sequence[TokenLogprob],
    text: Callable[[int], str],
    as_bytes: Callable[[int], list[int]] | None,
) -> dict[str, Any]:
    """Return the field `logprobs` of a chat completion, or of `/inference/v1/generate`."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        shown = {"token": text(token), "logprob": logprob}
        return shown if as_bytes is None else {**shown, "bytes": as_bytes(token)}

    return {
        "content": [
            {
                **one(entry.token, entry.logprob),
                "top_logprobs": [one(token, logprob) for token, logprob in entry.top],
            }
            for entry in entries
        ]
    }


def sglang_logprobs(
    entries: Sequence[TokenLogprob], text: Callable[[int], str | None]
) -> tuple[list[Any], list[Any]]:
    """Return the fields `output_token_logprobs` and `output_top_logprobs` of SGLang."""
    own = [[one.logprob, one.token, text(one.token)] for one in entries]
    top = [[[logprob, token, text(token)] for token, logprob in one.top] for one in entries]
    return own, top


def of_prompt(
    prompt: Sequence[int], found: Sequence[Mapping[str, Any] | None] | None
) -> list[TokenLogprob | None]:
    """Return the tokens of a prompt; None where the engine has no log-probability.

    Args:
        prompt: token ids.
        found: the engine's `prompt_logprobs`: for each token None, or objects by token id.
    """
    entries: list[TokenLogprob | None] = []
    for token, one in zip(prompt, found or [None] * len(prompt), strict=False):
        if not one or str(token) not in one:
            entries.append(None)
            continue
        pairs = [(int(name), float(value["logprob"])) for name, value in one.items()]
        top = sorted(pairs, key=lambda pair: -pair[1])
        entries.append(TokenLogprob(token, dict(pairs)[token], top))
    return entries
