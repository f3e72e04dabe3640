"""Tests of programs may be coroutines: each runs in a loop of its own."""

from tests.scheduler.conftest import pytest_pyfunc_call  # noqa: F401 (a hook)
