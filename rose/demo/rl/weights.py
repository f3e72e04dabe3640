"""Where the trainer's versions go: the publisher of `rose.transfer`, and the server of its log."""

from rose.demo.rl.masters import Bits
from rose.demo.rl.training import Traffic
from rose.transfer.publishing.log import VersionLog
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.version import Version
from rose.transfer.wire.server import serve


class PublishedWeights:
    """Opened with the weights to begin with; versions are made by the thread that trains.

    Args:
        bits: (n,) uint16, copied.
        version: what they are.
        address: where receivers ask, on loopback.
        token: what they show; None makes a new one.

    Raises:
        InvalidArgument: the address is not on loopback, or the token is none.
        Unavailable: the port is taken.
    """

    def __init__(self, bits: Bits, *, version: Version, address: str, token: str | None) -> None:
        self._log = VersionLog()
        self._publisher = RowPublisher(
            bits, version.run, version.incarnation, version.n, log=self._log
        )
        # Read from other threads, which must not wait for a publication that is under way.
        self._n = version.n
        self._server = serve(self._log, address, token=token)

    @property
    def version(self) -> int:
        """The newest version's n."""
        return self._n

    @property
    def address(self) -> str:
        """Where receivers ask."""
        return self._server.address

    @property
    def token(self) -> str:
        """What they must show."""
        return self._server.token

    def publish(self, bits: Bits) -> None:
        """Make `bits` the next version; on an error everything is as before."""
        self._n = self._publisher.publish(bits).version.n

    def traffic(self) -> Traffic:
        """Return what was sent until now."""
        sums = self._log.statistics()
        return Traffic(bytes_sent=sums.sent_bytes, dense_bytes=sums.dense_bytes)

    def close(self) -> None:
        """Take no more versions, and break off who is being served."""
        self._log.close()
        self._server.close()
