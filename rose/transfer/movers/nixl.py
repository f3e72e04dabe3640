"""NIXL over UCX's TCP transport (nixl 1.5).

UCX reads and writes whatever address of a process a peer names: what NIXL knows of registered
memory is only looked at by the side that asks. So whoever reaches the port has the process. A
porter has nothing but the offered chunks, in a network that only processes of one user can enter.

UCX also aborts a process from which somebody read who died in the middle ("Fatal: unexpected error:
Endpoint timeout"). That is a porter too, and the next receiver finds another one.
"""

import os
from importlib import import_module
from typing import Any, Final

from rose.clock import BootClock, Clock
from rose.transfer.movers.bounce import Bounce

# Frames are in memory of the host, and a porter has no business on serving's GPU.
ENVIRONMENT: Final = {"NIXL_LOG_LEVEL": "FATAL", "CUDA_VISIBLE_DEVICES": ""}
# Not by UCX_TLS, which NIXL refuses to be "tcp" where there is a GPU.
UCX: Final = {"engine_config": "TLS=tcp,NET_DEVICES=lo"}
_POLL_S: Final = 50e-6
_KIND: Final = "DRAM"


class NixlMover:
    """One agent, without its progress thread: that takes a core, also while nothing is carried."""

    poll_s: Final = _POLL_S

    def __init__(self, module: str, bounce: Bounce, clock: Clock | None = None) -> None:
        self._bounce = bounce
        self._clock = BootClock() if clock is None else clock
        nixl = import_module(module)
        config = nixl.nixl_agent_config(enable_prog_thread=False, backends=[])
        self._agent: Any = nixl.nixl_agent(f"rose-{os.getpid()}", config)
        self._agent.create_backend("UCX", UCX)
        self._agent.register_memory([(bounce.address, bounce.nbytes, 0, "")], _KIND)
        self._peers: dict[str, str] = {}  # names of agents, by what they are told

    @property
    def peer(self) -> str:
        """Return the metadata of the agent."""
        return bytes(self._agent.get_agent_metadata()).hex()

    def progress(self) -> None:
        """Look at what came for this agent, which is what lets UCX answer."""
        self._agent.get_new_notifs()

    def read(self, peer: str, at: int, nbytes: int) -> bool:
        """Read; without the progress thread, looking at the state is what moves it on."""
        if peer not in self._peers:
            self._peers[peer] = self._agent.add_remote_agent(bytes.fromhex(peer))
        mine = self._agent.get_xfer_descs([(self._bounce.address, nbytes, 0)], _KIND)
        theirs = self._agent.get_xfer_descs([(at, nbytes, 0)], _KIND)
        handle = self._agent.initialize_xfer("READ", mine, theirs, self._peers[peer])
        try:
            state = self._agent.transfer(handle)
            while state == "PROC":
                self._clock.sleep(_POLL_S)
                state = self._agent.check_xfer_state(handle)
            return bool(state == "DONE")
        finally:
            handle.release()
