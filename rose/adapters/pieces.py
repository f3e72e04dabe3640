"""The tokens of a generation that an answer has not reported yet, and their text."""

from dataclasses import dataclass

from rose.adapters.generation import Generation
from rose.adapters.sequences import SequenceInFlight


@dataclass(slots=True)
class OutputPiece:
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

    tokens: int = 0
    texts: int = 0  # pieces of its text
    is_over: bool = False


class OutputPieces:
    """Yields each token of a generation once.

    Args:
        generation: sequences of the request.
        has_text: whether the answer has the text of the tokens.
    """

    def __init__(self, generation: Generation, *, has_text: bool) -> None:
        self._has_text = has_text
        self._parts = [(one, _Reported()) for one in generation.sequences]

    def news(self) -> list[OutputPiece]:
        """Return the tokens of each sequence that were not reported yet."""
        pieces = []
        for place, (sequence, part) in enumerate(self._parts):
            start, end, is_last = part.tokens, len(sequence.tokens), sequence.is_over
            if part.is_over or (start == end and not is_last):
                continue
            text = ""
            if self._has_text:
                texts = sequence.pieces
                text = "".join(texts[part.texts :])
                part.texts = len(texts)
            part.tokens, part.is_over = end, is_last
            pieces.append(OutputPiece(place, sequence, start, end, text, is_last))
        return pieces
