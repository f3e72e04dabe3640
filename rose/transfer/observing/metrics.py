"""Prometheus metrics of publishers, relays and receivers; needs the extra `metrics`."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rose.addresses import spelled
from rose.closing import Closing, Once
from rose.errors import InvalidArgument, Unavailable, check
from rose.transfer.wire.security import Security

# In seconds: the lowest bucket is the time to change part of a tile, the highest an unacceptable
# pause.
PAUSE_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

COUNTERS: Final[Mapping[str, str]] = {
    "versions": "Versions published or, at a receiver, committed.",
    "sent_bytes": "Bytes of chunks sent.",
    "received_bytes": "Bytes of chunks received, damaged chunks included.",
    "crossing_bytes": "Bytes of chunks received over the slow link into this cluster.",
    "chunks_retried": "Chunks requested again because they arrived damaged.",
    "staged": "Versions staged and ready to be committed.",
    "committed": "Versions that became the weights.",
    "rolled_back": "Commits that restored the base.",
    "quarantined": "Commits that left the weights at no known version.",
    "snapshots": "Snapshots made by a publisher, or committed by a receiver.",
}
GAUGES: Final[Mapping[str, str]] = {
    "version": "Number of the newest version in this program.",
    "lag_versions": "Number of versions by which the weights are behind the newest.",
    "lag_seconds": "Time for which the weights have been behind the newest version.",
    "receivers": "Receivers that have sent a report.",
    "unsent_age": "Most versions for which a change has not been sent.",
    "drift": "Norm of the changes that were not sent, relative to the norm of the weights.",
    "unsent_share": "Share of the elements whose change was not sent.",
}
# One value for each receiver, by its name.
BY_RECEIVER: Final[Mapping[str, str]] = {
    "receiver_version": "Number of the version that a receiver reported last.",
}
_PREFIX: Final = "rose_transfer_"

Figures: TypeAlias = Mapping[str, "float | Mapping[str, float]"]


class Metrics(Collector):
    """Exports the figures of a program at each scrape.

    Args:
        role: "publisher", "relay" or "receiver": a label of every figure.
        read: function that returns figures by their names in `COUNTERS`, `GAUGES` and
            `BY_RECEIVER`; some may be missing. The server's threads call it.
    """

    def __init__(self, role: str, read: Callable[[], Figures]) -> None:
        self._role, self._read = role, read
        self.registry = CollectorRegistry()
        self._pause = Histogram(
            f"{_PREFIX}pause_seconds",
            "Duration of the pauses in which commits changed the weights.",
            ["role"],
            buckets=PAUSE_BUCKETS,
            registry=self.registry,
        ).labels(role=role)
        self.registry.register(self)

    def paused(self, seconds: float) -> None:
        """Record the pause of one commit."""
        self._pause.observe(seconds)

    def describe(self) -> list[Metric]:
        """Return no description: the figures are known only at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current figures."""
        figures = self._read()
        unknown = figures.keys() - COUNTERS.keys() - GAUGES.keys() - BY_RECEIVER.keys()
        check(not unknown, f"figures that are neither counters nor gauges: {sorted(unknown)}")
        for names, kind in ((COUNTERS, CounterMetricFamily), (GAUGES, GaugeMetricFamily)):
            for name, text in names.items():
                if name in figures:
                    family: Any = kind(f"{_PREFIX}{name}", text, labels=["role"])
                    family.add_metric([self._role], figures[name])
                    yield family
        for name, text in BY_RECEIVER.items():
            one: Any = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=["role", "receiver"])
            values = figures.get(name)
            if isinstance(values, Mapping):
                for receiver, value in values.items():
                    one.add_metric([self._role, receiver], value)
                yield one


class MetricsServer(Closing):
    """Answers scrapes over HTTP, or HTTPS with certificates on both sides, until it is closed.

    Args:
        metrics: figures to export.
        address: host and port; must be on loopback unless `security` has certificates.
        security: certificates of the program. Scrapers need no token.

    Raises:
        InvalidArgument: the address is not allowed.
        Unavailable: the port is taken.
    """

    def __init__(self, metrics: Metrics, address: str, security: Security) -> None:
        self._once = Once()
        host, port = security.place(address)
        tls: dict[str, Any] = {}
        if security.tls is not None:
            tls = {
                "certfile": str(security.tls.certificate),
                "keyfile": str(security.tls.key),
                "client_cafile": str(security.tls.authority),
                "client_auth_required": True,
            }
        try:
            self._server, self._thread = start_http_server(
                port, host, registry=metrics.registry, **tls
            )
        except (OSError, OverflowError) as error:
            raise Unavailable(f"cannot listen on port {port} of {host}: {error}") from error
        except ValueError as error:
            raise InvalidArgument(f"metrics cannot be served: {error}") from error
        self.address: str = spelled(host, self._server.server_port)

    def close(self) -> None:
        """Stop answering, and join the thread."""
        self._once(self._close)

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._thread is not threading.current_thread():
            self._thread.join()
