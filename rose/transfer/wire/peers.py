"""Who serves: what a weight server answers beside versions."""

import threading
from collections.abc import Sequence

from rose.errors import InvalidArgument
from rose.transfer.wire.messages import ROLES, HelloReply, RelayPlace, TensorEntry


class Peers:
    """What is known of who serves. Any thread asks and fills it.

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
    ) -> None:
        if role not in ROLES:
            raise InvalidArgument(f"role '{role}': choose of {', '.join(ROLES)}")
        self._name, self._role = name, role
        self._lock = threading.Lock()  # guards what follows
        self._layout, self._tensors = layout, tuple(tensors)
        self._relays: tuple[RelayPlace, ...] = ()

    def hello(self, chunk_port: int) -> HelloReply:
        """Say who serves."""
        with self._lock:
            known = self._layout, chunk_port, self._relays, self._tensors
        return HelloReply(self._name, self._role, *known)

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
