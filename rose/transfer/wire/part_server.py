"""The part of one rank of a trainer: packed where its weights are, for a publisher elsewhere."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from rose.closing import Closing
from rose.errors import InvalidArgument, RoseError, Unavailable
from rose.thread import Thread, nothing_rests_on_it
from rose.transfer.publishing.contributor import Contributor, Part
from rose.transfer.tiles import Tiles
from rose.transfer.views import TileViews
from rose.transfer.wire import messages
from rose.transfer.wire.security import Security, TlsFiles
from rose.transfer.wire.token_server import TokenServer, streamed

T = TypeVar("T")


class Detached:
    """Runs each function in a thread of its own, which nobody joins: it may never end.

    A gRPC call waits for it until it is over, as all are when their server is closed; what the
    function returns later is dropped. Any thread may call. The condition guards the number of
    functions, and is held over none of them.

    Args:
        name: of the threads.
        most: functions that run at a time. One that never returns keeps its place.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._changed = threading.Condition()
        self._running = 0

    def call(self, function: Callable[[str], T], label: str, context: Any) -> T:
        """Return what a function returns for a label.

        Args:
            function: what is called.
            label: its argument.
            context: of the gRPC call that waits for it.

        Raises:
            RoseError: of the function.
            Unavailable: the function raised something else; or the gRPC call is over, or too many
                functions have not returned.
        """
        answer: Future[T] = Future()
        with self._changed:
            if self._running >= self._most:
                raise Unavailable(
                    f"nobody is asked for the weights of '{label}': {self._running} questions "
                    "before it have not been answered"
                )
            self._running += 1
        run = partial(self._run, function, label, answer)
        Thread(run, name=self._name, on_failure=nothing_rests_on_it).start()
        context.add_callback(self._look)
        with self._changed:
            self._changed.wait_for(lambda: answer.done() or not context.is_active())
            if not context.is_active():
                raise Unavailable(f"nobody waits for the weights of '{label}' any more")
        return answer.result()

    def _run(self, function: Callable[[str], T], label: str, answer: Future[T]) -> None:
        try:
            answer.set_result(function(label))
        except RoseError as error:
            answer.set_exception(error)
        finally:  # what else it raised is for this process, which shows it
            if not answer.done():
                answer.set_exception(Unavailable(f"asked for '{label}', the rank failed"))
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _look(self) -> None:
        with self._changed:
            self._changed.notify_all()


# One publisher calls, and one that took its place while the calls of the other run out.
_CALLS_MAX: Final = 4
# Questions for weights that a trainer has not answered yet, of calls that were given up too.
_ASKED_MAX: Final = 16


class LabelledWeights(Protocol):
    """A rank's weights by name: of a step, or of a checkpoint. All ranks know the same names.

    It is asked in threads that are nobody else's, of several names at a time if calls were given
    up, and may take as long as it likes: whoever asked goes on when nobody waits for the answer.
    """

    def shadow(self, label: str) -> TileViews:
        """Return the rank's tiles as they were then, in memory that nobody else changes.

        Raises:
            Unavailable: the rank does not have them, now or any more.
        """
        ...

    def fresh(self, label: str) -> TileViews:
        """Return the rank's tiles as they are then, to be read; it may wait for the step.

        Raises:
            Unavailable: the rank does not have them, now or any more.
        """
        ...


class PartServer(Closing):
    """Serves one rank's part until it is closed.

    The shadow is here and the log is the publisher's: what a pack changed is undone unless the
    publisher says, with whatever it calls next, that its log has it. It opens a part with the
    shadow that a name stands for, so ranks that lived on and such that were started again begin
    from the same step.

    The lock guards the shadow and the session. It is held while tiles are packed, and over no wait.

    Args:
        owned: the tiles that are this rank's to send, ascending.
        tiles: how all weights are cut.
        weights: of this rank, by name.
        address: on loopback, or of any machine with `tls`; port 0 for any that is free.
        token: 64 hexadecimal digits; None makes a new one.
        tls: certificates that both sides show.
        threads: that pack.

    Raises:
        InvalidArgument: as of `serve`.
        Unavailable: the port is taken.
    """

    def __init__(
        self,
        owned: Sequence[int],
        tiles: Tiles,
        weights: LabelledWeights,
        address: str = "127.0.0.1:0",
        *,
        token: str | None = None,
        tls: TlsFiles | None = None,
        threads: int = 1,
    ) -> None:
        self._owned, self._tiles, self._weights = owned, tiles, weights
        self._threads = threads
        self._security = Security.of(token, tls)
        self._lock = threading.Lock()
        self._session: int | None = None
        self._contributor: Contributor | None = None
        self._newest = 0  # pack that the publisher has asked for
        self._pending: tuple[int, Part] | None = None  # packed, and neither kept nor taken back
        self._is_sound = False
        self._asked = Detached("rose-part-weights", _ASKED_MAX)
        host, port = self._security.place(address)
        methods = {
            "Open": self._open,
            "Pack": self._pack,
            "Settle": self._settle,
            "Whole": self._whole,
        }
        self._server = TokenServer(
            "rose-part",
            host,
            port,
            self._security,
            messages.PARTS_SERVICE,
            methods={name: streamed(messages.PartAsk, method) for name, method in methods.items()},
            calls_max=_CALLS_MAX,
            request_bytes_max=messages.PART_BYTES_MAX,
            reply_bytes_max=messages.PART_BYTES_MAX,
        )
        self.address: Final = self._server.address
        self._server.start()

    @property
    def token(self) -> str:
        """Return what a publisher must present, in hexadecimal digits."""
        return self._security.token.hex()

    def close(self) -> None:
        """Break off all calls, those that wait for weights too, and join their threads.

        It ends in `CLOSE_S` of `TokenServer`. Weights that come later are dropped.
        """
        self._server.close()

    # ---- the four methods: each yields messages

    def _open(self, ask: messages.PartAsk, context: Any) -> Iterator[object]:
        if ask.layout != self._tiles.layout:
            raise InvalidArgument("the publisher cuts the weights otherwise than this rank")
        shadow = self._asked.call(self._weights.shadow, _label(ask), context)
        with self._lock:
            self._session, self._contributor, self._pending = None, None, None
            self._newest = 0
            made = Contributor(shadow, self._tiles, self._owned, threads=self._threads)
            self._session, self._contributor, self._is_sound = ask.session, made, True
            digests = [made.digests[tile] for tile in self._owned]
        for at in range(0, len(digests), messages.PART_TILES_MAX):
            some = slice(at, at + messages.PART_TILES_MAX)
            yield messages.PartDigests(tuple(self._owned[some]), tuple(digests[some]))

    def _pack(self, ask: messages.PartAsk, context: Any) -> Iterator[object]:
        new = self._asked.call(self._weights.fresh, _label(ask), context)
        part = Part()
        with self._lock:
            contributor = self._settled(ask)
            self._pending = ask.number, part  # first: whatever is changed is taken back
            contributor.pack(new, part)
        for tile, frame in part.frames.items():
            yield messages.PartFrame(tile, frame)

    def _settle(self, ask: messages.PartAsk, _context: Any) -> Iterator[object]:
        with self._lock:
            self._settled(ask)
        yield messages.PartFrame(0, b"")

    def _whole(self, ask: messages.PartAsk, _context: Any) -> Iterator[object]:
        if not set(ask.tiles) <= set(self._owned):
            raise InvalidArgument("these tiles are of another rank")
        for tile in ask.tiles:
            with self._lock:  # for each: a new session does not wait for whoever reads slowly
                [(_, frame)] = self._settled(ask).whole((tile,))
            yield messages.PartFrame(tile, frame)

    def _settled(self, ask: messages.PartAsk) -> Contributor:
        """Keep the last pack or take it back, as the publisher says.

        Raises:
            Unavailable: another publisher has opened the part, or none has; or the shadow cannot be
                brought back to where it was.
        """
        contributor = self._contributor
        if contributor is None or ask.session != self._session:
            raise Unavailable("this rank is not in the publisher's session: open its part again")
        if ask.number < self._newest:  # what it says of packs is not true any more
            raise Unavailable("this call was given up: the publisher has gone on")
        self._newest = ask.number
        if self._pending is not None:
            number, part = self._pending
            self._is_sound = False  # until it is known to be
            if number == ask.kept:
                contributor.keep(part)
                self._is_sound = True
            else:
                self._is_sound = contributor.take_back(part)
            self._pending = None
        if not self._is_sound:
            raise Unavailable("what this rank last sent may be no version: open its part again")
        return contributor


def _label(ask: messages.PartAsk) -> str:
    if not ask.label:
        raise InvalidArgument("the call names no weights")
    return ask.label
