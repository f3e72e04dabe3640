"""How tests wait for what another thread or process does."""

import time
from collections.abc import Callable

#: Seconds after which a test that waits has failed. It only bounds a hang.
LONG_S = 200.0


def wait_for(condition: Callable[[], object], *, timeout_s: float = LONG_S) -> None:
    """Return once ``condition()`` is true; fail when it is not after ``timeout_s`` seconds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.001)
