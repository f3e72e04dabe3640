"""Where `rose relay` and `rose receive` get versions from: one address, or several relays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from rose.cli.weights.options import Events
from rose.clock import BootClock
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.transfer.manifest import Signing
from rose.transfer.relaying.relay_set import RelaySet
from rose.transfer.source import NOTHING_KNOWN, Source
from rose.transfer.wire.messages import HelloReply
from rose.transfer.wire.security import Security

if TYPE_CHECKING:
    from rose.transfer.wire.remote import RemoteSource

_BACKOFF_S: Final = 0.1
_BACKOFF_MAX_S: Final = 2.0
T = TypeVar("T")

# What the world does; a server that refuses a name has too many of them.
_FAULTS: Final = (CorruptData, DeadlineExceeded, InvalidArgument, Unavailable)


class Addresses:
    """The servers that a program was told of. The main thread uses it.

    Args:
        addresses: of them.
        sources: at these addresses.
        signing: the publisher's, if it is known.
        events: says what is in the way.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        sources: "Sequence[RemoteSource]",
        signing: Signing,
        events: Events,
    ) -> None:
        self._addresses = addresses
        self._sources = sources
        self._signing = signing
        self._events = events
        self._clock = BootClock()

    def wait_until_there(self) -> HelloReply:
        """Wait until one of them knows what it serves, and return what it says."""
        pause_s = _BACKOFF_S
        while True:
            replies = [reply for reply in self.hellos() if reply is not None and reply.layout]
            if replies:
                self._events.trouble(None)
                return replies[0]
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _BACKOFF_MAX_S)

    def hellos(self) -> list[HelloReply | None]:
        """Ask all of them who they are; None for one that does not say."""
        return [self._hello(source) for source in self._sources]

    def _hello(self, source: "RemoteSource") -> HelloReply | None:
        reply = self._tried(source.hello)
        if reply is not None and not reply.layout:
            self._events.trouble(f"{reply.role} {reply.name} does not know yet what it serves")
        return reply

    def _tried(self, call: Callable[[], T]) -> T | None:
        """Return what a call returns; None, and the reason is said, where it fails."""
        try:
            return call()
        except _FAULTS as error:
            self._events.trouble(str(error))
            return None

    def source(self) -> Source:
        """Return what pulls from the one, or from each of several what lands there."""
        if len(self._sources) == 1:
            return self._sources[0]
        landing = {
            tile: at
            for at, reply in enumerate(self.hellos())
            if reply is not None
            for relay in reply.relays
            for tile in relay.tiles
        }
        return RelaySet(
            self._sources,
            landing,
            signing=self._signing,
            clock=self._clock,
            on_liar=self._liar,
        )

    def newest_n(self) -> int:
        """Return the number of the newest version that the first of them has that answers."""
        for source in self._sources:
            manifests = self._tried(partial(source.wait_manifests, NOTHING_KNOWN, 0))
            if manifests is not None:
                return max((one.version.n for one in manifests), default=NOTHING_KNOWN)
        raise Unavailable("none of the upstreams answers any more")

    def _liar(self, relay: int, what: str) -> None:
        self._events.say("liar", address=self._addresses[relay], reason=what)


@contextmanager
def open_addresses(
    addresses: Sequence[str],
    security: Security,
    signing: Signing,
    events: Events,
) -> Iterator[Addresses]:
    """Give what is at some addresses, and hang up at the end.

    Raises:
        InvalidArgument: an address may not be.
    """
    # Here, because gRPC is told before its import to be quiet.
    from rose.transfer.wire.remote import RemoteSource  # noqa: PLC0415

    token = security.token.hex()
    with ExitStack() as stack:
        sources: list[RemoteSource] = []
        for address in addresses:
            sources.append(RemoteSource(address, token, tls=security.tls))
            stack.callback(sources[-1].close)
        yield Addresses(addresses, sources, signing, events)
