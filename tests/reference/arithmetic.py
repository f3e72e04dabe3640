"""The value of a sum by Python's own parser: slow to trust, so every node it allows is named."""

import ast


def evaluate(text: str) -> int:
    """Return the value; raises ValueError or SyntaxError for what is no sum."""
    return _value(ast.parse(text.strip(" "), mode="eval").body)


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
    raise ValueError(ast.dump(node))
