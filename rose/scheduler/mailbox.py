"""A bounded queue between two threads that can be closed."""

import threading
from collections import deque
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class Nothing(Enum):
    """Why a mailbox gave nothing."""

    YET = "nothing came in time"
    MORE = "it is closed, and all was taken"


class Mailbox(Generic[T]):
    """Keeps what one thread puts until another takes it, in order."""

    def __init__(self, *, items_max: int) -> None:
        """Start open and empty; it holds `items_max` items at most."""
        self._items_max = items_max
        self._items: deque[T] = deque()
        self._is_closed = False
        # Guards the items and the end.
        self._changed = threading.Condition()

    def put(self, item: T) -> bool:
        """Put an item at the end; False if it is closed or full. Never waits."""
        with self._changed:
            if self._is_closed or len(self._items) >= self._items_max:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def take(self, *, wait_s: float) -> T | Nothing:
        """Take the first item; wait for one for `wait_s` at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_closed, timeout=wait_s)
            if self._items:
                return self._items.popleft()
            return Nothing.MORE if self._is_closed else Nothing.YET

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more in."""
        with self._changed:
            return self._is_closed

    def close(self, *, is_emptied: bool = False) -> None:
        """Take nothing more in; what is there can still be taken, unless `is_emptied`."""
        with self._changed:
            self._is_closed = True
            if is_emptied:
                self._items.clear()
            self._changed.notify_all()
