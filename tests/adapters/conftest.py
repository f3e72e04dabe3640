"""Tests of the rollout service are coroutines: each runs in a loop of its own."""

import pytest

pytest.importorskip("fastapi")

from tests.scheduler.conftest import pytest_pyfunc_call  # noqa: F401 (a hook)
