"""`_sim.pyi` has the methods and parameters of the extension."""

import ast
import re
from pathlib import Path

from rose_lab import _sim

STUB = Path(_sim.__file__).with_name("_sim.pyi")


def test_the_stub_has_the_methods_and_parameters_of_the_extension() -> None:
    (world,) = (one for one in ast.parse(STUB.read_text()).body if isinstance(one, ast.ClassDef))
    functions = {one.name: one for one in world.body if isinstance(one, ast.FunctionDef)}
    public = {name for name in vars(_sim.ClusterWorld) if not name.startswith("_")}
    assert functions.keys() == public | {"__init__"}
    assert {name for name in vars(_sim) if not name.startswith("_")} == {world.name}
    for name, function in functions.items():
        signature = getattr(_sim.ClusterWorld, name).__doc__.splitlines()[0]
        arguments = [*function.args.args, *function.args.kwonlyargs]
        assert re.findall(r"(\w+): ", signature) == [one.arg for one in arguments], name
