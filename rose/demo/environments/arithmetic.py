"""Sums a calculator can do: whole numbers, + - * and brackets, within limits. No eval."""

import ast
import operator
import re
from collections.abc import Callable
from typing import Final

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
