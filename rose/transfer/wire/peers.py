"""Who serves, and who said that it receives: what a weight server answers beside versions."""

import threading
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rose.clock import BootClock, Clock
from rose.errors import InvalidArgument
from rose.transfer.wire.messages import (
    ROLES,
    HelloReply,
    RelayPlace,
    SubscribeRequest,
    TensorEntry,
)
from rose.units import NS_PER_MS

SUBSCRIBERS_MAX: Final = 1024
# Of all subscribers together: 256 MiB.
TILES_MAX: Final = 1 << 26


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
        # Who is heard of first is first; their tiles are packed, for there are very many.
        self._subscribers: dict[str, tuple[SubscribeRequest, array[int]]] = {}
        self._tiles = 0

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

    def subscribe(self, request: SubscribeRequest) -> None:
        """Note who receives what; who says it again means it anew.

        Names come and go with processes: of too many, those not heard of for longest are dropped.
        """
        tiles = array("I", request.tiles or ())
        known = replace(request, tiles=None if request.tiles is None else ())
        with self._lock:
            self._forget(request.receiver)
            self._subscribers[request.receiver] = known, tiles
            self._tiles += len(tiles)
            while len(self._subscribers) > SUBSCRIBERS_MAX or (
                self._tiles > TILES_MAX and len(self._subscribers) > 1
            ):
                self._forget(next(iter(self._subscribers)))

    def _forget(self, receiver: str) -> None:
        if (gone := self._subscribers.pop(receiver, None)) is not None:
            self._tiles -= len(gone[1])

    @property
    def subscriber_count(self) -> int:
        """Return how many subscribed."""
        with self._lock:
            return len(self._subscribers)

    @property
    def subscribers(self) -> dict[str, SubscribeRequest]:
        """Return who subscribed, by name."""
        with self._lock:
            known = dict(self._subscribers)
        return {
            name: one if one.tiles is None else replace(one, tiles=tuple(tiles))
            for name, (one, tiles) in known.items()
        }
