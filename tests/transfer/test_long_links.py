"""Over a link with a long round trip, with TLS: every connection is made at the first attempt."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import rose
from bench.netns import Link, inside, shaped_link
from bench.row_publisher import RowPublisher
from rose.transfer.publishing.log import VersionLog
from rose.transfer.tiles import Row
from rose.transfer.wire.part_server import PartServer
from rose.transfer.wire.server import serve
from tests.links import needs_links
from tests.transfer.certificates import make_authority, make_certificate, needs_openssl
from tests.transfer.worker import LONG_S, TILES, weights

TOKEN = "ab" * 32
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


@contextmanager
def long_link(bits_per_s: float, round_trip_ms: float, loss: float = 0.0) -> Iterator[Link]:
    needs_links()
    with shaped_link(bits_per_s, delay_ms=round_trip_ms / 2, loss=loss) as link:
        yield link


@needs_openssl
@pytest.mark.parametrize(
    ("round_trip_ms", "loss", "is_ipv6"),
    [
        (80.0, 0.0, True),
        pytest.param(20.0, 0.0, False, marks=pytest.mark.slow),
        pytest.param(80.0, 0.01, False, marks=pytest.mark.slow),
        pytest.param(300.0, 0.0, True, marks=pytest.mark.slow),
        pytest.param(300.0, 0.0, False, marks=pytest.mark.slow),
        pytest.param(400.0, 0.01, False, marks=pytest.mark.slow),
    ],
)
def test_tls_connects_at_the_first_attempt(
    round_trip_ms: float, loss: float, is_ipv6: bool, repo: Path, tmp_path: Path
) -> None:
    with long_link(1e9, round_trip_ms, loss) as link:
        reach = f"IP:{link.near.address},IP:{link.near.address6}"
        tls = make_certificate(make_authority(tmp_path), "peer", reach=reach)
        files = (tls.certificate, tls.key, tls.authority)
        address = f"[{link.near.address6}]:0" if is_ipv6 else f"{link.near.address}:0"
        tensors = {"w": np.full(1000, 7, np.float32)}
        row = Row(weights(1), TILES)
        with (
            inside(link.near.namespace),
            rose.publish(tensors, listen=address, token=TOKEN, tls=files) as publisher,
            PartServer(
                range(len(TILES)), TILES, lambda _: row, address, token=TOKEN, tls=tls
            ) as part,
        ):
            places = (publisher.address, part.address, TOKEN, *map(str, files))
            command = link.far.command(sys.executable, "-m", "tests.transfer.far_program", *places)
            env = os.environ | dict.fromkeys(PROXIES, "http://127.0.0.1:9")  # nobody listens there
            done = subprocess.run(
                command,
                cwd=repo,
                env=env,
                capture_output=True,
                text=True,
                timeout=LONG_S,
                check=False,
            )
            assert publisher._server.longest_rtt_ms > 0.9 * round_trip_ms
    assert done.stdout == "receiver 1 7.0\nrelay 1\npart True\n", done.stderr


WAITS = """
import sys
from rose.errors import Unavailable
from rose.transfer.wire import remote
remote.CALL_S = 200.0
source = remote.RemoteSource(*sys.argv[1:])
print(source.hello().role, flush=True)
try:
    print(len(source.wait_manifests(0, 100.0)), "versions")
except Unavailable as error:
    print(error)
"""


@pytest.mark.slow
def test_server_whose_machine_is_gone_is_given_up() -> None:
    with (
        long_link(1e9, 20.0) as link,
        inside(link.near.namespace),
        serve(VersionLog(), f"{link.near.address}:0") as server,
    ):
        command = link.far.command(sys.executable, "-c", WAITS, server.address, server.token)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as far:
            assert far.stdout is not None
            assert far.stdout.readline() == "publisher\n"
            down = ("link", "set", link.near.device, "down")
            subprocess.run(["ip", "-n", link.near.namespace, *down], check=True, timeout=LONG_S)
            said, _ = far.communicate(timeout=LONG_S)
    assert "Connection timed out" in said


@pytest.mark.slow
def test_answer_may_take_longer_than_a_silence_on_a_slow_link() -> None:
    log = VersionLog()
    count = 4 * 240_000  # its manifest takes 31 s
    RowPublisher(weights(1, count), "run", 1, 1, log, tile_elements=4)
    with (
        long_link(1e6, 200.0) as link,
        inside(link.near.namespace),
        serve(log, f"{link.near.address}:0") as server,
    ):
        command = link.far.command(sys.executable, "-c", WAITS, server.address, server.token)
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.stdout == "publisher\n1 versions\n", done.stderr
