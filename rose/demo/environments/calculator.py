"""A question of arithmetic, and a tool to work it out with before answering (ReAct style)."""

import ast
import operator
import re
from collections.abc import Callable
from typing import Final

import numpy as np

from rose.demo.environments.environment import Observed
from rose.errors import InvalidArgument

LENGTH_MAX: Final = 64
VALUE_MAX: Final = 10**9

_NO_SUM: Final = re.compile(r"[^0-9+*() -]")
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9])0+(?=[0-9])")
_STEPS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def evaluate(text: str) -> int:
    """Return the value of an expression; its length bounds the work.

    Raises:
        ValueError: it has none here, and why.
    """
    if len(text) > LENGTH_MAX:
        raise ValueError(f"longer than {LENGTH_MAX} characters")
    if found := _NO_SUM.search(text):
        raise ValueError(f"unexpected '{found[0]}'")
    try:
        # Only parsed, and what is no sum has no value below.
        value = _value(ast.parse(_LEADING_ZEROS.sub("", text.strip()), mode="eval").body)
    except SyntaxError:
        raise ValueError("that is no sum") from None
    if abs(value) > VALUE_MAX:
        raise ValueError("the value is too large")
    return value


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.BinOp() if step := _STEPS.get(type(node.op)):
            return step(_value(node.left), _value(node.right))
    raise ValueError("that is no sum")


_CALL: Final = re.compile(r"(calc|answer)\(")
_ANSWER: Final = re.compile(r" *(-?[0-9]{1,12}) *\)")
_HOW: Final = "say calc(..) or answer(N)"
_TURNS_MAX: Final = 4
_TERMS_MAX: Final = 3  # numbers in a question
_LARGEST: Final = 9


class Calculator:
    """One question at a time.

    The first call in what was said counts, text around it is thinking. A right answer is worth 1,
    everything else 0; the first answer ends the episode.
    """

    name = "calculator"

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._answer = 0
        self._turns_left = 0

    def reset(self, seed: int) -> str:
        """Ask the question of `seed`."""
        question, self._answer = self._draw(seed)
        self._turns_left = _TURNS_MAX
        return f"{question}=? {_HOW}"

    def step(self, said: str) -> Observed:
        """Use the calculator or answer; what is malformed costs a turn and is told so."""
        if self._turns_left == 0:
            raise InvalidArgument("no question is open: call reset")
        self._turns_left -= 1
        call, rest = _first_call(said)
        if call == "answer" and (number := _number(rest)) is not None:
            self._turns_left = 0
            is_right = number == self._answer
            return Observed(
                "right" if is_right else "wrong", float(is_right), is_over=True, tool=None
            )
        is_over = self._turns_left == 0
        if call == "calc":
            return Observed(_calculate(rest), 0.0, is_over, tool="calc")
        told = "malformed: answer(N) takes a number" if call == "answer" else _HOW
        return Observed(told, 0.0, is_over, tool=None)

    @staticmethod
    def _draw(seed: int) -> tuple[str, int]:
        random = np.random.default_rng(seed)
        terms = int(random.integers(2, _TERMS_MAX + 1))
        numbers = random.integers(0, _LARGEST + 1, size=terms)
        signs = random.choice(["+", "-", "*"], size=terms - 1)
        question = str(numbers[0])
        for place, (sign, number) in enumerate(zip(signs, numbers[1:], strict=True)):
            # Brackets now and then: without them reading from left to right would be a rule.
            if place > 0 and random.random() < 0.5:
                question = f"({question})"
            question += f"{sign}{number}"
        return question, evaluate(question)


def _first_call(said: str) -> tuple[str, str]:
    """Return the name of the first call and all after its bracket, or nothing twice."""
    found = _CALL.search(said)
    return (found[1], said[found.end() :]) if found else ("", "")


def _number(rest: str) -> int | None:
    found = _ANSWER.match(rest)
    return int(found[1]) if found else None


def _calculate(rest: str) -> str:
    if (expression := _up_to_closing(rest)) is None:
        return "malformed: a bracket is not closed"
    try:
        return f"calc: {evaluate(expression)}"
    except ValueError as error:
        return f"malformed: {error}"


def _up_to_closing(rest: str) -> str | None:
    """Return the text before the bracket that closes the call; nobody looks far for it."""
    depth = 1
    for place, one in enumerate(rest[: 2 * LENGTH_MAX]):
        depth += (one == "(") - (one == ")")
        if depth == 0:
            return rest[:place]
    return None
