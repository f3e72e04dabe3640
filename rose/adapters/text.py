"""Conversion of text prompts to token ids, and of token ids to text."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from rose.errors import InvalidArgument

# Number of earlier tokens that are decoded together with new tokens. Otherwise spaces, and
# characters that span several tokens, would be decoded wrongly.
_BEFORE: Final = 6
# Decoders write this for a character whose bytes are incomplete.
_PARTIAL: Final = "\ufffd"


class Tokenizer(Protocol):
    """The part of a tokenizer of transformers that the service uses."""

    eos_token_id: Any

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> Any:
        """Return the token ids of a text."""
        ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = ...) -> Any:
        """Return the text of token ids."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Return the token ids of a conversation."""
        ...


class StreamedText:
    """Decodes one sequence piece by piece; the pieces together are the text of all tokens.

    Args:
        tokenizer: tokenizer that decodes the tokens; None: all text is empty.
        skip_special_tokens: whether special tokens are left out of the text.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._ids: list[int] = []
        self._from = 0  # index of the first token that is decoded again, as context of new tokens
        self._returned = 0  # number of tokens whose text was returned

    def add(self, tokens: Sequence[int], *, is_last: bool) -> str:
        """Return the text that new tokens add.

        If the new text ends with an incomplete character, return "" now; a later call returns this
        text too. With `is_last`, return the text in any case.
        """
        if self._tokenizer is None:
            return ""
        self._ids += tokens
        before = self._decode(self._ids[self._from : self._returned])
        now = self._decode(self._ids[self._from :])
        if now.endswith(_PARTIAL) and not is_last:
            return ""
        self._returned = len(self._ids)
        self._from = max(self._from, self._returned - _BEFORE)
        return now[len(before) :]

    def _decode(self, ids: Sequence[int]) -> str:
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=self._skips))


def encoded(
    tokenizer: Tokenizer | None, text: str, *, add_special_tokens: bool = True
) -> list[int]:
    """Return the token ids of a prompt.

    Raises:
        InvalidArgument: there is no tokenizer, or the text is not valid Unicode.
    """
    if tokenizer is None:
        raise InvalidArgument(
            "prompt must be token ids: the service has no tokenizer to read text with"
        )
    _check_text(text)
    ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return [int(token) for token in ids]


def templated(
    tokenizer: Tokenizer | None, messages: list[dict[str, Any]], options: dict[str, Any]
) -> list[int]:
    """Return the token ids of a conversation.

    Args:
        tokenizer: tokenizer with a chat template.
        messages: `role` and `content` of each message.
        options: further arguments of `apply_chat_template`.

    Raises:
        InvalidArgument: there is no tokenizer, or its template refuses the conversation.
    """
    if "chat_template" in options:
        raise InvalidArgument("chat_template_kwargs must not replace the chat template")
    if tokenizer is None:
        raise InvalidArgument("messages need a tokenizer, which this service does not have")
    try:
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise InvalidArgument(f"the chat template refuses the messages: {error}") from error
    return [int(token) for token in ids]


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("text must be valid Unicode, got half of a surrogate pair") from None
