"""Write docs/api.md from docstrings: `python docs/write_api.py`. A test keeps it current."""

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("rose", "rose.executor", "rose.transfer", "rose.scheduler")
HEAD = """# Public names

Written by `python docs/write_api.py`. What is not here may change without a note. `rose` alone is
enough for an engine; what is beneath is for engines that keep their own books, for weights, and for
RL frameworks. Arguments and errors: `help(rose.open)`, and so on."""


def public(package: str) -> dict[str, object]:
    """Return what a package exports, by name, without what `rose` exports too."""
    names = importlib.import_module(package).__all__
    found = {name: getattr(importlib.import_module(package), name) for name in sorted(names)}
    if package == "rose":
        return found
    first = importlib.import_module("rose").__all__
    return {name: value for name, value in found.items() if name not in first}


# Modules whose classes are listed with their members.
DESCRIBED = ("rose.api.", "rose.transfer.published", "rose.transfer.received")


def rows(name: str, value: object) -> Iterator[str]:
    """Yield a line for a name, and for a class of `rose` one for each of its methods."""
    yield f"| `{name}` | {sentence(value)} |"
    if not inspect.isclass(value) or not value.__module__.startswith(DESCRIBED):
        return
    described = [one for one in reversed(value.__mro__) if one.__module__.startswith(DESCRIBED)]
    for member, method in {name: at for one in described for name, at in vars(one).items()}.items():
        if member.startswith("_") or not (text := inspect.getdoc(method)):
            continue
        if isinstance(method, property):
            yield f"| &emsp;`.{member}` | {sentence(method, text)} |"
        elif inspect.isfunction(method):
            yield f"| &emsp;`.{member}()` | {sentence(method, text)} |"


def sentence(value: object, text: str | None = None) -> str:
    """Return the first sentence of a docstring as a cell."""
    text = text or inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for package in PACKAGES:
        lines = [row for name, value in public(package).items() for row in rows(name, value)]
        about = sentence(importlib.import_module(package))
        table = ["| name | what it is |", "|---|---|", *lines]
        parts.append("\n".join([f"## {package}", "", about, "", *table]))
    return "\n".join(part + "\n" for part in parts)


if __name__ == "__main__":
    Path(__file__).with_name("api.md").write_text(page(), encoding="utf-8")
