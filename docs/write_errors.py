"""Write docs/errors.md from the code: `python docs/write_errors.py`. A test keeps it current."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLASSES = (
    *("InvalidArgument", "OutOfMemory", "Unavailable", "DeadlineExceeded", "CorruptData"),
    *("InternalError", "StepAborted", "TrajectoryDropped"),
)
HEAD = """# Errors

Every sentence with which Python code of rose raises, by package and class. Written by
`python docs/write_errors.py`; `…` stands for a value. InvalidArgument ends a command with status 2.
A refusal is no error: [operate it](operate.md#what-a-refusal-means) lists those. The classes are
in [reference](reference.md)."""


def raised(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the class and the sentence of each `raise` in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        name = ast.unparse(node.exc.func).rpartition(".")[2]
        if name in CLASSES and node.exc.args:
            yield name, sentence(node.exc.args[0])


def sentence(value: ast.expr) -> str:
    """Return what a message says, with `…` for each value."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.JoinedStr):
        return "".join(sentence(part) for part in value.values)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return sentence(value.left) + sentence(value.right)
    return "…"


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for package in sorted(path for path in (ROOT / "rose").iterdir() if path.is_dir()):
        found = {one for path in package.rglob("*.py") for one in raised(path)}
        rows = sorted((name, text) for name, text in found if text.strip("… "))
        if rows:
            lines = [f"| {name} | {text.replace('|', chr(92) + '|')} |" for name, text in rows]
            table = [f"## rose.{package.name}", "", "| class | sentence |", "|---|---|", *lines]
            parts.append("\n".join(table))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "errors.md").write_text(page(), encoding="utf-8")
