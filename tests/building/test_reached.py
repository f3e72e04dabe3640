"""Every module of rose is reached from a door: a command, an example, `import rose` or a plug-in.

Benches and the laboratory are no doors. An import alone is no use: a module is reached if a name of
it is used by a module that is reached. A module that waits for a door is listed with the reason.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOORS: Final = ("rose/cli/main.py", "rose/__init__.py", "rose/_core.pyi", "examples/**/*.py")
EVERYTHING: Final = "*"

# With the change that will use them, or take them out. A package stands for all that is in it.
AWAITING: Final[Mapping[str, str]] = {
    # Users of Megatron-Core pass its map as `Shards(layout=)`.
    "rose.engines.shards.megatron": "an example with Megatron-Core, which is not installed here",
    "rose.engines.shards.megatron_rank": "an example with Megatron-Core",
}

Use = tuple[str, str]  # a module, and a name in it; "" for what runs when it is imported


@dataclass
class Module:
    """What a module defines, what each definition uses, and what it imports under which name."""

    imports: dict[str, Use] = field(default_factory=dict)
    uses: dict[str, set[Use]] = field(default_factory=dict)


def module_of(name: str, text: str, known: Mapping[str, str]) -> Module:
    tree = ast.parse(text)
    module = Module(uses={"": set()})
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                module.imports[one.asname or one.name] = (node.module, one.name)
        elif isinstance(node, ast.Import):
            module.imports.update((one.asname or one.name, (one.name, "")) for one in node.names)
    defined = [(list(names_of(node)), node) for node in statements(tree.body)]
    local = {name for names, _ in defined for name in names}
    for names, node in defined:
        used = set(uses_in(node, name, module.imports, local, known))
        for one in names or [""]:
            module.uses.setdefault(one, set()).update(used)
        if names and is_registered(node, local):
            module.uses[""].add((name, names[0]))
    return module


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what a module consists of, also what is defined under a condition."""
    for node in body:
        if isinstance(node, ast.Try | ast.If):
            yield from statements([*node.body, *node.orelse])
            yield from statements(getattr(node, "finalbody", []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        inner = (one for target in targets for one in ast.walk(target))
        yield from (one.id for one in inner if isinstance(one, ast.Name))


def is_registered(node: ast.stmt, local: set[str]) -> bool:
    """Whether a decorator adds it to something of the module, as `@group.command()` does."""
    calls = (one.func if isinstance(one, ast.Call) else one for one in decorators_of(node))
    owners = (one.value for one in calls if isinstance(one, ast.Attribute))
    return any(isinstance(one, ast.Name) and one.id in local for one in owners)


def decorators_of(node: ast.stmt) -> list[ast.expr]:
    return node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def uses_in(
    tree: ast.AST, name: str, imports: Mapping[str, Use], local: set[str], known: Mapping[str, str]
) -> Iterator[Use]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=first), attr=attribute) if first in imports:
                yield imports[first]
                if (whole := ".".join(imports[first]).rstrip(".")) in known:
                    yield whole, attribute
            case ast.Name(id=one) if one in imports:
                yield imports[one]
            case ast.Name(id=one) if one in local:
                yield name, one
            case ast.Constant(value=str(text)):
                # What is imported when it is wanted, or run as a program of its own.
                for where, what in re.findall(r"\b(rose(?:\.\w+)+)(?::(\w+))?", text):
                    if where in known:
                        yield where, what or EVERYTHING


def reached(sources: Mapping[str, str], programs: Mapping[str, str]) -> set[str]:
    """Return the modules of `sources` that what `programs` do leads to."""
    everywhere = {**sources, **programs}
    modules = {name: module_of(name, text, sources) for name, text in everywhere.items()}
    todo: list[Use] = [(name, EVERYTHING) for name in programs]
    seen: set[Use] = set()
    while todo:
        use = where, what = todo.pop()
        if use in seen or where not in modules:
            continue
        seen.add(use)
        module = modules[where]
        todo += [(where, ""), (where.rpartition(".")[0], "")]
        if what == EVERYTHING:
            todo += [(where, one) for one in module.uses]
        elif what in module.uses:
            todo += module.uses[what]
        elif what in module.imports:
            todo.append(module.imports[what])
        elif f"{where}.{what}" in modules:
            todo.append((f"{where}.{what}", ""))
    return {where for where, _ in seen} & set(sources)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def waits_for(module: str) -> str | None:
    """Return the entry of `AWAITING` that a module is on the list by."""
    names = [".".join(module.split(".")[:size]) for size in range(1, module.count(".") + 2)]
    return next((name for name in names if name in AWAITING), None)


def test_every_module_is_reached_from_a_door_or_waits_for_one() -> None:
    sources = {module_name(one): one.read_text() for one in (ROOT / "rose").rglob("*.py")}
    programs = {
        module_name(path): path.read_text() for pattern in DOORS for path in ROOT.glob(pattern)
    }
    # What others load by name, as vLLM does; commands lead to the rest by themselves.
    project = (ROOT / "pyproject.toml").read_text()
    programs["pyproject"] = str(re.findall(r'^\w+ = "(rose\.[\w.:]+)"$', project, re.MULTILINE))
    used = reached(sources, programs)
    unused = {one for one in set(sources) - used if waits_for(one) is None}
    assert not unused, f"no door leads to these; use, move or delete them: {sorted(unused)}"
    wired = {waits_for(one) for one in used} - {None}
    assert not wired, f"these are reached now; take them off the list: {sorted(map(str, wired))}"
    gone = set(AWAITING) - {waits_for(one) for one in sources}
    assert not gone, f"these are not there any more; take them off the list: {sorted(gone)}"


PLANTED: Final = {
    "rose": "",
    "rose.front": "from rose.used import act\nfrom rose.idle import rest\n",
    "rose.used": "import rose.deep as deep\ndef act(): deep.dive()\ndef other(): 'rose.late'\n",
    "rose.deep": "from rose.two import one, two\ndef dive(): return one\n",
    "rose.two": "one = 1\ndef two(): from rose.idle import rest; rest()\n",
    "rose.idle": "def rest(): pass\n",
    "rose.late": "",
}


def test_an_import_alone_reaches_nothing() -> None:
    program = {"program": "from rose.front import act, rest\nact()\n"}
    assert reached(PLANTED, program) == set(PLANTED) - {"rose.idle", "rose.late"}


def test_what_is_named_in_a_string_or_registered_is_reached() -> None:
    program = {"program": "from rose.used import other\nother()\n"}
    assert "rose.late" in reached(PLANTED, program)
    commands = {"rose.group": "group = 1\n@group.command()\ndef one(): 'rose.late'\n"}
    program = {"program": "from rose.group import group\ngroup()\n"}
    assert "rose.late" in reached({**PLANTED, **commands}, program)
