"""What rose calls of NIXL 1.5, over a socket of its own: for machines without the wheel.

As UCX over TCP it answers only while it is called, and reads whatever address it is asked for.
"""

import ctypes
import json
import select
import socket
import struct

_ASK = struct.Struct("<QQ")


class NotFoundError(Exception):
    """No registered memory has that address."""


class nixl_agent_config:  # noqa: N801
    def __init__(self, *, enable_prog_thread: bool, backends: list[str]) -> None:
        assert (enable_prog_thread, backends) == (False, [])


class _Transfer:
    def __init__(self, sock: socket.socket, to: int, at: int, nbytes: int) -> None:
        self.sock, self.to, self.at, self.left = sock, to, at, nbytes

    def release(self) -> None:
        pass


class nixl_agent:  # noqa: N801
    def __init__(self, name: str, _config: nixl_agent_config) -> None:
        self._name = name
        self._regions: list[tuple[int, int]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._readers: list[socket.socket] = []
        self._remote: dict[str, tuple[socket.socket, list[list[int]]]] = {}

    def create_backend(self, name: str, options: dict[str, str]) -> None:
        assert (name, options) == ("UCX", {"engine_config": "TLS=tcp,NET_DEVICES=lo"})

    def register_memory(self, regions: list[tuple[int, int, int, str]], kind: str) -> None:
        assert kind == "DRAM"
        self._regions += [(at, nbytes) for at, nbytes, _device, _meta in regions]

    def get_agent_metadata(self) -> bytes:
        said = {"name": self._name, "port": self._listener.getsockname()[1]}
        return json.dumps({**said, "regions": self._regions}).encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        said = json.loads(metadata)
        sock = socket.create_connection(("127.0.0.1", said["port"]))
        self._remote[said["name"]] = sock, said["regions"]
        return str(said["name"])

    def get_xfer_descs(self, descs: list[tuple[int, int, int]], kind: str) -> object:
        assert kind == "DRAM"
        return descs

    def initialize_xfer(self, way: str, mine: list, theirs: list, name: str) -> _Transfer:
        (to, nbytes, _), (at, its_nbytes, _) = mine[0], theirs[0]
        sock, regions = self._remote[name]
        assert (way, nbytes) == ("READ", its_nbytes)
        if not any(begin <= at and at + nbytes <= begin + size for begin, size in regions):
            raise NotFoundError
        return _Transfer(sock, to, at, nbytes)

    def transfer(self, one: _Transfer) -> str:
        one.sock.sendall(_ASK.pack(one.at, one.left))
        return "PROC"

    def check_xfer_state(self, one: _Transfer) -> str:
        while one.left and select.select([one.sock], [], [], 0)[0]:
            content = one.sock.recv(min(one.left, 1 << 20))
            if not content:
                return "ERR"
            ctypes.memmove(one.to, content, len(content))
            one.to += len(content)
            one.left -= len(content)
        return "PROC" if one.left else "DONE"

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        if select.select([self._listener], [], [], 0)[0]:
            self._readers.append(self._listener.accept()[0])
        for reader in select.select(self._readers, [], [], 0)[0]:
            asked = reader.recv(_ASK.size, socket.MSG_WAITALL)
            if len(asked) < _ASK.size:
                self._readers.remove(reader)
            else:
                reader.sendall(ctypes.string_at(*_ASK.unpack(asked)))
        return {}
