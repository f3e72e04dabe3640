"""Being told to end is an interrupt: what was started is stopped, and reported."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the main thread also for SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
