"""A bounded queue between two threads, which can be closed."""

import threading
from collections import deque
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class Nothing(Enum):
    """Why `take` returned no item."""

    YET = "nothing came in time"
    MORE = "it is closed, and all was taken"


class Outbox(Generic[T]):
    """Keeps one thread's items in order until another thread takes them."""

    def __init__(self, *, items_max: int) -> None:
        """Start open and empty, for at most `items_max` items."""
        self._items_max = items_max
        self._items: deque[T] = deque()
        self._is_closed = False
        # Guards `_items` and `_is_closed`.
        self._changed = threading.Condition()

    def put(self, item: T) -> bool:
        """Append an item; return False if the queue is closed or full. Never waits."""
        with self._changed:
            if self._is_closed or len(self._items) >= self._items_max:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def take(self, *, wait_s: float) -> T | Nothing:
        """Remove and return the first item; wait at most `wait_s` seconds for an item."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_closed, timeout=wait_s)
            if self._items:
                return self._items.popleft()
            return Nothing.MORE if self._is_closed else Nothing.YET

    @property
    def is_closed(self) -> bool:
        """True if the queue accepts no more items."""
        with self._changed:
            return self._is_closed

    def close(self, *, is_emptied: bool = False) -> None:
        """Accept no more items; present ones can still be taken, unless `is_emptied`."""
        with self._changed:
            self._is_closed = True
            if is_emptied:
                self._items.clear()
            self._changed.notify_all()
