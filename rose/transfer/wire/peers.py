"""The identity of a weight server, which it sends on request."""

import threading
from collections.abc import Sequence

from rose.errors import InvalidArgument
from rose.transfer.wire.messages import ROLES, HelloReply, RelayPlace, TensorEntry


class Peers:
    """Identity of a server. Any thread may read and change it.

    Args:
        name: name of the server.
        role: one of `ROLES`.
        layout: layout id; "" if unknown.
        tensors: tensors of the checkpoint; () if the weights are not a checkpoint.
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
            raise InvalidArgument(f"role '{role}': choose one of {', '.join(ROLES)}")
        self._name, self._role = name, role
        self._lock = threading.Lock()  # guards the fields below
        self._layout, self._tensors = layout, tuple(tensors)
        self._relays: tuple[RelayPlace, ...] = ()

    def hello(self, chunk_port: int) -> HelloReply:
        """Return the answer to `Hello`."""
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
        """Set layout, tensors and relays."""
        with self._lock:
            self._layout, self._tensors, self._relays = layout, tuple(tensors), tuple(relays)
