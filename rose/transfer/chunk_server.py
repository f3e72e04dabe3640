"""The chunk plane of a weight server: a thread for each connection, and no byte for strangers."""

import hmac
import socket
import threading
from contextlib import suppress
from typing import Final

from rose.clock import BootClock
from rose.errors import CorruptData, RoseError, Unavailable
from rose.transfer import wire
from rose.transfer.log import VersionLog

CONNECTIONS_MAX: Final = 64
GREETING_S: Final = 5.0
# A receiver that asks nothing for so long connects again when it does.
IDLE_S: Final = 60.0
SEND_S: Final = 30.0


class ChunkServer:
    """Answers for chunks of a log until it is closed.

    Args:
        log: has the chunks.
        token: that every peer must present first.
        host: an address of this machine; the port is any that is free.
    """

    def __init__(self, log: VersionLog, token: bytes, host: str) -> None:
        self._log = log
        self._token = token
        self._clock = BootClock()
        self._lock = threading.Lock()  # guards the next two
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._is_closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, 0), family=family)
        except OSError as error:
            raise Unavailable(f"no port of {host} can be listened on: {error}") from error
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="rose-chunks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Break off all connections and join all threads."""
        with self._lock:
            self._is_closed = True
            threads = list(self._connections.values())
            for connection in self._connections:
                _shut_down(connection)
        _shut_down(self._listener)
        self._thread.join()
        self._listener.close()
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                with self._lock:
                    if self._is_closed:
                        return
                continue
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        with self._lock:
            if self._is_closed or len(self._connections) >= CONNECTIONS_MAX:
                connection.close()
                return
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="rose-chunks-peer", daemon=True
            )
            self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(connection)
            while True:
                self._answer(connection)
        except (RoseError, OSError):
            pass  # whatever a peer does wrong, or whenever it leaves, its connection ends
        finally:
            with self._lock:
                del self._connections[connection]
            connection.close()

    def _greet(self, connection: socket.socket) -> None:
        said = wire.receive(connection, wire.GREETING_BYTES, GREETING_S, self._clock)
        if not hmac.compare_digest(wire.read_greeting(bytes(said)), self._token):
            raise CorruptData("a peer has another token")

    def _answer(self, connection: socket.socket) -> None:
        said = wire.receive(connection, wire.ASK_BYTES, IDLE_S, self._clock)
        key, tile = wire.read_ask(bytes(said))
        frame = self._log.chunk(key, tile)
        connection.settimeout(SEND_S)
        connection.sendall(wire.answer(key, tile, frame))
        if frame is not None:
            connection.sendall(frame)


def _shut_down(one: socket.socket) -> None:
    """Wake whoever waits on a socket; one that is not connected any more is awake."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
