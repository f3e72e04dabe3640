"""The text of one sequence, up to its stop text."""

from collections.abc import Sequence
from dataclasses import dataclass

from rose.adapters.text import StreamedText, Tokenizer


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop text that was found.

    Args:
        text: the stop text.
        tokens: number of tokens up to and including the one that completes the stop text.
    """

    text: str
    tokens: int


class OutputText:
    """Text of one sequence in pieces, without what follows its stop text.

    A stop text is found wherever it lies in the output, across tokens and calls of `add`. As in
    vLLM, the sequence ends with the first token that completes a stop text; if one token completes
    several, the first in `stops` counts. Text that may be the beginning of a stop text is held
    back until further tokens decide.

    Args:
        tokenizer: tokenizer that decodes the tokens.
        skip_special_tokens: whether special tokens are left out of the text.
        stops: texts that end the sequence.
        is_including: whether the stop text is part of the text.
        min_tokens: number of first tokens that complete no stop text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        stops: Sequence[str] = (),
        is_including: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self.pieces: list[str] = []  # the text that clients may have
        self.is_over = False  # whether no tokens follow, or a stop text was found
        self._stream = StreamedText(tokenizer, skip_special_tokens=skip_special_tokens)
        self._stops = tuple(stops)
        self._firsts = tuple({stop[0] for stop in stops})
        self._is_including = is_including
        self._min_tokens = min_tokens
        self._tokens = 0
        # The last characters of the text, of which a later stop text may begin with any.
        self._tail = ""
        self._tail_max = max(map(len, self._stops), default=1) - 1
        self._held = 0  # number of last characters of `_tail` that are not in `pieces`

    def add(self, tokens: Sequence[int], *, is_last: bool = False) -> Stop | None:
        """Decode new tokens; return the stop text that they complete.

        Args:
            tokens: token ids. A stop token whose text is not wanted is left out.
            is_last: whether no tokens follow, so that no text is held back.
        """
        self.is_over = is_last
        if not self._stops:
            self._put(self._stream.add(tokens, is_last=is_last))
            return None
        before = self._stream.copy() if len(tokens) > 1 else self._stream
        text = self._stream.add(tokens, is_last=is_last)
        count = len(tokens)
        if count > 1 and any(stop in self._tail + text for stop in self._stops):
            # Find the token that completes the stop text.
            self._stream = before
            for place, token in enumerate(tokens, 1):
                is_end = is_last and place == count
                stop = self._step(self._stream.add((token,), is_last=is_end), count=1)
                if stop is not None:
                    return stop
        elif (stop := self._step(text, count=count)) is not None:
            return stop
        if is_last:
            self._put(self._tail[len(self._tail) - self._held :])
            self._held = 0
        return None

    def _step(self, text: str, *, count: int) -> Stop | None:
        """Append the text of `count` tokens, which is searched for stop texts if `count` is 1."""
        self._tokens += count
        window = self._tail + text
        if text and count == 1 and self._tokens > self._min_tokens:
            for stop in self._stops:
                at = window.find(stop, max(0, len(self._tail) - len(stop) + 1))
                if at >= 0:
                    end = at + len(stop) if self._is_including else at
                    self._put(window[len(self._tail) - self._held : end])
                    self.is_over = True
                    return Stop(stop, self._tokens)
        held = 0 if self._is_including else self._beginning(window)
        self._put(window[len(self._tail) - self._held : len(window) - held])
        self._tail = window[max(0, len(window) - self._tail_max) :] if self._tail_max else ""
        self._held = held
        return None

    def _beginning(self, window: str) -> int:
        """Return the length of the longest end of a text with which a stop text begins."""
        start = max(0, len(window) - self._tail_max)
        if not any(first in window[start:] for first in self._firsts):
            return 0
        for at in range(start, len(window)):
            if any(stop.startswith(window[at:]) for stop in self._stops):
                return len(window) - at
        return 0

    def _put(self, text: str) -> None:
        if text:
            self.pieces.append(text)
