"""The tokens of a generation that an answer has not reported yet, and their text."""

from dataclasses import dataclass

from rose.adapters.sequences import SequenceInFlight
from rose.adapters.service import Generation
from rose.adapters.text import StreamedText, Tokenizer


@dataclass(slots=True)
class Piece:
    """Tokens of a sequence that were not reported yet.

    Args:
        place: index of the sequence in its request.
        sequence: the sequence.
        start: index of the first new token in the sequence.
        end: index after the last new token.
        text: text of the new tokens.
        is_last: whether no further tokens follow.
    """

    place: int
    sequence: SequenceInFlight
    start: int
    end: int
    text: str
    is_last: bool


@dataclass(slots=True)
class _Reported:
    """The part of a sequence that was already reported."""

    text: StreamedText
    tokens: int = 0
    read: int = 0  # tokens that were passed to `text`
    is_over: bool = False


class Pieces:
    """Yields each token of a generation once.

    Args:
        generation: sequences of the request.
        tokenizer: tokenizer that decodes the tokens; None: all text is empty.
        skip_special_tokens: whether special tokens are left out of the text.
        shows_stop: whether the text has the stop token that ended the sequence.
    """

    def __init__(
        self,
        generation: Generation,
        tokenizer: Tokenizer | None,
        *,
        skip_special_tokens: bool,
        shows_stop: bool,
    ) -> None:
        self._shows_stop = shows_stop
        self._parts = [
            (one, _Reported(StreamedText(tokenizer, skip_special_tokens=skip_special_tokens)))
            for one in generation.sequences
        ]

    def news(self) -> list[Piece]:
        """Return the tokens of each sequence that were not reported yet."""
        pieces = []
        for place, (sequence, part) in enumerate(self._parts):
            start, end, is_last = part.tokens, len(sequence.tokens), sequence.is_over
            if part.is_over or (start == end and not is_last):
                continue
            # The text of a last stop token is kept back until it is known not to be the end.
            read = end
            if not self._shows_stop and end and sequence.tokens[-1] in sequence.stops:
                read -= sequence.finish_reason in {None, "stop"}
            text = part.text.add(sequence.tokens[part.read : read], is_last=is_last)
            part.tokens, part.read, part.is_over = end, max(read, part.read), is_last
            pieces.append(Piece(place, sequence, start, end, text, is_last))
        return pieces
