"""The part of one rank of a trainer: packed where its weights are, for a publisher elsewhere."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from rose.closing import Closing
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.publishing.contributor import Contributor, Part
from rose.transfer.tiles import Tiles
from rose.transfer.views import ShardViews, TileViews
from rose.transfer.wire import messages
from rose.transfer.wire.security import Security, TlsFiles
from rose.transfer.wire.token_server import TokenServer, streamed

# One publisher calls, and one that took its place while the calls of the other run out.
_CALLS_MAX: Final = 4

# A rank's tiles by name: of a step, or of a checkpoint. All ranks know the same names. Raises
# `Unavailable` where the rank does not have them, now or any more. Threads of the server call it,
# and a call that was given up keeps its thread until this returns.
LabelledWeights: TypeAlias = Callable[[str], TileViews]


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
        weights: returns those of this rank, to be read; the shadow is a copy.
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
        """Break off all calls and join their threads, in `CLOSE_S` of `TokenServer` at most."""
        self._server.close()

    # ---- the four methods: each yields messages

    def _open(self, ask: messages.PartAsk, _context: Any) -> Iterator[object]:
        if ask.layout != self._tiles.layout:
            raise InvalidArgument("the publisher cuts the weights otherwise than this rank")
        views = self._weights(_label(ask))
        shadow = ShardViews({tile: (_copied(views.bits(tile)),) for tile in self._owned})
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
        new = self._weights(_label(ask))
        if not context.is_active():
            raise Unavailable(f"nobody waits for the weights of '{ask.label}' any more")
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


def _copied(bits: Any) -> Any:
    return bits.copy() if hasattr(bits, "copy") else bits.clone()  # NumPy's, or torch's
