"""A worker in another process of this machine, for the scheduler."""

import threading
from collections.abc import Callable, Iterator
from typing import Final

import grpc

from rose.addresses import loopback, spelled
from rose.errors import CorruptData, DeadlineExceeded, sentence
from rose.scheduler.outbox import Nothing, Outbox
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
from rose.scheduler.worker import TurnRequest, WorkerEvent, WorkerKind, WorkerLost
from rose.thread import Thread

# A worker that is silent for longer counts as lost; workers send a heartbeat every second.
SILENCE_MAX_S: Final = 5.0
# Interval of the scheduler's pings, well under the server's limit.
PING_S: Final = 1.0
# Largest number of commands that may wait to be sent. If one more had to wait, the worker counts as
# lost.
COMMANDS_MAX: Final = 4096
# Longest wait of `close` for the threads, in seconds.
CLOSE_S: Final = 10.0


class RemoteWorker:
    """Runs turns in a worker process, which uses `rose.node.server`.

    Connects in the background. Events come from one thread, in order. When the stream breaks or is
    silent for too long, the last event is a `WorkerLost`; no event follows, and later requests are
    dropped. It never reconnects: a restarted worker counts as another worker.
    """

    def __init__(
        self,
        address: str,
        token: str,
        number: int,
        kind: WorkerKind,
        on_event: Callable[[WorkerEvent], None],
    ) -> None:
        """Connect to a worker.

        Args:
            address: HOST:PORT of this machine.
            token: token that the worker's process gave to its parent.
            number: number that the worker must report.
            kind: kind that the worker must report.
            on_event: called from a thread of this object; must not raise. While it runs, nothing
                more is read; if it blocks for too long, the worker ends the stream.

        Raises:
            InvalidArgument: the address is not on this machine.
        """
        where = spelled(*loopback(address))
        self.number = number
        self.kind = kind
        self._on_event = on_event
        self._outbox: Outbox[bytes] = Outbox(items_max=COMMANDS_MAX)
        self._is_closing = False
        self._is_lost = False
        self._is_delivering = False
        self._reason: str | None = None  # the first reason for the end of the stream
        self._activity = threading.Event()
        self._channel = grpc.insecure_channel(where, options=OPTIONS)
        stream = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._call = stream(self._frames(), metadata=((TOKEN_KEY, token),))
        self._threads = [
            Thread(work, name=f"rose-remote-{name}-{number}", on_failure=on_failure)
            for name, work, on_failure in (
                ("receive", self._receive, lambda error: self._lose(_own_failure(error))),
                ("watch", self._watch, lambda error: self._give_up(_own_failure(error))),
            )
        ]
        for thread in self._threads:
            thread.start()

    def start_turn(self, request: TurnRequest) -> None:
        """Queue a turn; does not wait.

        Raises:
            InvalidArgument: the request cannot be encoded.
        """
        self._send(request)

    def stop_turn(self, trajectory: int) -> None:
        """Recall a turn; does not wait."""
        self._send(StopTurn(trajectory))

    def close(self) -> None:
        """Disconnect from the worker, which then stops this scheduler's turns; no event follows.

        Raises:
            DeadlineExceeded: the callback blocks the receiving thread.
        """
        self._is_closing = True
        self._end()
        others = [one for one in self._threads if one is not threading.current_thread()]
        for thread in others:
            thread.join(timeout=CLOSE_S)
        self._channel.close()
        if any(thread.is_alive() for thread in others):
            raise DeadlineExceeded(
                f"worker {self.number} could not be closed within {CLOSE_S} s: "
                "its callback does not return"
            )

    def _send(self, command: Command) -> None:
        if not self._outbox.put(encode(command)):
            # The outbox is full; or the worker is lost already, and this changes nothing.
            self._give_up(f"{COMMANDS_MAX} commands to it already waited to be sent")

    def _give_up(self, reason: str) -> None:
        """End the stream; the receiving thread reports `reason`."""
        self._reason = self._reason or reason
        self._call.cancel()

    def _end(self) -> None:
        self._is_lost = True
        self._activity.set()
        self._outbox.close(is_emptied=True)
        self._call.cancel()

    # ---- the thread of gRPC that sends ----------------------------------------------------------

    def _frames(self) -> Iterator[bytes]:
        while True:
            frame = self._outbox.take(wait_s=PING_S)
            if frame is Nothing.MORE:
                return
            yield encode(Ping()) if isinstance(frame, Nothing) else frame

    # ---- the thread that receives ---------------------------------------------------------------

    def _receive(self) -> None:
        reason = "it ended the stream"
        try:
            for frame in self._call:
                self._activity.set()
                if (failure := self._deliver(frame)) is not None:
                    reason = failure
                    break
        except grpc.RpcError as error:
            reason = f"its stream broke ({error.code().name}: {error.details()})"
        except CorruptData as error:
            reason = str(error)
        self._lose(self._reason or reason)

    def _deliver(self, frame: bytes) -> str | None:
        """Deliver the event of a frame; return the reason if the stream must end, else None."""
        match decode_news(frame):
            case Heartbeat():
                return None
            case Greeting(number=number, kind=kind):
                if (number, kind) == (self.number, self.kind):
                    return None
                return (
                    f"{kind.value} worker {number} answered instead of {self.kind.value} worker "
                    f"{self.number}"
                )
            case WorkerLost(reason=reason):
                return reason
            case event:
                self._is_delivering = True
                self._on_event(event)
                self._activity.set()
                self._is_delivering = False
                return None

    def _lose(self, reason: str) -> None:
        self._end()
        if not self._is_closing:
            self._on_event(WorkerLost(worker=self.number, reason=reason))

    # ---- the thread that watches ----------------------------------------------------------------

    def _watch(self) -> None:
        while self._activity.wait(SILENCE_MAX_S) or self._is_delivering:
            if self._is_lost:
                return
            self._activity.clear()
        self._give_up(f"no sign of life for {SILENCE_MAX_S} s")


def _own_failure(error: BaseException) -> str:
    return f"its connection failed inside rose ({sentence(error)})"
