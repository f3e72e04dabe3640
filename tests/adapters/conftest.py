"""Tests of the rollout service are coroutines: each runs in a loop of its own."""

from importlib.util import find_spec

from tests.scheduler.conftest import pytest_pyfunc_call  # noqa: F401 (a hook)

# There is no fastapi for Python 3.10.
collect_ignore_glob = [] if find_spec("fastapi") else ["test_*.py"]
