"""Sums a calculator can do: whole numbers, + - * and brackets, within limits. No eval."""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

LENGTH_MAX: Final = 64
DEPTH_MAX: Final = 8
VALUE_MAX: Final = 10**9

_NO_SUM: Final = re.compile(r"[^0-9+*() -]")
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9])0+(?=[0-9])")
_STEPS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


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
    if found := _NO_SUM.search(text):
        return Malformed(f"unexpected '{found[0]}'")
    if max(accumulate((one == "(") - (one == ")") for one in f" {text}")) > DEPTH_MAX:
        return Malformed(f"more than {DEPTH_MAX} brackets deep")
    try:
        # Only parsed, and what is no sum has no value below.
        return _value(ast.parse(_LEADING_ZEROS.sub("", text.strip()), mode="eval").body)
    except SyntaxError:
        return Malformed("that is no sum")
    except _Stop as stop:
        return Malformed(str(stop))


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return _bounded(value)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.BinOp() if step := _STEPS.get(type(node.op)):
            return _bounded(step(_value(node.left), _value(node.right)))
    raise _Stop("that is no sum")


def _bounded(value: int) -> int:
    if abs(value) > VALUE_MAX:
        raise _Stop("the value is too large")
    return value
