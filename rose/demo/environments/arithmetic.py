"""Sums a calculator can do: whole numbers, + - * and brackets, within limits. No eval."""

from dataclasses import dataclass
from typing import Final

from rose.errors import check

LENGTH_MAX: Final = 64
DEPTH_MAX: Final = 8
VALUE_MAX: Final = 10**9
_DIGITS: Final = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class Malformed:
    """An expression that has no value here, and why: an answer, not an error."""

    reason: str


class _Stop(Exception):  # ends the descent; never leaves this module
    pass


def evaluate(text: str) -> int | Malformed:
    """Return the value of an expression; any text is fine.

    Every value on the way is at most `VALUE_MAX` in size.
    """
    if len(text) > LENGTH_MAX:
        return Malformed(f"longer than {LENGTH_MAX} characters")
    parser = _Parser(text)
    try:
        value = parser.sum(depth=0)
        parser.expect_end()
    except _Stop as stop:
        return Malformed(str(stop))
    return value


class _Parser:
    """Recursive descent. sum: product (+|- product)*; product: atom (* atom)*."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def sum(self, *, depth: int) -> int:
        if depth > DEPTH_MAX:
            raise _Stop(f"more than {DEPTH_MAX} brackets deep")
        value = self._product(depth)
        while (sign := self._peek()) in {"+", "-"}:
            self._at += 1
            term = self._product(depth)
            value = _bounded(value + term if sign == "+" else value - term)
        return value

    def expect_end(self) -> None:
        if found := self._peek():
            raise _Stop(f"unexpected '{found}'")

    def _product(self, depth: int) -> int:
        value = self._atom(depth)
        while self._peek() == "*":
            self._at += 1
            value = _bounded(value * self._atom(depth))
        return value

    def _atom(self, depth: int) -> int:
        # Signs are counted in a loop: a long row of them must not become a deep recursion.
        is_negative = False
        while self._peek() == "-":
            self._at += 1
            is_negative = not is_negative
        value = self._bracket(depth) if self._peek() == "(" else self._number()
        return -value if is_negative else value

    def _bracket(self, depth: int) -> int:
        check(self._peek() == "(", "a bracket begins with a bracket")
        self._at += 1
        value = self.sum(depth=depth + 1)
        if self._peek() != ")":
            raise _Stop("a bracket is not closed")
        self._at += 1
        return value

    def _number(self) -> int:
        found = self._peek()
        first = self._at
        while self._text[self._at : self._at + 1] in _DIGITS:
            self._at += 1
        if first == self._at:
            raise _Stop(f"unexpected '{found}'" if found else "a number is missing")
        return _bounded(int(self._text[first : self._at]))

    def _peek(self) -> str:
        """Return the next character that is no space, or nothing at the end."""
        while self._text[self._at : self._at + 1] == " ":
            self._at += 1
        return self._text[self._at : self._at + 1]


def _bounded(value: int) -> int:
    if abs(value) > VALUE_MAX:
        raise _Stop("the value is too large")
    return value
