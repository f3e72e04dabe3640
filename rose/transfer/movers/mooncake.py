"""Mooncake's transfer engine over its TCP transport (mooncake-transfer-engine 0.3.13).

It listens on all addresses, whatever it is told, and asks nobody who they are: a porter is in a
network where that reaches nobody. A read outside of what was registered is refused by the other
side.
"""

from importlib import import_module
from typing import Any, Final

from rose.errors import Unavailable
from rose.transfer.movers.bounce import Bounce

ENVIRONMENT: Final = {"MC_FORCE_TCP": "1", "MC_LOG_LEVEL": "ERROR"}
_HOST: Final = "127.0.0.1"


class MooncakeMover:
    """One engine; its own threads answer those who read."""

    poll_s: Final = None

    def __init__(self, module: str, bounce: Bounce) -> None:
        self._bounce = bounce
        self._engine: Any = import_module(f"{module}.engine").TransferEngine()
        # Metadata goes from peer to peer, so no server for it is needed.
        if self._engine.initialize(_HOST, "P2PHANDSHAKE", "tcp", "") != 0:
            raise Unavailable("mooncake cannot be initialized with its TCP transport")
        if self._engine.register_memory(bounce.address, bounce.nbytes) != 0:
            raise Unavailable("mooncake does not take the memory that frames lie in")

    @property
    def peer(self) -> str:
        """Return the name that others know the engine by."""
        return f"{_HOST}:{self._engine.get_rpc_port()}"

    def progress(self) -> None:
        """Do nothing: see above."""

    def read(self, peer: str, at: int, nbytes: int) -> bool:
        """Read; the engine gives up by itself at some time."""
        return bool(self._engine.transfer_sync_read(peer, self._bounce.address, at, nbytes) == 0)
