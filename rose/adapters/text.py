"""Conversion of text prompts to token ids, and of token ids to text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from rose.errors import InvalidArgument
from rose.scheduler.watching import ErrorGuard

# Number of earlier tokens that are decoded together with new tokens. Otherwise spaces would be
# decoded wrongly.
_BEFORE: Final = 6
# Most tokens that are decoded together. Bytes that never become a character are returned then.
_WINDOW: Final = 64
# Decoders write this for a character whose bytes are incomplete.
_PARTIAL: Final = "\ufffd"
# A character has at most 4 bytes, so an incomplete one has at most this many tokens.
_PARTIALS_MAX: Final = 3


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


def decoder(tokenizer: Tokenizer) -> Callable[..., Any]:
    """Return the function that decodes token ids, without the wrapper of transformers.

    The wrapper costs twice as much as the decoding of a few tokens.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decode: Callable[..., Any] = getattr(backend, "decode", tokenizer.decode)
    return decode


class StreamedText:
    """Decodes one sequence piece by piece; the pieces together are the text of all tokens.

    Args:
        tokenizer: tokenizer that decodes the tokens.
        skip_special_tokens: whether special tokens are left out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._decode = decoder(tokenizer)
        self._skips = skip_special_tokens
        self._ids: list[int] = []  # tokens that are decoded again with the next ones
        self._returned = 0  # number of characters of their text that were returned
        self._boundary = 0  # index of a token of `_ids` that begins a character

    def copy(self) -> "StreamedText":
        """Return a copy that decodes further tokens independently."""
        other = object.__new__(StreamedText)
        other.__dict__.update(self.__dict__)
        other._ids = list(self._ids)
        return other

    def add(self, tokens: Sequence[int], *, is_last: bool = False) -> str:
        """Return the text that new tokens add.

        The bytes of a character that is not complete are held back, and a later call returns the
        whole character. With `is_last`, all text is returned.
        """
        self._ids += tokens
        now = self._text(self._ids)
        end = len(now)
        if now.endswith(_PARTIAL) and not is_last:
            # A decoder of byte tokens writes all bytes of a run so, until the run is complete.
            end = len(now.rstrip(_PARTIAL))
        text = now[self._returned : end]
        self._returned = max(self._returned, end)
        if len(self._ids) >= self._boundary + _BEFORE and not is_last:
            text += self._forget(now)
        return text

    def _forget(self, now: str) -> str:
        """Drop old tokens; return held text if it can never become a character."""
        count = len(self._ids)
        for place in range(count, max(self._boundary, count - _PARTIALS_MAX - 1), -1):
            before = now if place == count else self._text(self._ids[:place])
            if not before.endswith(_PARTIAL):
                kept = self._text(self._ids[self._boundary : place])
                self._returned += len(kept) - len(before)
                del self._ids[: self._boundary]
                self._boundary = place - (count - len(self._ids))
                return ""
        if count < _WINDOW:
            return ""
        del self._ids[:-_PARTIALS_MAX]
        text = now[self._returned : len(now) - len(self._text(self._ids))]
        self._returned = self._boundary = 0
        return text

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._decode(tokens, skip_special_tokens=self._skips))


def decoded(tokenizer: Tokenizer, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
    """Return the text of token ids."""
    return str(decoder(tokenizer)(list(tokens), skip_special_tokens=skip_special_tokens))


def encoded(tokenizer: Tokenizer | None, text: str, *, add_special_tokens: bool) -> list[int]:
    """Return the token ids of a prompt.

    A text that begins with the tokenizer's own BOS, as one from a chat template does, gets no
    second one.

    Args:
        tokenizer: tokenizer of the model.
        text: the prompt.
        add_special_tokens: whether the tokenizer adds its special tokens, such as a BOS.

    Raises:
        InvalidArgument: there is no tokenizer, or the text is not valid Unicode.
    """
    if tokenizer is None:
        raise InvalidArgument(
            "prompt must be token ids: the service has no tokenizer to read text with"
        )
    _check_unicode(text)
    found = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    ids = [int(token) for token in found]
    first = getattr(tokenizer, "bos_token_id", None)
    if add_special_tokens and first is not None and ids[:2] == [first, first]:
        del ids[0]
    return ids


def templated(
    tokenizer: Tokenizer | None,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
) -> list[int]:
    """Return the token ids of a conversation.

    Args:
        tokenizer: tokenizer with a chat template.
        messages: messages in the format of chat templates.
        options: further arguments of `apply_chat_template`.

    Raises:
        InvalidArgument: there is no tokenizer, or its template refuses the conversation.
    """
    if "chat_template" in options:
        raise InvalidArgument("chat_template_kwargs must not replace the chat template")
    if tokenizer is None:
        raise InvalidArgument("messages need a tokenizer, which this service does not have")
    ids: Any = ()
    guard = ErrorGuard()
    with guard:  # A template is a program of the model's author, and raises what it likes.
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    if guard.error is not None:
        _check_unicode(messages)
        raise InvalidArgument(
            f"the chat template refuses the messages: {guard.error}"
        ) from guard.error
    return [int(token) for token in ids]


def _check_unicode(value: Any) -> None:
    """Refuse text that no tokenizer can read, also within lists and dicts."""
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InvalidArgument(
                    "text must be valid Unicode, got half of a surrogate pair"
                ) from None
        case Mapping():
            _check_unicode(list(value.values()))
        case Sequence():
            for one in value:
                _check_unicode(one)
