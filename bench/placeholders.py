"""Placeholders for packages that another project imports but its measured part never uses."""

import importlib.util
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _AnyName(type):
    """Can be a base class wherever a class of the missing package would be."""

    def __getattr__(cls, name: str) -> "type[Placeholder]":
        return _unless_special(name)

    def __getitem__(cls, item: Any) -> "_AnyName":
        return cls

    def __or__(cls, other: Any) -> "_AnyName":
        return cls

    def __ror__(cls, other: Any) -> "_AnyName":
        return cls


class Placeholder(metaclass=_AnyName):
    """Every name of a missing package: usable at import, without behaviour.

    It can be an annotation, a base class, and a decorator that returns the function.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Placeholder and len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> "type[Placeholder]":
        return _unless_special(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


def _unless_special(name: str) -> type[Placeholder]:
    # Names that Python itself looks up (`__file__`, `__iter__`) do not exist.
    if name.startswith("__"):
        raise AttributeError(name)
    return Placeholder


class _PlaceholderModule(ModuleType):
    def __getattr__(self, name: str) -> type[Placeholder]:
        return _unless_special(name)


class _Finder(MetaPathFinder, Loader):
    def __init__(self, roots: Collection[str]) -> None:
        self._roots = roots

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._roots:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def placeholders(packages: Collection[str]) -> Iterator[None]:
    """Make missing `packages` importable until the end of the context.

    Afterwards they are missing again, so that no other code takes a placeholder for the package.
    """
    missing = {name for name in packages if importlib.util.find_spec(name) is None}
    finder = _Finder(missing)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in missing]:
            del sys.modules[name]
