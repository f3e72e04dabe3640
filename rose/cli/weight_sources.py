"""Where `rose relay` and `rose receive` get versions from: addresses, tried until one answers."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from rose.cli.weight_events import Events
from rose.clock import BootClock
from rose.errors import CorruptData, DeadlineExceeded, Unavailable
from rose.transfer.digests import Digest
from rose.transfer.manifest import Chunk, Manifest, UpdateKey
from rose.transfer.messages import HelloReply
from rose.transfer.security import Security
from rose.transfer.source import NOTHING_KNOWN, Frame

if TYPE_CHECKING:
    from rose.transfer.remote import RemoteSource

_BACKOFF_S: Final = 0.1
_BACKOFF_MAX_S: Final = 2.0
_FAULTS: Final = (CorruptData, DeadlineExceeded, Unavailable)


class Upstream:
    """A source over several addresses: one is asked until it fails, then the next.

    One thread pulls; `close` may come from any.

    Args:
        sources: by address.
        events: says what is in the way.
    """

    def __init__(self, sources: "Sequence[RemoteSource]", events: Events) -> None:
        self._sources = sources
        self._events = events
        self._at = 0
        self._clock = BootClock()

    def wait_until_there(self) -> None:
        """Wait until one of them answers."""
        pause_s = _BACKOFF_S
        while (fault := self._fault()) is not None:
            self._events.trouble(fault)
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _BACKOFF_MAX_S)
        self._events.trouble(None)

    def _fault(self) -> str | None:
        """Ask who serves; return what is in the way."""
        try:
            self.hello()
        except _FAULTS as error:
            return str(error)
        return None

    def hello(self) -> HelloReply:
        """Ask who serves."""
        with self._next_on_failure() as source:
            return source.hello()

    def newest_n(self) -> int:
        """Return the number of the newest version that there is."""
        manifests = self.wait_manifests(NOTHING_KNOWN, 0)
        return max((one.version.n for one in manifests), default=NOTHING_KNOWN)

    def subscribe(
        self, receiver: str, *, replica: str, rank: int, tiles: Sequence[int] | None
    ) -> None:
        """Say who receives what."""
        with self._next_on_failure() as source:
            source.subscribe(receiver, replica=replica, rank=rank, tiles=tiles)

    def wait_manifests(self, after_n: int, timeout_s: float) -> list[Manifest]:
        """Wait for versions."""
        with self._next_on_failure() as source:
            return source.wait_manifests(after_n, timeout_s)

    def seed(self, n: int | None, tiles: Sequence[int]) -> Manifest | None:
        """Ask for one."""
        with self._next_on_failure() as source:
            return source.seed(n, tiles)

    def chunks(
        self, key: UpdateKey, wanted: Sequence[Chunk]
    ) -> Generator[tuple[int, Frame | None], None, None]:
        """Yield frames; where it breaks off, who asks again asks the next."""
        with self._next_on_failure() as source:
            yield from source.chunks(key, wanted)

    def report(self, receiver: str, n: int, is_match: bool, digest: Digest) -> None:  # noqa: FBT001
        """Say what came of a version."""
        with self._next_on_failure() as source:
            source.report(receiver, n, is_match, digest)

    def close(self) -> None:
        """Hang up on all of them."""
        for one in self._sources:
            one.close()

    @contextmanager
    def _next_on_failure(self) -> "Iterator[RemoteSource]":
        try:
            yield self._sources[self._at]
        except _FAULTS:
            self._at = (self._at + 1) % len(self._sources)
            raise


@contextmanager
def open_upstream(
    addresses: Sequence[str], security: Security, events: Events
) -> Iterator[Upstream]:
    """Give a source over addresses, and hang up at the end.

    Raises:
        InvalidArgument: an address may not be.
    """
    # Here, because gRPC is told before its import to be quiet.
    from rose.transfer.remote import RemoteSource  # noqa: PLC0415

    token = security.token.hex()
    with ExitStack() as stack:
        sources: list[RemoteSource] = []
        for address in addresses:
            sources.append(RemoteSource(address, token, tls=security.tls))
            stack.callback(sources[-1].close)
        yield Upstream(sources, events)
