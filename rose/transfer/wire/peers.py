"""The identity of a weight server, which it sends on request."""

from collections.abc import Sequence
from dataclasses import replace

from rose.errors import InvalidArgument
from rose.transfer.wire.messages import (
    REPLY_BYTES_MAX,
    ROLES,
    HelloReply,
    RelayPlace,
    TensorEntry,
    encode,
)


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
        self._hello = HelloReply(name, role, layout, tensors=tuple(tensors))
        if (nbytes := len(encode(self._hello))) > REPLY_BYTES_MAX:
            raise InvalidArgument(
                f"the names of {len(tensors)} tensors take {nbytes} bytes in one message, of which "
                f"{REPLY_BYTES_MAX} are allowed: publish fewer, larger tensors"
            )

    def hello(self, chunk_port: int) -> HelloReply:
        """Return the answer to `Hello`."""
        return replace(self._hello, chunk_port=chunk_port)

    def announce(
        self,
        layout: str,
        *,
        tensors: Sequence[TensorEntry] = (),
        relays: Sequence[RelayPlace] = (),
    ) -> None:
        """Set layout, tensors and relays."""
        self._hello = replace(
            self._hello, layout=layout, tensors=tuple(tensors), relays=tuple(relays)
        )
