"""The stubs of both extensions are what `make stub` writes."""

import ast
import dataclasses
import inspect

import pytest

from rose import _core
from tests import stub

WRITTEN = stub.ROOT / stub.CORE.path


@pytest.mark.parametrize("extension", [stub.CORE, stub.SIMULATOR], ids=lambda one: one.module)
def test_stub_is_current(extension: stub.Extension) -> None:
    assert (stub.ROOT / extension.path).read_text() == stub.stub_of(extension), (
        f"{extension.path} is out of date: run `make stub`"
    )


def test_stub_has_every_name_of_the_extension() -> None:
    written = {
        node.name: node
        for node in ast.parse(WRITTEN.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    for name, value in vars(_core).items():
        if inspect.isclass(value):
            body = ast.unparse(written[name])
            members = [one for one in vars(value) if not one.startswith("_")]
            assert [one for one in members if one not in body] == [], name
        elif callable(value) and not name.startswith("_"):
            assert name in written


def test_type_for_a_function_that_does_not_exist_is_refused() -> None:
    types = {**stub.TYPES, "Pool.forgotten": {"return": "int"}, "digest": {"no_such": "int"}}
    with pytest.raises(
        SystemExit, match=r"\('Pool.forgotten', 'return'\), \('digest', 'no_such'\)"
    ):
        stub.stub_of(dataclasses.replace(stub.CORE, types=types))


def test_none_is_a_type_where_it_is_a_default() -> None:
    tree = ast.parse("def create(*, device: Device = None, name: str | None = None): ...")
    completed = stub.Completed(_core, {})
    assert ast.unparse(completed.visit(tree)) == (
        "def create(*, device: Device | None=None, name: str | None=None):\n    ..."
    )
