"""The part of another rank, as the publisher sees it: the rank packs, and sends only its frames."""

import math
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Final

import grpc
import numpy as np

from rose.clock import BootClock
from rose.closing import Closing, Once
from rose.errors import (
    CorruptData,
    InternalError,
    RoseError,
    Unavailable,
    check,
)
from rose.thread import ThreadPool
from rose.transfer.codec.delta import Delta
from rose.transfer.codec.operations import delta_check, digest
from rose.transfer.digests import Digest, TileDigests
from rose.transfer.publishing.contributor import PackedPart, chunk_of
from rose.transfer.sharded.patience import FIRST_S, Patience
from rose.transfer.tiles import Tiles, TileViews
from rose.transfer.wire import messages
from rose.transfer.wire.credentials import failure_of, open_channel
from rose.transfer.wire.security import Security, TlsFiles

# Time for a rank to reach the step, to pack it, and to send its frames, in seconds.
PACK_S: Final = 120.0


class WeightsElsewhere(TileViews):
    """Names weights in another process, by the label that the rank there uses for them."""

    def __init__(self, label: str) -> None:
        self.label = label

    def bits(self, tile: int) -> Any:
        """Raise: the weights are not in this process."""
        raise InternalError(f"tile {tile} of {self.label} is in another process")


class RemotePart(Closing):
    """A contributor to a `Publisher`, for a `PartServer` in another process. One thread uses it.

    An internal thread fetches the result of a pack from `begin` on. So the deadlines of all ranks
    run at the same time, and a publisher waits no longer for all ranks than for one.

    A failed pack has no lasting effect: the rank undoes it. After a restart of the rank every call
    raises `Unavailable` until `open` is called for another incarnation.

    Args:
        address: host and port of the server.
        token: token of the server.
        tiles: all tiles of the weights.
        label: name of the initial weights, which become the rank's shadow.
        tls: certificates for both sides.
        timeout_s: deadline of each call, in seconds.

    Raises:
        InvalidArgument: the rank has another layout, or address or token are invalid.
        Unavailable: the rank cannot be reached, or has no weights of that name.
        CorruptData: an answer is invalid.
    """

    def __init__(
        self,
        address: str,
        token: str,
        tiles: Tiles,
        label: str,
        *,
        tls: TlsFiles | None = None,
        timeout_s: float = PACK_S,
    ) -> None:
        security = Security.of(token, tls)
        self._address, self._tiles, self._timeout_s = address, tiles, timeout_s
        host, port = security.place(address)
        self._channel = open_channel(host, port, security, messages.PART_BYTES_MAX)
        self._metadata = ((messages.TOKEN_KEY, security.token.hex()),)
        self._once = Once()
        self._running: Any = None  # call of `begin` or `give_up`
        self._fetcher = ThreadPool(1, "rose-part-frames")
        self._coming: Future[PackedPart] | None = None  # result of `begin`
        try:
            self.open(label)
        except RoseError:
            self.close()
            raise

    def open(self, label: str) -> None:
        """Begin a session with the named weights as the rank's shadow; wait for the rank.

        Raises:
            As the constructor.
        """
        self._hang_up()
        self._session = secrets.randbits(63)
        self._number = self._kept = 0
        call = self._call("Open", layout=self._tiles.layout, label=label, waits=True)
        found: dict[int, Digest] = {}
        for content in self._messages(call):
            some = messages.decode(messages.PartDigests, content)
            found.update(zip(some.tiles, some.digests, strict=True))
        if any(tile >= len(self._tiles) for tile in found):
            raise CorruptData(
                f"the part at {self._address} has a tile that is not in the layout of "
                f"{len(self._tiles)} tiles"
            )
        self.owned: Sequence[int] = sorted(found)
        self.digests = TileDigests(found)

    def close(self) -> None:
        """Disconnect."""
        self._once(self._close)

    def _close(self) -> None:
        self._hang_up()
        self._channel.close()
        self._fetcher.shutdown()

    # ---- a version

    def begin(self, new: TileViews) -> None:
        """Start the pack of the weights that `new` names; ranks work in parallel."""
        check(isinstance(new, WeightsElsewhere), "weights of another rank must be given by name")
        self._hang_up()
        self._number += 1
        self._running = self._call("Pack", label=getattr(new, "label", ""))
        self._coming = self._fetcher.submit(self._fetched, self._running)

    def pack(self, new: TileViews, part: PackedPart) -> None:  # noqa: ARG002  (known from `begin`)
        """Wait for the rank's pack, and fill `part`."""
        if self._coming is None:
            raise InternalError("begin must be called before pack")
        patience = Patience("rank 0 of the trainer", math.inf, clock=BootClock())
        while not wait([self._coming], FIRST_S).done:
            patience.wait_for(f"the pack of the part at {self._address}")
        packed = self._coming.result()
        self._running = self._coming = None
        part.deltas.update(packed.deltas)
        part.frames.update(packed.frames)
        part.chunks.extend(packed.chunks)

    def _fetched(self, call: Any) -> PackedPart:
        """Return the rank's pack."""
        part, before = PackedPart(), -1
        for content in self._messages(call):
            tile, frame = _frame(content)
            delta = self._sound(tile, frame)
            if tile <= before or delta.base_digest != self.digests[tile]:
                raise CorruptData(
                    f"the part at {self._address} sent tile {tile} out of order, or from "
                    "another base"
                )
            before = tile
            part.deltas[tile], part.frames[tile] = delta, frame
            part.chunks.append(chunk_of(tile, delta, frame))
        return part

    def keep(self, part: PackedPart) -> None:
        """Record that the log has the pack; the next call informs the rank."""
        self._kept = self._number
        self.digests.update({chunk.tile: chunk.digest for chunk in part.chunks})

    def give_up(self, part: PackedPart) -> None:  # noqa: ARG002  (the rank knows what it packed)
        """Start the undo of the rank's last pack."""
        self._hang_up()
        with suppress(Unavailable):  # if closed, `take_back` will report it
            self._running = self._call("Settle")

    def take_back(self, part: PackedPart) -> bool:  # noqa: ARG002  (as above)
        """Return whether the rank restored its shadow."""
        running, self._running = self._running, None
        if running is None:
            return False
        try:
            for _ in self._messages(running):
                pass
        except RoseError:
            return False
        return True

    def whole(self, tile: int) -> Any:
        """Return the elements of a tile of the rank's shadow as a row.

        Raises:
            Unavailable: the rank cannot be reached, or was restarted.
            CorruptData: an answer is invalid.
        """
        came = self._messages(self._call("Whole", tiles=(tile,)))
        its, frame = _frame(self._next(came))
        at = self._tiles[tile]
        if its == tile and len(frame) == at.nbytes:
            row = np.frombuffer(frame, f"u{at.width // 8}")
            if digest(row) == self.digests[tile]:
                return row
        raise CorruptData(f"the part at {self._address} has other bits in tile {tile}")

    def _sound(self, tile: int, frame: bytes) -> Delta:
        if tile not in self.digests:
            raise CorruptData(f"the part at {self._address} sent tile {tile} of another rank")
        delta = Delta.from_bytes(frame)
        at = self._tiles[tile]
        if (delta.count, delta.width) != (at.count, at.width) or delta.rule is not None:
            raise CorruptData(
                f"the part at {self._address} sent a delta that does not fit tile {tile}"
            )
        delta_check(delta)
        return delta

    # ---- calls

    def _call(
        self,
        method: str,
        *,
        layout: str = "",
        label: str = "",
        tiles: Sequence[int] = (),
        waits: bool = False,
    ) -> Any:
        """Start a call; with `waits`, it also waits for a rank that does not listen yet."""
        numbers = (self._session, self._number, self._kept)
        ask = messages.encode(messages.PartAsk(*numbers, layout, label, tuple(tiles)))
        try:
            return self._channel.unary_stream(f"/{messages.PARTS_SERVICE}/{method}")(
                ask,
                timeout=self._timeout_s,
                metadata=self._metadata,
                wait_for_ready=waits,
            )
        except ValueError as error:  # the channel is closed
            raise Unavailable(f"the part at {self._address} was closed: {error}") from error

    def _next(self, came: Iterator[bytes]) -> bytes:
        try:
            return next(came)
        except StopIteration:
            raise CorruptData(
                f"the part at {self._address} sent fewer tiles than requested"
            ) from None

    def _messages(self, call: Any) -> Iterator[bytes]:
        try:
            yield from call
        except grpc.RpcError as error:
            raise failure_of(f"the part at {self._address}", "the call", error) from error
        finally:
            call.cancel()  # no effect once the call is over

    def _hang_up(self) -> None:
        running, self._running = self._running, None
        coming, self._coming = self._coming, None
        if running is not None:
            running.cancel()
        if coming is not None:
            wait([coming])  # briefly: the call is cancelled


def _frame(content: bytes) -> tuple[int, bytes]:
    came = messages.decode(messages.PartFrame, content)
    return came.tile, came.frame
