"""What programs that move weights count, for Prometheus. It needs the extra `metrics`."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rose.addresses import spelled
from rose.closing import Closing
from rose.errors import InvalidArgument, Unavailable, check
from rose.transfer.wire.security import Security

# Seconds: from a slice of a tile to a pause that nobody wants.
PAUSE_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

COUNTERS: Final[Mapping[str, str]] = {
    "versions": "Versions published or, at a receiver, committed.",
    "sent_bytes": "Bytes of chunks that were handed out.",
    "received_bytes": "Bytes of chunks that came, damaged ones included.",
    "crossing_bytes": "Bytes of chunks that came over the slow link into this cluster.",
    "chunks_retried": "Chunks that were asked for again since they came damaged.",
    "staged": "Versions that lay ready to be committed.",
    "committed": "Versions that became the weights.",
    "rolled_back": "Commits after which the weights were the base again.",
    "quarantined": "Commits after which the weights were no known version.",
    "seeds": "Seeds: made by a publisher, committed by a receiver.",
}
GAUGES: Final[Mapping[str, str]] = {
    "version": "The newest version here.",
    "lag_versions": "By how many versions the weights are not the newest.",
    "lag_seconds": "Since when the weights are not the newest.",
    "receivers": "Receivers that reported.",
}
_PREFIX: Final = "rose_transfer_"


class Metrics(Collector):
    """Reads the figures of a program whenever somebody asks.

    Args:
        role: "publisher", "relay" or "receiver": a label of every figure.
        read: returns figures by their names in `COUNTERS` and `GAUGES`, those that it has. Called
            by the threads of the server.
    """

    def __init__(self, role: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._role, self._read = role, read
        self.registry = CollectorRegistry()
        self._pause = Histogram(
            f"{_PREFIX}pause_seconds",
            "How long the weights could not be used for a commit.",
            ["role"],
            buckets=PAUSE_BUCKETS,
            registry=self.registry,
        ).labels(role=role)
        self.registry.register(self)

    def paused(self, seconds: float) -> None:
        """Note a pause."""
        self._pause.observe(seconds)

    def describe(self) -> list[Metric]:
        """Return nothing: what is here is known when it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the figures as they are."""
        figures = self._read()
        unknown = figures.keys() - COUNTERS.keys() - GAUGES.keys()
        check(not unknown, f"figures without a name: {sorted(unknown)}")
        for names, kind in ((COUNTERS, CounterMetricFamily), (GAUGES, GaugeMetricFamily)):
            for name, text in names.items():
                if name in figures:
                    family: Any = kind(f"{_PREFIX}{name}", text, labels=["role"])
                    family.add_metric([self._role], figures[name])
                    yield family


class MetricsServer(Closing):
    """Answers scrapes by HTTP, or by HTTPS with certificates of both sides, until it is closed.

    Args:
        metrics: what is scraped.
        address: on loopback, or of any machine where `security` has certificates.
        security: of the program; its token is not asked for, as scrapers have none.

    Raises:
        InvalidArgument: the address may not be.
        Unavailable: the port is taken.
    """

    def __init__(self, metrics: Metrics, address: str, security: Security) -> None:
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
            raise Unavailable(f"port {port} of {host} cannot be listened on: {error}") from error
        except ValueError as error:
            raise InvalidArgument(f"metrics cannot be served: {error}") from error
        self.address: str = spelled(host, self._server.server_port)

    def close(self) -> None:
        """Answer no more, and join the thread."""
        self._server.shutdown()
        self._server.server_close()
        if self._thread is not threading.current_thread():
            self._thread.join()
