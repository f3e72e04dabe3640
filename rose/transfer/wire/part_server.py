"""The part of one trainer rank, which packs its own weights for a remote publisher."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from rose.closing import Closing
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.publishing.contributor import Contributor, PackedPart
from rose.transfer.tiles import ShardViews, Tiles, TileViews
from rose.transfer.wire import messages
from rose.transfer.wire.security import Security, TlsFiles
from rose.transfer.wire.token_server import TokenServer, streamed

# Calls at a time: room for a publisher, and for its successor while the old publisher's calls end.
_CALLS_MAX: Final = 4

# Function that returns a rank's tiles by the name of a step or of a checkpoint that all ranks know.
# It raises `Unavailable` if the rank does not have these weights. Server threads call it; a
# cancelled call keeps its thread until the function returns.
LabelledWeights: TypeAlias = Callable[[str], TileViews]


class PartServer(Closing):
    """Serves one rank's part until it is closed.

    The shadow is in this process and the log in the publisher's, so a pack is undone unless the
    publisher's next call states that the log has the pack. To open a part, the publisher names the
    weights of the shadow, so surviving and restarted ranks begin from the same step.

    The lock guards the shadow and the session. It is held while tiles are packed, but not during
    any wait.

    Args:
        owned: indices of this rank's tiles to send, ascending.
        tiles: all tiles of the weights.
        weights: function that returns this rank's weights by name. They are only read; the shadow
            is a copy.
        address: host and port, on loopback unless `tls` is given; port 0 for any free port.
        token: 64 hexadecimal digits; None makes a new token.
        tls: certificates for both sides.
        threads: threads that pack.

    Raises:
        InvalidArgument: see `serve`.
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
        self._newest = 0  # number of the newest requested pack
        self._pending: tuple[int, PackedPart] | None = None  # packed, neither kept nor undone
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
        """Return the token that a publisher must present, in hexadecimal digits."""
        return self._security.token.hex()

    def close(self) -> None:
        """Break off all calls and join their threads, as `TokenServer.close` does."""
        self._server.close()

    # ---- the four methods: each yields messages

    def _open(self, ask: messages.PartAsk, _context: Any) -> Iterator[object]:
        with self._lock:
            self._session, self._contributor, self._pending = None, None, None
        made = self._opened(ask)
        owned, digests = made.owned, [made.digests[tile] for tile in made.owned]
        with self._lock:
            self._newest, self._owned = 0, owned
            self._session, self._contributor, self._is_sound = ask.session, made, True
        for at in range(0, len(digests), messages.PART_TILES_MAX):
            some = slice(at, at + messages.PART_TILES_MAX)
            yield messages.PartDigests(tuple(owned[some]), tuple(digests[some]))

    def _opened(self, ask: messages.PartAsk) -> Contributor:
        """Return a contributor whose shadow is the weights of a label."""
        if ask.layout != self._tiles.layout:
            raise InvalidArgument(
                "the layouts of the publisher and of this rank differ: give both the same tensors"
            )
        views = self._weights(_label(ask))
        shadow = ShardViews({tile: (_copied(views.bits(tile)),) for tile in self._owned})
        return Contributor(shadow, self._tiles, self._owned, threads=self._threads)

    def _pack(self, ask: messages.PartAsk, context: Any) -> Iterator[object]:
        new = self._weights(_label(ask))
        if not context.is_active():
            raise Unavailable(f"the caller no longer waits for the weights of '{ask.label}'")
        part = PackedPart()
        with self._lock:
            contributor = self._settled(ask)
            self._pending = ask.number, part  # recorded first, so that any change is undone
            contributor.pack(new, part)
        for tile, frame in part.frames.items():
            yield messages.PartFrame(tile, frame)

    def _settle(self, ask: messages.PartAsk, _context: Any) -> Iterator[object]:
        with self._lock:
            self._settled(ask)
        yield messages.PartFrame(0, b"")

    def _whole(self, ask: messages.PartAsk, _context: Any) -> Iterator[object]:
        if not set(ask.tiles) <= set(self._owned):
            raise InvalidArgument("the requested tiles belong to another rank")
        for tile in ask.tiles:
            with self._lock:  # per tile: a new session does not wait for a slow reader
                frame = self._settled(ask).whole(tile).tobytes()
            yield messages.PartFrame(tile, frame)

    def _settled(self, ask: messages.PartAsk) -> Contributor:
        """Keep or undo the last pack, as the publisher requests.

        Raises:
            Unavailable: the call is not of the current session, or was given up; or the shadow
                could not be restored.
        """
        contributor = self._contributor
        if contributor is None or ask.session != self._session:
            raise Unavailable("this rank is not in the publisher's session: open its part again")
        if ask.number < self._newest:  # its statement about packs is outdated
            raise Unavailable("this call was given up: the publisher has sent a newer call")
        self._newest = ask.number
        if self._pending is not None:
            number, part = self._pending
            self._is_sound = False  # until proven
            if number == ask.kept:
                contributor.keep(part)
                self._is_sound = True
            else:
                self._is_sound = contributor.take_back(part)
            self._pending = None
        if not self._is_sound:
            raise Unavailable("this rank's shadow may match no version: open its part again")
        return contributor


def _label(ask: messages.PartAsk) -> str:
    if not ask.label:
        raise InvalidArgument("the label of the weights must not be empty")
    return ask.label


def _copied(bits: Any) -> Any:
    return bits.copy() if hasattr(bits, "copy") else bits.clone()  # NumPy's, or torch's
