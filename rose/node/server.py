"""Serve one worker to one scheduler at a time, over gRPC on this machine."""

import hmac
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
from typing_extensions import Self

from rose.addresses import loopback, spelled
from rose.clock import BootClock, Clock
from rose.closing import Once
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.node.session import Session
from rose.scheduler.wire import METHOD, OPTIONS, SERVICE, TOKEN_KEY
from rose.scheduler.worker import (
    GrantChanged,
    VersionCommitted,
    Worker,
    WorkerEvent,
    WorkerLost,
)
from rose.thread import ThreadPool

# Largest number of simultaneous streams: one is served, the others are refused.
_STREAMS_MAX: Final = 4
DRAIN_S: Final = 10.0  # maximum wait of a new scheduler for the turns of the previous one
_CLOSE_S: Final = 5.0  # maximum wait of `close` for pending events


class WorkerServer:
    """Makes a worker of this process available to a scheduler in another process.

    It serves one scheduler at a time and refuses a second one. When a scheduler disconnects, its
    turns are stopped. The next scheduler is admitted after all these turns have ended, so outputs
    of old and new turns cannot be confused. A new scheduler first receives the current state: the
    last grant without expiry, the last version, and a loss of the worker.
    """

    def __init__(
        self,
        worker_factory: Callable[[Callable[[WorkerEvent], None]], Worker],
        address: str = "127.0.0.1:0",
        *,
        token: str,
        clock: Clock | None = None,
    ) -> None:
        """Make the worker and listen.

        Args:
            worker_factory: makes the worker; takes a callback for the worker's events. Any thread
                may call the callback, which never waits.
            address: HOST:PORT of this machine; port 0 picks a free one.
            token: token that a scheduler must present.
            clock: time source.

        Raises:
            InvalidArgument: the address is not on this machine, or the token is empty.
            Unavailable: the address is taken.
        """
        host, port = loopback(address)
        if not token:
            raise InvalidArgument("token must not be empty")
        self._token = token.encode()
        self._clock = clock or BootClock()
        self._lock = threading.Lock()  # guards `_holds`, the session, and the order of events
        self._session: Session | None = None
        self._holds: dict[type, WorkerEvent] = {}
        self._once = Once()
        self._is_closed = False
        self.worker = worker_factory(self._on_event)
        self._pool = ThreadPool(_STREAMS_MAX, "rose-server")
        self._server = grpc.server(
            self._pool, options=OPTIONS, maximum_concurrent_rpcs=_STREAMS_MAX
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        try:
            port = self._server.add_insecure_port(spelled(host, port))
        except RuntimeError as error:
            self._pool.shutdown()
            raise Unavailable(f"the worker cannot listen at '{address}': {error}") from error
        self._address = spelled(host, port)
        self._server.start()

    @property
    def address(self) -> str:
        """HOST:PORT of the server."""
        return self._address

    def close(self) -> None:
        """Send pending events, stop the scheduler's turns, and stop listening.

        Raises:
            DeadlineExceeded: the worker did not return from a command in time.
        """
        self._once(self._close)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            session = self._session
        if session is not None:
            session.end()
        self._server.stop(_CLOSE_S).wait()
        if session is not None and not session.join(wait_s=_CLOSE_S):
            raise DeadlineExceeded(f"the worker did not return from a command within {_CLOSE_S} s")
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _on_event(self, event: WorkerEvent) -> None:
        with self._lock:
            match event:
                case GrantChanged(ttl_ms=0) | VersionCommitted() | WorkerLost():
                    self._holds[type(event)] = event
                case GrantChanged():
                    # A grant with a TTL is renewed anyway, and would be stale for a new scheduler.
                    self._holds.pop(GrantChanged, None)
            if self._session is not None:
                self._session.send(event)

    # ---- threads of gRPC ------------------------------------------------------------------------

    def _serve(self, requests: Any, context: Any) -> Iterator[bytes]:
        session = self._open_session(requests, context)
        try:
            yield from session.frames()
        except CorruptData as error:
            context.abort(grpc.StatusCode.DATA_LOSS, str(error))
        except DeadlineExceeded as error:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        except InvalidArgument as error:
            context.abort(grpc.StatusCode.INTERNAL, str(error))

    def _open_session(self, requests: Any, context: Any) -> Session:
        """Admit a scheduler, or end its stream with the reason."""
        shown = dict(context.invocation_metadata()).get(TOKEN_KEY, "")
        if not hmac.compare_digest(str(shown).encode(), self._token):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token must be this worker's token")
        with self._lock:
            before = self._session
        if before is not None and not before.is_over:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "the worker already has a scheduler")
        if before is not None and not before.wait_drained(wait_s=DRAIN_S):
            context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "the turns of the previous scheduler have not ended yet: try again",
            )
        session = Session(
            self.worker,
            requests,
            on_event=self._on_event,
            cancel=context.cancel,
            clock=self._clock,
        )
        with self._lock:
            if self._is_closed or self._session is not before:
                context.abort(
                    grpc.StatusCode.UNAVAILABLE,
                    "the worker was closed, or got another scheduler meanwhile",
                )
            self._session = session
            for event in self._holds.values():
                session.send(event)
            session.start()
        return session
