"""Sources of versions for `rose relay` and `rose receive`: one address, or several relays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from rose.cli.weights.options import Events
from rose.clock import BootClock
from rose.errors import CorruptData, DeadlineExceeded, InvalidArgument, Unavailable
from rose.transfer.relaying.relay_set import RelaySet
from rose.transfer.signing import Signing
from rose.transfer.source import NOTHING_KNOWN, Source
from rose.transfer.wire.messages import HelloReply
from rose.transfer.wire.security import Security

if TYPE_CHECKING:
    from rose.transfer.wire.remote import RemoteSource

_BACKOFF_S: Final = 0.1
_BACKOFF_MAX_S: Final = 2.0
T = TypeVar("T")

# Failures outside this program. A server raises InvalidArgument for a name that is too long.
_FAULTS: Final = (CorruptData, DeadlineExceeded, InvalidArgument, Unavailable)


class Addresses:
    """The upstream servers of a program. Only the main thread uses it.

    Args:
        addresses: addresses of the servers.
        sources: one source per address.
        signing: the publisher's signing key, if known.
        events: reports problems.
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
        """Wait until a server knows what it serves, and return its reply."""
        pause_s = _BACKOFF_S
        while True:
            replies = [reply for reply in self.hellos() if reply is not None and reply.layout]
            if replies:
                self._events.trouble(None)
                return replies[0]
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _BACKOFF_MAX_S)

    def hellos(self) -> list[HelloReply | None]:
        """Request a description from every server; a server that fails has None in the list."""
        return [self._hello(source) for source in self._sources]

    def _hello(self, source: "RemoteSource") -> HelloReply | None:
        reply = self._tried(source.hello)
        if reply is not None and not reply.layout:
            self._events.trouble(f"{reply.role} {reply.name} does not know yet what it serves")
        return reply

    def _tried(self, call: Callable[[], T]) -> T | None:
        """Return the result of a call; on a failure report it and return None."""
        try:
            return call()
        except _FAULTS as error:
            self._events.trouble(str(error))
            return None

    def source(self) -> Source:
        """Return the single source, or a set that pulls each tile from the relay that has it."""
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
        """Return the newest version number at the first server that answers."""
        for source in self._sources:
            manifests = self._tried(partial(source.wait_manifests, NOTHING_KNOWN, 0))
            if manifests is not None:
                return max((one.version.n for one in manifests), default=NOTHING_KNOWN)
        raise Unavailable("none of the upstreams answers any more")

    def _liar(self, relay: int, what: str) -> None:
        self._events.report("liar", address=self._addresses[relay], reason=what)


@contextmanager
def open_addresses(
    addresses: Sequence[str],
    security: Security,
    signing: Signing,
    events: Events,
) -> Iterator[Addresses]:
    """Connect to servers, and close the connections at the end of the block.

    Raises:
        InvalidArgument: an address is not allowed.
    """
    # Imported here, because `quiet_grpc` must run before gRPC is imported.
    from rose.transfer.wire.remote import RemoteSource  # noqa: PLC0415

    token = security.token.hex()
    with ExitStack() as stack:
        sources: list[RemoteSource] = []
        for address in addresses:
            sources.append(RemoteSource(address, token, tls=security.tls))
            stack.callback(sources[-1].close)
        yield Addresses(addresses, sources, signing, events)
