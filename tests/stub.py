"""`make stub`: write the stubs of both extensions from the signatures of the bindings.

pybind11-stubgen reads the signatures that pybind11 writes into docstrings. Three things are added
here, because no C++ type states them: the type of a `py::object` or `py::array`, the values of
enumerations, and that a parameter whose default is None may be None.
"""

import argparse
import ast
import enum
import importlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

# Names for the types below.
ALIASES: Final = """
_Ids: TypeAlias = Sequence[int] | npt.NDArray[np.int32]
# A sequence of 16-byte keys, or one buffer that holds all keys.
_Keys: TypeAlias = Sequence[bytes] | bytes | npt.NDArray[Any]
_Digest: TypeAlias = tuple[int, int]
_Event: TypeAlias = (
    WorkerJoined | WorkerMeasured | WorkerDrained | GrantChanged | WorkerLost | VersionPublished
    | VersionCommitted | TrajectoryCreated | TurnReady | TurnCut | TurnProgress | TurnEnded
    | TrajectoryEnded | Consumed | JobJoined | Paused | Resumed
)
_Action: TypeAlias = Admit | Start | Stop | Deliver | TurnDone | Drop
"""
# Parameters that take a member of an enumeration of Python.
_ENUMS: Final = (("WorkerJoined", "kind"), ("TurnEnded", "end"), ("Drop", "reason"))
_WORDS: Final = "tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]"
# By function: the type of each parameter that is a `py::object`, and of such a result.
TYPES: Final[dict[str, dict[str, str]]] = {
    "BlockAllocator.alloc": {"return": "list[int] | None"},
    "BlockAllocator.free": {"ids": "_Ids"},
    "BlockAllocator.share": {"ids": "_Ids"},
    "BlockAllocator.set_cache_namespace": {"key": "bytes | tuple[str, int]"},
    "BlockAllocator.publish": {"ids": "_Ids", "keys": "_Keys"},
    "BlockAllocator.lookup": {"keys": "_Keys", "return": "list[int]"},
    "BlockAllocator.acquire": {"keys": "_Keys", "return": "list[int]"},
    "BlockAllocator.forget": {"ids": "_Ids"},
    "BlockAllocator.plan_evacuation": {
        "slabs": "_Ids | None",
        "return": "tuple[list[int], list[int]]",
    },
    "BlockAllocator.finish_evacuation": {
        "from_ids": "_Ids",
        "to_ids": "_Ids",
        "return": "list[int]",
    },
    "BlockAllocator.cancel_evacuation": {"from_ids": "_Ids", "to_ids": "_Ids"},
    "BlockAllocator.commit": {"return": "list[int] | None"},
    "BlockAllocator.pin": {"ids": "_Ids"},
    "BlockAllocator.slabs_of": {"ids": "_Ids"},
    "BlockAllocator.pin_slabs": {"slabs": "Sequence[int]"},
    "Arbiter.grant": {"return": "Grant | GrantRefusal"},
    "HostGate.wait_parked": {"return": "float | None"},
    "ChunkClient.next": {"return": "tuple[int, bytes | None] | None"},
    "SchedulerCore.step": {"events": "Sequence[_Event]", "return": "list[_Action]"},
    **{f"{kind}.__init__": {part: "enum.Enum"} for kind, part in _ENUMS},
    "SchedulerCore.stats": {"return": "dict[str, Any]"},
    "admission_certificate": {"log": "CertificateLog | None"},
    "delta_pack": {
        "ages": "npt.NDArray[np.uint8] | None",
        "return": "tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], _Digest, _Digest]",
    },
    "delta_merge": {"return": _WORDS},
    "digest": {"return": "_Digest"},
    "digests": {"return": "list[_Digest]"},
    "pack_tiles": {"return": "list[tuple[Any, ...] | None]"},
    "strat_pack": {"return": _WORDS},
    "strat_unpack": {"return": _WORDS},
    "topk_threshold": {
        "new": "npt.NDArray[np.uint16]",
        "shadow": "npt.NDArray[np.uint16]",
        "ages": "npt.NDArray[np.uint8] | None",
    },
    "wire_pack": {
        "return": "tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], _Digest, _Digest, "
        "npt.NDArray[np.uint64], npt.NDArray[np.uint32]]"
    },
    "topk_unpack": {"return": "tuple[npt.NDArray[np.int64], npt.NDArray[Any]]"},
}


@dataclass(frozen=True)
class Extension:
    """An extension and its stub.

    Args:
        module: import name.
        path: the stub, from the root.
        types: see `TYPES`.
        aliases: see `ALIASES`.
        imports: lines that import the classes of another extension.
    """

    module: str
    path: str
    types: dict[str, dict[str, str]] = field(default_factory=dict)
    aliases: str = ""
    imports: tuple[str, ...] = ()


CORE: Final = Extension("rose._core", "rose/_core.pyi", TYPES, ALIASES)
SIMULATOR: Final = Extension(
    "rose_lab._sim",
    "bench/lab/rose_lab/_sim.pyi",
    {
        "ClusterWorld.run": {
            "on_progress": "Callable[[float, int], bool] | None",
            "return": "dict[str, Any]",
        }
    },
    imports=("from rose._core import SchedulerCore",),
)
_SHORTER: Final = (
    # pybind11 converts any number-like object; rose passes numbers.
    (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
    (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
    (r"numpy\.ndarray\b", "npt.NDArray[typing.Any]"),
    (r"numpy\.typing\.", "npt."),
    (r"\bnumpy\.", "np."),
    (r"\btyping_extensions\.", ""),
    (r"\bcollections\.abc\.", ""),
    (r"\btyping\.", ""),
    (r"\brose\._core\.", ""),
)
_SOURCES: Final = {
    "collections.abc": ("Callable", "Iterable", "Iterator", "Mapping", "Sequence"),
    "typing": ("Any", "ClassVar", "TypeAlias", "final", "overload"),
    "typing_extensions": ("Buffer", "CapsuleType"),
}
_HEAD: Final = """# Written by `make stub`: change the C++ bindings, or tests/stub.py.
# The C++ headers describe the contracts and units of these classes and functions.
"""


class Completed(ast.NodeTransformer):
    """Adds to a stub what C++ types do not say; `missing` are the entries that fit nothing."""

    def __init__(self, module: object, types: dict[str, dict[str, str]]) -> None:
        self._owners: list[object] = [module]
        self._types = types
        self.missing = {(name, part) for name, parts in types.items() for part in parts}

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        owner = getattr(self._owners[-1], node.name)
        if issubclass(owner, enum.Enum):
            members = [f"{one.name} = {one.value!r}" for one in owner]
            node.body = ast.parse("\n".join(members)).body
            node.decorator_list = [ast.Name("final")]
            return node
        # A class with `__eq__` has no hash in Python's own rules.
        node.body = [one for one in node.body if not ast.unparse(one).startswith("__hash__:")]
        self._owners.append(owner)
        self.generic_visit(node)
        self._owners.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        names = [owner.__name__ for owner in self._owners[1:] if isinstance(owner, type)]
        types = self._types.get(".".join([*names, node.name]), {})
        arguments = node.args
        if any(ast.unparse(one).endswith(".setter") for one in node.decorator_list):
            arguments.args[1].arg = "value"
        positional = [*arguments.posonlyargs, *arguments.args]
        without = [None] * (len(positional) - len(arguments.defaults))
        defaults = [*without, *arguments.defaults, *arguments.kw_defaults]
        for one, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True):
            if one.arg in types:
                one.annotation = self._typed(node.name, names, one.arg)
            elif ast.unparse(default or ast.Constant(0)) == "None" and one.annotation:
                text = ast.unparse(one.annotation)
                if "None" not in text and text != "Any":
                    one.annotation = ast.parse(f"{text} | None", mode="eval").body
        if "return" in types:
            node.returns = self._typed(node.name, names, "return")
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Leave out what `Annotated` adds to a type: the length of an array."""
        self.generic_visit(node)
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        return node

    def _typed(self, function: str, names: list[str], part: str) -> ast.expr:
        key = ".".join([*names, function])
        self.missing.discard((key, part))
        return ast.parse(self._types[key][part], mode="eval").body


def generated(name: str) -> str:
    """Return what pybind11-stubgen writes for a module."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", name, "-o", folder, "--exit-code"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"pybind11-stubgen failed:\n{done.stderr}")
        return Path(folder, *name.split(".")).with_suffix(".pyi").read_text()


def shortened(text: str) -> str:
    """Return a stub with the names of types as rose writes them."""
    for pattern, short in _SHORTER:
        text = re.sub(pattern, short, text)
    return text


def stub_of(extension: Extension) -> str:
    """Return the stub of an extension.

    Raises:
        SystemExit: an entry of `types` fits no function, or a parameter has no name.
    """
    tree = ast.parse(shortened(generated(extension.module)))
    tree.body = [
        node
        for node in tree.body
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)
        and not (isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "__all__")
    ]
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            node.value = None
    completed = Completed(importlib.import_module(extension.module), extension.types)
    tree = ast.fix_missing_locations(completed.visit(tree))
    if completed.missing:
        raise SystemExit(f"tests/stub.py types what is not there: {sorted(completed.missing)}")
    body = ast.unparse(tree)
    if unnamed := re.findall(r"def (\w+)\([^)]*\barg\d", body):
        raise SystemExit(f"a parameter has no name; add py::arg in csrc/bind: {unnamed}")
    imports = ["import enum", "import numpy as np", "import numpy.typing as npt"]
    for source, names in _SOURCES.items():
        if used := [one for one in names if re.search(rf"\b{one}\b", extension.aliases + body)]:
            imports.append(f"from {source} import {', '.join(used)}")
    imports += extension.imports
    return formatted("\n".join([_HEAD, *imports, extension.aliases, body, ""]))


def formatted(text: str) -> str:
    """Return the text as ruff writes it."""
    rules = "I,F401,PYI009,PYI029,PYI032,PYI054"
    for command in (["check", f"--select={rules}", "--fix-only", "-q"], ["format", "-q"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename=rose/_core.pyi", "-"],
            cwd=ROOT,
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for one in (CORE, SIMULATOR):
        (ROOT / one.path).write_text(stub_of(one))
