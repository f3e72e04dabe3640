"""Threads whose failures are reported, and pools of threads."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Thread(threading.Thread):
    """A thread that reports an uncaught exception to its owner and prints the traceback.

    All threads of rose use it. `failure` is None while the thread runs and after a normal end;
    otherwise it is the exception.
    """

    def __init__(
        self,
        work: Callable[[], None],
        *,
        name: str,
        on_failure: Callable[[BaseException], None],
        daemon: bool = True,
    ) -> None:
        """Prepare the thread.

        Args:
            work: the thread's function.
            name: thread name.
            on_failure: called in the thread with the exception; it must stop or report the parts
                that depend on the thread.
            daemon: whether the process may end while the thread runs.
        """
        super().__init__(name=name, daemon=daemon)
        self._work = work
        self._on_failure = on_failure
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Do the work; report a failure to the owner, then to `threading.excepthook`."""
        try:
            self._work()
        finally:
            self.failure = sys.exc_info()[1]
            if self.failure is not None:
                self._on_failure(self.failure)
            # A reference to an ended thread must not keep alive what its functions refer to.
            del self._work, self._on_failure


class ThreadPool(Executor):
    """Runs calls on daemon threads, so that no call delays the end of the program.

    `concurrent.futures.ThreadPoolExecutor` waits for its calls before the program ends, even after
    an uncaught exception, and then raises in every thread that submits another.

    Args:
        threads_max: number of calls that run at the same time; further calls wait.
        name: name of the threads.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max, self._name = threads_max, name
        self._changed = threading.Condition()  # Guards the fields below.
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: list[Thread] = []
        self._idle = 0
        self._is_closed = False

    def submit(self, work: Callable[..., T], /, *arguments: Any) -> Future[T]:  # type: ignore[override]
        """Run a call as soon as a thread is free; arguments are positional only.

        Raises:
            RuntimeError: the pool was shut down, as `ThreadPoolExecutor` reports it.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the thread pool was shut down")
            self._waiting.append((future, partial(work, *arguments)))
            if len(self._waiting) > self._idle and len(self._threads) < self._threads_max:
                thread = Thread(self._run, name=self._name, on_failure=lambda _: None)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Refuse further calls, and join the threads when the submitted calls have ended.

        Args:
            wait: False returns at once, and the threads end later.
            cancel_futures: True cancels submitted calls that have not started.
        """
        with self._changed:
            self._is_closed = True
            left = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            self._changed.notify_all()
        for future, _ in left:
            future.cancel()
        for thread in self._threads if wait else ():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                self._idle -= 1
                if not self._waiting:
                    return
                future, call = self._waiting.popleft()
            _answer(future, call)
            del future, call  # An idle thread must not keep a result alive.


def _answer(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    with suppress(Exception):  # The caller gets it from the future.
        try:
            future.set_result(call())
        finally:
            error = sys.exc_info()[1]
            if error is not None:
                future.set_exception(error)
