"""The threads of a gRPC server, which know how many calls they have."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class CallThreads(ThreadPoolExecutor):
    """What a gRPC server runs its calls in.

    Any thread. The condition guards the number of calls.

    Args:
        name: of the threads.
        most: how many there are.
    """

    def __init__(self, name: str, most: int) -> None:
        super().__init__(most, name)
        self._changed = threading.Condition()
        self._calls = 0

    @property
    def calls(self) -> int:
        """Return how many run, or wait for a thread."""
        with self._changed:
            return self._calls

    def submit(self, work: Callable[..., T], /, *arguments: Any) -> Future[T]:  # type: ignore[override]
        """Run a call, as gRPC asks for it: without names."""
        future = super().submit(work, *arguments)
        with self._changed:
            self._calls += 1
        future.add_done_callback(self._ended)
        return future

    def join(self, timeout_s: float) -> bool:
        """Take no more calls, and wait for those that run; return whether they ended in time."""
        self.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            has_ended = self._changed.wait_for(lambda: self._calls == 0, timeout_s)
        if has_ended:
            self.shutdown()
        return has_ended

    def _ended(self, _call: Future[Any]) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()
