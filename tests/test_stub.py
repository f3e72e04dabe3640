"""`rose/_core.pyi` says what the extension does.

stubtest finds names that are missing on either side; it cannot see signatures of compiled
functions, so those are compared with what pybind11 writes into the docstrings.
"""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from rose import _core

ROOT = Path(__file__).resolve().parents[1]
STUB = ROOT / "rose" / "_core.pyi"

# parameter names without self, each with a * before it when it is variadic or opens the keywords
Signature = tuple[str, ...]


def signature_of(function: ast.FunctionDef) -> Signature:
    """Return the parameters of a parsed function, `name=` when it has a default."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    names = [
        f"{argument.arg}=" if index >= required else argument.arg
        for index, argument in enumerate(positional)
    ]
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        names.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        names.append(f"{argument.arg}=" if default is not None else argument.arg)
    if arguments.kwarg:
        names.append(f"**{arguments.kwarg.arg}")
    return tuple(name for name in names if name != "self")


def signatures_in_docstring(docstring: str, name: str) -> list[Signature]:
    """Return what pybind11 wrote: one signature, or one per overload."""
    lines = re.findall(rf"^(?:\d+\. )?({re.escape(name)}\(.*\).*)$", docstring, re.MULTILINE)
    if len(lines) > 1:
        lines = lines[1:]  # the first of an overloaded function is `name(*args, **kwargs)`
    found = []
    for line in lines:
        text = re.sub(r" = <[^>]*>", " = ...", line)  # a default without a literal: <State.FREE: 0>
        text = re.sub(r" = rose\._core\.[\w.]+(?:\([^)]*\))?", " = ...", text)
        function = ast.parse(f"def {text}: ...").body[0]
        assert isinstance(function, ast.FunctionDef)
        found.append(signature_of(function))
    return found


@dataclass
class Scope:
    """The names of a module or class: signatures of what is callable, and everything else."""

    functions: dict[str, list[Signature]]
    classes: dict[str, "Scope"]
    others: set[str]


def scope_of_stub(body: list[ast.stmt]) -> Scope:
    scope = Scope({}, {}, set())
    for node in body:
        match node:
            case ast.FunctionDef(name=name, decorator_list=decorators):
                kinds = {ast.unparse(decorator) for decorator in decorators}
                if kinds & {"property", f"{name}.setter"}:
                    scope.others.add(name)
                else:
                    scope.functions.setdefault(name, []).append(signature_of(node))
            case ast.ClassDef(name=name, body=inner):
                scope.classes[name] = scope_of_stub(inner)
            case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
                pass  # of use to the stub only
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                scope.others.add(name)
            case ast.If(body=inner, orelse=other):  # if sys.version_info >= ...
                part = scope_of_stub([*inner, *other])
                scope.functions |= part.functions
                scope.classes |= part.classes
                scope.others |= part.others
    return scope


# Written by Python or pybind11 into every class or module.
GIVEN = set(dir(type("Empty", (), {}))) | set(dir(ModuleType("empty")))
GIVEN |= {"_pybind11_conduit_v1_", "__annotations__", "__static_attributes__", "__firstlineno__"}
GIVEN |= {"__file__", "__entries", "__int__", "__index__", "__getstate__", "__setstate__"}


def is_compiled(value: object) -> bool:
    return inspect.isroutine(value) or type(value).__name__ == "instancemethod"


def scope_of_runtime(owner: object) -> Scope:
    scope = Scope({}, {}, set())
    for name, value in vars(owner).items():
        if inspect.isclass(value):
            if value.__module__ == _core.__name__ and value.__qualname__.endswith(name):
                scope.classes[name] = scope_of_runtime(value)
            else:
                scope.others.add(name)
        elif name == "__init__" or (is_compiled(value) and name not in GIVEN):
            signatures = signatures_in_docstring(inspect.getdoc(value) or "", name)
            if signatures:
                scope.functions[name] = signatures
            elif name != "__init__":
                scope.others.add(name)
        elif name not in GIVEN:
            scope.others.add(name)
    return scope


def differences(stub: Scope, real: Scope, owner: object, where: str) -> list[str]:
    """Return one line per difference between the stub and the extension."""
    found = []
    for name in sorted(stub.classes.keys() & real.classes.keys()):
        inner = getattr(owner, name)
        if hasattr(inner, "__members__"):
            stubbed = {other for other in stub.classes[name].others if not other.startswith("_")}
            if stubbed - {"name", "value"} != set(inner.__members__):
                found.append(f"{where}.{name}: members {sorted(stubbed)} in the stub")
        else:
            found += differences(stub.classes[name], real.classes[name], inner, f"{where}.{name}")
    for name in sorted(stub.functions.keys() & real.functions.keys()):
        ours, theirs = stub.functions[name], real.functions[name]
        if name.startswith("__") and name != "__init__":  # called by Python, never by name
            ours, theirs = arity(ours), arity(theirs)
        unnamed = [one for one in theirs for part in one if re.fullmatch(r"arg\d+", str(part))]
        if unnamed and not name.startswith("__"):
            found.append(f"{where}.{name}: a parameter has no name; add py::arg in csrc/bind")
        elif sorted(map(str, ours)) != sorted(map(str, theirs)):
            found.append(f"{where}.{name}: the stub says {ours}, the extension {theirs}")
    names = [
        {name for name in {*scope.functions, *scope.classes, *scope.others} if name not in GIVEN}
        for scope in (stub, real)
    ]
    found += [f"{where}.{name}: in the stub only" for name in sorted(names[0] - names[1])]
    found += [f"{where}.{name}: in the extension only" for name in sorted(names[1] - names[0])]
    return found


def arity(signatures: list[Signature]) -> list[Signature]:
    """Return signatures without names: `__exit__` may say *args for three."""
    return [("*",) if any(p[0] == "*" for p in one) else ("",) * len(one) for one in signatures]


def test_stub_says_what_the_extension_does() -> None:
    found = differences(
        scope_of_stub(ast.parse(STUB.read_text()).body), scope_of_runtime(_core), _core, "_core"
    )
    assert not found, "\n" + "\n".join(found)


def first_function(stub: Scope, real: Scope) -> tuple[str, str | None]:
    """Return a function that both sides have and that takes arguments, and its class if any."""
    for name in stub.functions.keys() & real.functions.keys():
        if stub.functions[name][0]:
            return name, None
    for owner in stub.classes.keys() & real.classes.keys():
        if hasattr(getattr(_core, owner), "__members__"):
            continue
        for name in stub.classes[owner].functions.keys() & real.classes[owner].functions.keys():
            if stub.classes[owner].functions[name][0] and not name.startswith("__"):
                return name, owner
    pytest.fail("the extension has no function with arguments")


@pytest.mark.parametrize("change", ["rename", "drop", "missing", "surplus"])
def test_planted_difference_is_found(change: str) -> None:
    stub, real = scope_of_stub(ast.parse(STUB.read_text()).body), scope_of_runtime(_core)
    name, owner = first_function(stub, real)
    functions = (stub.classes[owner] if owner else stub).functions
    first = functions[name][0]
    if change == "rename":
        functions[name] = [("another", *first[1:]), *functions[name][1:]]
    elif change == "drop":
        functions[name] = [first[1:], *functions[name][1:]]
    elif change == "missing":
        del functions[name]
    else:
        functions["surplus"] = [()]
    found = differences(stub, real, _core, "_core")
    assert len(found) == 1
    assert ("surplus" if change == "surplus" else name) in found[0]


def test_signatures_of_pybind11_are_understood() -> None:
    docstring = """f(*args, **kwargs)
Overloaded function.

1. f(self: rose._core.Pool, a: typing.SupportsInt | typing.SupportsIndex, *, b: bool = True) -> int

2. f(a: rose._core.State = <State.FREE: 0>, *args) -> tuple[int, int]
"""
    assert signatures_in_docstring(docstring, "f") == [("a", "*", "b="), ("a=", "*args")]


@pytest.mark.timeout(300)
def test_stubtest_agrees() -> None:
    # Our configuration, so that mypy does not read all of torch: that takes ten times as long.
    command = ["mypy.stubtest", "rose._core", "--mypy-config-file", "pyproject.toml"]
    options = ["--concise", "--ignore-unused-allowlist", "--allowlist", "tests/stub_allowlist.txt"]
    done = subprocess.run(
        [sys.executable, "-m", *command, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
