"""Closing of objects that own threads, sockets or files."""

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from typing_extensions import ParamSpec, Self

from rose.errors import Unavailable
from rose.thread import Thread


class Closing:
    """Base class that calls `close` at the end of a `with` block."""

    __slots__ = ()

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Once:
    """Closes an object once: `def close(self): self._once(self._close)`.

    Any thread may call it. Every call returns after the first one has ended, unless it comes from
    within the first one. In a forked child it does nothing, because the object's threads do not
    exist there, and its sockets and shared memory belong to the parent.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # Held while the object is closed.
        self.has_begun = False

    def check_open(self, what: str) -> None:
        """Raise in a forked child, and after `close`.

        Raises:
            Unavailable: `what` was closed, or the parent of this process opened it.
        """
        if self._pid != os.getpid():
            raise Unavailable(f"a forked child cannot use {what} that its parent opened")
        if self.has_begun:
            raise Unavailable(f"{what} was closed")

    def when_dropped(self, owner: object, close: Callable[[], None]) -> None:
        """Close in a thread of its own if `owner` is dropped before it was closed.

        The thread that drops it may hold any lock, so it cannot close it itself. The end of the
        program is no drop: daemon threads and sockets end with the process.

        Args:
            owner: object to watch. Running threads must not refer to it; see `weakly`.
            close: function without a reference to `owner`.
        """
        weakref.finalize(owner, self._close_aside, close).atexit = False

    def _close_aside(self, close: Callable[[], None]) -> None:
        if not self.has_begun and self._pid == os.getpid():
            Thread(lambda: self(close), name="rose-close", on_failure=lambda _: None).start()

    def __call__(self, close: Callable[[], None]) -> None:
        """Run `close`, unless it was run before; its exception is raised to this caller only."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self.has_begun:
                self.has_begun = True
                close()


P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T | None]:
    """Return a function for a thread that calls a bound method as long as its object exists.

    Afterwards it returns None.
    """
    known = weakref.WeakMethod(method)

    def call(*arguments: P.args, **named: P.kwargs) -> T | None:
        found = known()
        return None if found is None else found(*arguments, **named)

    return call
