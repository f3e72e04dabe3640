"""Processes that start within milliseconds: forks of one that has imported what they need."""

import multiprocessing
from typing import Final

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["__main__", "tests.scheduler.elastic_process", "tests.executor.tenant_program"]
)
