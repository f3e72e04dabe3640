"""Text as ids of a small vocabulary: one id per character, and marks that no text contains."""

from collections.abc import Iterable
from typing import Final

VOCABULARY: Final = 128

PAD: Final = 0
EOS: Final = 1  # ends what the policy says
SEE: Final = 2  # an observation follows
SAY: Final = 3  # the policy speaks next
UNKNOWN: Final = 127  # stands for every character that has no id

_NEWLINE: Final = 10
_MARKS: Final = frozenset({PAD, EOS, SEE, SAY})
_UNKNOWN_TEXT: Final = "\N{REPLACEMENT CHARACTER}"


def _is_text(code: int) -> bool:
    return 32 <= code <= 126 or code == _NEWLINE


class Tokenizer:
    """Printable ASCII and the newline keep their codes. Total: no text and no id is refused.

    A mark decodes to nothing, an id that is neither text nor mark to a visible replacement.
    """

    vocabulary = VOCABULARY

    def encode(self, text: str) -> tuple[int, ...]:
        """Return one id for each character."""
        return tuple(ord(one) if _is_text(ord(one)) else UNKNOWN for one in text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, marks left out."""
        return "".join(
            chr(one) if _is_text(one) else _UNKNOWN_TEXT for one in ids if one not in _MARKS
        )

    def prompt(self, observation: str) -> tuple[int, ...]:
        """Return what a turn begins with: the observation between its marks."""
        return (SEE, *self.encode(observation), SAY)
