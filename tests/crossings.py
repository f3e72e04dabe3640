"""Count how often Python calls into `rose._core`."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import rose._core as core


@contextmanager
def crossings() -> Iterator[list[str]]:
    """Collect the names of the functions of `rose._core` that this thread calls.

    The interpreter reports calls of builtin functions to a profiler, but only calls that Python
    code makes. It reports no getter of a property, and no method that it calls itself, as `map`
    does. So all methods and properties are replaced, for the time of the `with` block, by Python
    functions that call the builtin.
    """
    found: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event != "c_call" or argument is sys.setprofile:
            return
        if frame.f_code.co_filename == __file__:
            found.append(frame.f_code.co_name)
        elif getattr(argument, "__module__", None) == core.__name__:
            found.append(argument.__name__)

    members = [
        (owner, name, value)
        for _, owner in inspect.getmembers(core, inspect.isclass)
        for name, value in vars(owner).items()
        if type(value) is property or type(value).__name__ == "instancemethod"
    ]
    for owner, name, value in members:
        label = f"{owner.__name__}.{name}"
        if isinstance(value, property):
            setter = None if value.fset is None else _reported(value.fset, label)
            setattr(owner, name, property(_reported(value.fget, label), setter))
        else:
            setattr(owner, name, _reported(value.__func__, label))
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)
        for owner, name, value in members:
            setattr(owner, name, value)


def _reported(builtin: Callable[..., Any], label: str) -> Callable[..., Any]:
    """Return a Python function that calls `builtin`; `label` is the name of its code."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return builtin(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=label)
    return call
