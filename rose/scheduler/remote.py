"""A worker in another process of this machine, as the scheduler sees it."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import grpc

from rose.addresses import loopback
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, sentence
from rose.scheduler.mailbox import Mailbox, Nothing
from rose.scheduler.wire import (
    METHOD,
    OPTIONS,
    SERVICE,
    TOKEN_KEY,
    Command,
    Greeting,
    Heartbeat,
    Ping,
    StopTurn,
    decode_news,
    encode,
)
from rose.scheduler.worker import TurnOutput, TurnRequest, WorkerEvent, WorkerKind, failed_output
from rose.scheduler.worker import WorkerLost as Lost
from rose.thread import Thread


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """How long a scheduler waits for a worker's process, and how much it keeps for it.

    Args:
        silence_max_s: without any sign of life for so long, the worker is lost.
        ping_s: how often the scheduler shows that it lives; well under the server's limit.
        slow_max_s: how long events may wait for the callback before the stream is given up.
        commands_max: commands that may wait to be sent; one more, and the worker is lost.
        events_max: events that may wait for the callback; then the worker's side must keep them.
        close_s: how long `close` waits for the threads.
    """

    silence_max_s: float = 5.0
    ping_s: float = 1.0
    slow_max_s: float = 60.0
    commands_max: int = 4096
    events_max: int = 256
    close_s: float = 10.0


_LIMITS: Final = RemoteLimits()


class RemoteWorker:
    """Runs turns in the process that `rose.node.server` serves.

    Connects in the background. Events come from one thread, in order. When the stream breaks, or
    nothing is heard for too long, the last event is a `WorkerLost`; none follows it, and what is
    asked of the worker from then on is dropped. It never connects again: a worker that was started
    again is another one.
    """

    def __init__(
        self,
        address: str,
        token: str,
        number: int,
        kind: WorkerKind,
        on_event: Callable[[WorkerEvent], None],
        *,
        limits: RemoteLimits = _LIMITS,
    ) -> None:
        """Connect to a worker.

        Args:
            address: HOST:PORT of this machine.
            token: what its process told whoever started it.
            number: what it must call itself.
            kind: what it must be.
            on_event: is called from a thread of this object; must not raise.
            limits: deadlines and bounds.

        Raises:
            InvalidArgument: the address is not of this machine.
        """
        loopback(address)
        self.number = number
        self.kind = kind
        self._on_event = on_event
        self._limits = limits
        self._outbox: Mailbox[Command] = Mailbox(items_max=limits.commands_max)
        # Frames of the stream, and outputs of requests that could not be sent.
        self._inbox: Mailbox[bytes | TurnOutput] = Mailbox(items_max=limits.events_max)
        self._is_closing = threading.Event()
        self._reason_lock = threading.Lock()  # guards the reason: the first one counts
        self._reason: str | None = None
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        stream = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._call = stream(self._commands(), metadata=((TOKEN_KEY, token),))
        self._threads = [
            Thread(work, name=f"rose-remote-{name}-{number}", on_failure=on_failure)
            for name, work, on_failure in (
                ("receive", self._receive, lambda error: self._give_up(_own_failure(error))),
                ("deliver", self._deliver, lambda error: self._lose(_own_failure(error))),
            )
        ]
        for thread in self._threads:
            thread.start()

    def start_turn(self, request: TurnRequest) -> None:
        """Queue a turn; does not wait."""
        self._send(request)

    def stop_turn(self, trajectory: int) -> None:
        """Ask for a turn back; does not wait."""
        self._send(StopTurn(trajectory))

    def close(self) -> None:
        """Leave the worker, which stops the turns it had from here; no event follows.

        Raises:
            DeadlineExceeded: the callback holds the delivering thread up.
        """
        self._is_closing.set()
        self._outbox.close(is_emptied=True)
        self._inbox.close(is_emptied=True)
        self._call.cancel()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=self._limits.close_s)
        self._channel.close()
        if any(
            thread.is_alive() for thread in self._threads if thread != threading.current_thread()
        ):
            raise DeadlineExceeded(
                f"worker {self.number} could not be left within {self._limits.close_s} s: "
                "its callback does not return"
            )

    def _send(self, command: Command) -> None:
        if not self._outbox.put(command) and not self._is_closing.is_set():
            # Full, or lost already; then this says nothing new.
            self._give_up(f"it left {self._limits.commands_max} commands untaken")

    def _give_up(self, reason: str) -> None:
        """End the stream for `reason`; what has come before is still delivered."""
        with self._reason_lock:
            self._reason = self._reason or reason
        self._inbox.close()

    # ---- the thread of gRPC that sends ----------------------------------------------------------

    def _commands(self) -> Iterator[bytes]:
        while True:
            match self._outbox.take(wait_s=self._limits.ping_s):
                case Nothing.MORE:
                    return
                case Nothing.YET:
                    yield encode(Ping())
                case command:
                    try:
                        yield encode(command)
                    except InvalidArgument as error:
                        self._fail(command, str(error))

    def _fail(self, command: Command, error: str) -> None:
        """Answer a request that cannot be sent, as the worker would have."""
        if isinstance(command, TurnRequest):
            output = failed_output(command, self.number, error)
            self._inbox.put(output, wait_s=self._limits.slow_max_s)

    # ---- the thread that receives ---------------------------------------------------------------

    def _receive(self) -> None:
        reason = "it ended the stream"
        try:
            for frame in self._call:
                if not self._inbox.put(frame, wait_s=self._limits.slow_max_s):
                    reason = f"its events were not taken for {self._limits.slow_max_s} s"
                    break
        except grpc.RpcError as error:
            reason = f"its stream broke ({error.code().name}: {error.details()})"
        self._give_up(reason)

    # ---- the thread that delivers ---------------------------------------------------------------

    def _deliver(self) -> None:
        self._lose(self._deliver_until_lost())

    def _lose(self, reason: str) -> None:
        self._outbox.close(is_emptied=True)
        self._inbox.close(is_emptied=True)
        self._call.cancel()
        if not self._is_closing.is_set():
            self._on_event(Lost(worker=self.number, reason=reason))

    def _deliver_until_lost(self) -> str:
        """Deliver events; return why there are no more."""
        while not self._is_closing.is_set():
            match self._inbox.take(wait_s=self._limits.silence_max_s):
                case Nothing.YET:
                    return f"no sign of life for {self._limits.silence_max_s} s"
                case Nothing.MORE:
                    return self._reason or "it was closed"
                case TurnOutput() as output:
                    self._on_event(output)
                case frame:
                    try:
                        reason = self._deliver_frame(frame)
                    except CorruptData as error:
                        return str(error)
                    if reason is not None:
                        return reason
        return "it was closed"

    def _deliver_frame(self, frame: bytes) -> str | None:
        """Deliver what is in `frame`; return why this was the last, if it was."""
        match decode_news(frame):
            case Heartbeat():
                return None
            case Greeting(number=number, kind=kind):
                if (number, kind) == (self.number, self.kind):
                    return None
                return (
                    f"worker {number}, {kind.value}, answered for {self.number}, {self.kind.value}"
                )
            case Lost(reason=reason):
                return reason
            case event:
                self._on_event(event)
                return None


def _own_failure(error: BaseException) -> str:
    return f"its connection failed inside rose ({sentence(error)})"
