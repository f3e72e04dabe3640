"""A gRPC server for those who show its token: of a log, or of the part of a trainer's rank."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

import grpc

from rose.addresses import spelled
from rose.closing import Closing
from rose.transfer.wire.call_threads import CallThreads
from rose.transfer.wire.credentials import add_port
from rose.transfer.wire.methods import TokenMethods
from rose.transfer.wire.security import Security

# For a call that is in the middle of something when its server is closed.
CLOSE_S: Final = 10.0


class TokenServer(Closing):
    """Has its port when it is made, and answers from `start` until it is closed.

    However many strangers call, there is a place for as many who show the token as there are
    threads: strangers get none while there are twice as many calls.

    Args:
        name: of its threads.
        host: an address of this machine.
        port: 0 for any that is free.
        security: what callers must show.
        methods: handlers of gRPC by the full names of the methods.
        calls_max: that are answered at a time, each by a thread; others wait for one.
        request_bytes_max: of a message to it.
        reply_bytes_max: of a message from it.

    Raises:
        Unavailable: the port is taken.
        InvalidArgument: a certificate cannot be read.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        security: Security,
        methods: Mapping[str, Any],
        *,
        calls_max: int,
        request_bytes_max: int,
        reply_bytes_max: int,
    ) -> None:
        self._threads = CallThreads(name, calls_max)
        room = 2 * calls_max
        self._grpc: Any = grpc.server(
            self._threads,
            handlers=(TokenMethods(security.token, methods, lambda: self._threads.calls < room),),
            options=(
                ("grpc.max_receive_message_length", request_bytes_max),
                ("grpc.max_send_message_length", reply_bytes_max),
                ("grpc.so_reuseport", 0),  # a second server on a port is an error, not a lottery
            ),
            # gRPC counts a call that has ended a moment longer: at most one for each thread.
            maximum_concurrent_rpcs=room + 2 * calls_max,
        )
        with ExitStack() as undo:
            undo.callback(self.close)
            self.address: Final = spelled(host, add_port(self._grpc, host, port, security))
            undo.pop_all()

    def start(self) -> None:
        """Answer from here on."""
        self._grpc.start()

    def close(self) -> None:
        """Break off all calls and join their threads, in `CLOSE_S` at most.

        A thread that takes longer is left, and nobody hears what it answers; Python waits for it
        when the program ends.
        """
        self._grpc.stop(None).wait()
        self._threads.join(CLOSE_S)
