"""Who serves, and who said that it receives: what a weight server answers beside versions."""

import threading
from collections.abc import Sequence
from typing import Final

from rose.clock import BootClock, Clock
from rose.errors import InvalidArgument
from rose.transfer.wire.messages import (
    ROLES,
    HelloReply,
    RelayPlace,
    TensorEntry,
)
from rose.units import NS_PER_MS

SUBSCRIBERS_MAX: Final = 1024


class Peers:
    """A register that is asked and filled by any thread.

    Args:
        name: of who serves.
        role: one of `ROLES`.
        layout: how the weights are cut; "" while that is not known.
        tensors: of the checkpoint that the weights are, where they are one.
    """

    def __init__(
        self,
        name: str = "",
        role: str = "publisher",
        *,
        layout: str = "",
        tensors: Sequence[TensorEntry] = (),
        clock: Clock | None = None,
    ) -> None:
        if role not in ROLES:
            raise InvalidArgument(f"role '{role}': choose of {', '.join(ROLES)}")
        self._name, self._role = name, role
        self._clock = BootClock() if clock is None else clock
        self._since_ns = self._clock.now_ns()
        self._lock = threading.Lock()  # guards what follows
        self._layout, self._tensors = layout, tuple(tensors)
        self._relays: tuple[RelayPlace, ...] = ()
        self._subscribers: dict[str, None] = {}  # who was not heard of for longest is first

    def hello(self, chunk_port: int) -> HelloReply:
        """Say who serves."""
        up_ms = (self._clock.now_ns() - self._since_ns) // NS_PER_MS
        with self._lock:
            known = self._layout, chunk_port, self._relays, self._tensors
        return HelloReply(self._name, self._role, up_ms, *known)

    def announce(
        self,
        layout: str,
        *,
        tensors: Sequence[TensorEntry] = (),
        relays: Sequence[RelayPlace] = (),
    ) -> None:
        """Let this be the cut from now on, of these tensors, and these the relays."""
        with self._lock:
            self._layout, self._tensors, self._relays = layout, tuple(tensors), tuple(relays)

    def subscribe(self, receiver: str) -> None:
        """Note who receives.

        Names come and go with processes: of too many, the one not heard of for longest is dropped.
        """
        with self._lock:
            self._subscribers.pop(receiver, None)
            self._subscribers[receiver] = None
            if len(self._subscribers) > SUBSCRIBERS_MAX:
                del self._subscribers[next(iter(self._subscribers))]

    @property
    def subscriber_count(self) -> int:
        """Return how many subscribed."""
        with self._lock:
            return len(self._subscribers)
