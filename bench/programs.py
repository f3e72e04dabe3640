"""The C++ programs of this folder: the call from Python would dominate what they measure.

Each is built with the rooms of csrc that it includes, at the compiler's level of the extension.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rose.errors import check
from tests.cpp.rooms import build, folder_of

_KIND: Final = "bench"
_DEADLINE_S: Final = 300.0  # for one run; the longest takes seconds


def built(name: str) -> Path:
    """Build a program, and return its path."""
    done = build([name], _KIND)
    check(done.returncode == 0, f"bench/{name}.cpp did not build:\n{done.stdout}")
    return folder_of(_KIND) / name


def program(name: str) -> Callable[..., list[str]]:
    """Build a program; return a function of its arguments that returns the words it prints."""
    path = built(name)

    def run(*arguments: int) -> list[str]:
        command = [str(path), *map(str, arguments)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_DEADLINE_S
        )
        return done.stdout.split()

    return run
