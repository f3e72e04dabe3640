"""Character-level tokens: one id per character, and marks that no text contains."""

from collections.abc import Iterable
from typing import Final

VOCABULARY: Final = 128

PAD: Final = 0
EOS: Final = 1  # ends the policy's output
SEE: Final = 2  # an observation follows
SAY: Final = 3  # the policy's output follows
UNKNOWN: Final = 127  # every character without an id

_NEWLINE: Final = 10
_MARKS: Final = frozenset({PAD, EOS, SEE, SAY})
_UNKNOWN_TEXT: Final = "\N{REPLACEMENT CHARACTER}"


def _is_text(code: int) -> bool:
    return 32 <= code <= 126 or code == _NEWLINE


class Tokenizer:
    """Printable ASCII and the newline keep their codes. Every text and every id is accepted.

    Marks decode to nothing; unknown ids decode to the replacement character.
    """

    vocabulary = VOCABULARY

    def encode(self, text: str) -> tuple[int, ...]:
        """Return one id for each character."""
        return tuple(ord(one) if _is_text(ord(one)) else UNKNOWN for one in text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids` without marks."""
        return "".join(
            chr(one) if _is_text(one) else _UNKNOWN_TEXT for one in ids if one not in _MARKS
        )

    def prompt(self, observation: str) -> tuple[int, ...]:
        """Return the start of a turn: the observation between its marks."""
        return (SEE, *self.encode(observation), SAY)
