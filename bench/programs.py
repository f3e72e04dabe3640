"""The C++ programs of this folder: the call from Python would dominate what they measure.

Each is built with the rooms of csrc that it includes, at the compiler's level of the extension.
"""

import subprocess
from collections.abc import Callable
from typing import Final

from rose.errors import check
from tests.cpp.rooms import build, folder_of

_KIND: Final = "bench"
_DEADLINE_S: Final = 300.0  # for one run; the longest takes seconds


def program(name: str) -> Callable[..., list[str]]:
    """Build a program; return a function of its arguments that returns the words it prints."""
    built = build([name], _KIND)
    check(built.returncode == 0, f"bench/{name}.cpp did not build:\n{built.stdout}")

    def run(*arguments: int) -> list[str]:
        command = [str(folder_of(_KIND) / name), *map(str, arguments)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_DEADLINE_S
        )
        return done.stdout.split()

    return run
