"""Metrics of a program, read by HTTP."""

import ssl
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rose.errors import InternalError, InvalidArgument, Unavailable
from rose.transfer.observing.metrics import COUNTERS, GAUGES, Metrics, MetricsServer
from rose.transfer.wire.security import Security
from tests.transfer.certificates import make_authority, make_certificate, needs_openssl

OPEN = Security(bytes(32))


def scraped(url: str, context: ssl.SSLContext | None = None) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=30, context=context) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("role") == "receiver" and "le" not in sample.labels
    }


def test_figures_are_read_whenever_somebody_scrapes() -> None:
    figures: dict[str, float] = {"committed": 1, "lag_seconds": 0.5}
    metrics = Metrics("receiver", lambda: figures)
    with MetricsServer(metrics, "127.0.0.1:0", OPEN) as server:
        first = scraped(f"http://{server.address}/metrics")
        assert first["rose_transfer_committed_total"] == 1
        assert first["rose_transfer_lag_seconds"] == 0.5
        assert first["rose_transfer_pause_seconds_count"] == 0
        assert "rose_transfer_staged_total" not in first
        figures["committed"] = 7
        metrics.paused(0.03)
        metrics.paused(0.01)
        then = scraped(f"http://{server.address}/metrics")
        assert then["rose_transfer_committed_total"] == 7
        assert then["rose_transfer_pause_seconds_count"] == 2
        assert then["rose_transfer_pause_seconds_sum"] == pytest.approx(0.04)
    with pytest.raises(urllib.error.URLError):
        scraped(f"http://{server.address}/metrics")
    assert not [one for one in threading.enumerate() if "process_request" in one.name]


def test_every_figure_has_a_name_and_a_name_has_one_kind() -> None:
    assert not COUNTERS.keys() & GAUGES.keys()
    everything = dict.fromkeys([*COUNTERS, *GAUGES], 3.0)
    metrics = Metrics("receiver", lambda: everything)
    assert len(list(metrics.collect())) == len(everything)
    with pytest.raises(InternalError, match="neither counters nor gauges"):
        list(Metrics("receiver", lambda: {"invented": 1.0}).collect())


def test_metrics_stay_on_this_machine_without_certificates() -> None:
    metrics = Metrics("receiver", dict)
    for address in ("0.0.0.0:0", "10.0.0.1:1"):
        with pytest.raises(InvalidArgument, match="loopback"):
            MetricsServer(metrics, address, OPEN)
    with (
        MetricsServer(metrics, "127.0.0.1:0", OPEN) as server,
        pytest.raises(Unavailable, match="cannot listen on"),
    ):
        MetricsServer(metrics, server.address, OPEN)


@needs_openssl
def test_metrics_are_encrypted_for_whoever_has_a_certificate(tmp_path: Path) -> None:
    tls = make_certificate(make_authority(tmp_path), "peer")
    security = Security(bytes(32), tls)
    with MetricsServer(Metrics("receiver", lambda: {"version": 5}), "0.0.0.0:0", security) as one:
        url = f"https://127.0.0.1:{one.address.rpartition(':')[2]}/metrics"
        context = ssl.create_default_context(cafile=tls.authority)
        with pytest.raises((urllib.error.URLError, OSError)):
            scraped(url, context)
        context.load_cert_chain(tls.certificate, tls.key)
        assert scraped(url, context)["rose_transfer_version"] == 5
