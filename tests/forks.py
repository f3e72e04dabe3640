"""Forks: processes that start within milliseconds, and helpers that outlive their parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.waiting import LONG_S

ROOT: Final = Path(__file__).resolve().parents[1]

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["__main__", "tests.scheduler.elastic_process", "tests.executor.tenant_program"]
)


_FORKING: Final = """
import os, time
helper = os.fork()
if helper == 0:
    time.sleep(600)
    os._exit(0)
print(helper, flush=True)
time.sleep(600)
"""


@contextmanager
def beside_helper(opening: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program that opens something and then forks a helper, until the block ends.

    The helper outlives the program if the block kills it.
    """
    command = [sys.executable, "-c", opening + _FORKING, *map(str, arguments)]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    helper = int(program.stdout.readline())
    try:
        yield program
    finally:
        program.kill()
        program.wait(LONG_S)
        os.kill(helper, signal.SIGKILL)
