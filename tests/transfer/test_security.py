"""Certificates of both sides, tokens, and listeners that other machines can reach."""

import secrets
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from bench.row_publisher import RowPublisher
from rose.addresses import reachable
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.publishing.log import VersionLog
from rose.transfer.wire import messages
from rose.transfer.wire.credentials import add_port
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.security import REJECTIONS_MAX, Rejections, Security, TlsFiles, check_files
from rose.transfer.wire.server import WeightServer, serve
from tests.transfer import chunk_wire as wire
from tests.transfer.certificates import make_authority, make_certificate, needs_openssl
from tests.transfer.worker import LONG_S, TILE, HandClock, Worker, changed, weights

TOKEN = secrets.token_hex(32)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(authority: Path) -> TlsFiles:
    return make_certificate(authority, "good")


@contextmanager
def published(
    tls: TlsFiles | None, address: str = "127.0.0.1:0"
) -> Iterator[tuple[RowPublisher, WeightServer]]:
    log = VersionLog()
    publisher = RowPublisher(weights(1), "run", 1, 1, log, tile_elements=TILE)
    with serve(log, address, token=TOKEN, tls=tls) as server:
        yield publisher, server


@contextmanager
def source_of(
    server: WeightServer, tls: TlsFiles | None, token: str = TOKEN
) -> Iterator[RemoteSource]:
    source = RemoteSource(server.address, token, tls=tls)
    try:
        yield source
    finally:
        source.close()


@needs_openssl
def test_versions_come_encrypted_bit_for_bit(tls: TlsFiles) -> None:
    bits = weights(1)
    with published(tls) as (publisher, server), source_of(server, tls) as source:
        assert source.hello().role == "publisher"
        with Worker(source, bits) as worker:
            for seed in range(3):
                publisher.publish(bits := changed(bits, seed))
                worker.follow(publisher.version)
                assert np.array_equal(worker.bits, bits)


def agreed(address: str, tls: TlsFiles, **knobs: object) -> tuple[str | None, str] | None:
    """Return protocol and cipher that control agrees on with a client of ours, or None."""
    context = ssl.create_default_context(cafile=str(tls.authority))
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    for name, value in knobs.items():
        if name == "ciphers":
            context.set_ciphers(str(value))
        else:
            setattr(context, name, value)
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host, int(port)), LONG_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as one,
        ):
            return one.version(), (one.cipher() or ("",))[0]
    except (ssl.SSLError, ConnectionError):
        return None


@needs_openssl
def test_control_agrees_on_the_newest_and_on_nothing_that_can_be_read_later(tls: TlsFiles) -> None:
    """gRPC cannot forbid TLS 1.2, but accepts only its ephemeral keys and authenticated ciphers."""
    old = {"maximum_version": ssl.TLSVersion.TLSv1_2}
    with published(tls) as (_, server):
        newest = agreed(server.address, tls)
        assert newest is not None
        assert newest[0] == "TLSv1.3"
        before = agreed(server.address, tls, **old)
        assert before is None or (
            before[0] == "TLSv1.2" and before[1].startswith("ECDHE-") and "GCM" in before[1]
        )
        for weak in ("AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA"):
            assert agreed(server.address, tls, ciphers=weak, **old) is None


@contextmanager
def bare_server(security: Security) -> Iterator[str]:
    """Listen with certificates that `serve` would refuse."""
    pool = ThreadPoolExecutor(1)
    server = grpc.server(pool)
    port = add_port(server, "127.0.0.1", 0, security)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
    pool.shutdown()


@needs_openssl
@pytest.mark.parametrize("fault", ["expired", "of another authority", "of another host", "none"])
def test_receiver_refuses_a_server_that_shows_no_good_certificate(
    authority: Path, tls: TlsFiles, tmp_path: Path, fault: str
) -> None:
    bad: TlsFiles | None = None
    if fault == "expired":
        bad = make_certificate(authority, "old", days=-1)
    elif fault == "of another authority":
        made = make_certificate(make_authority(tmp_path, "other"), "other-peer")
        bad = TlsFiles(made.certificate, made.key, authority)
    elif fault == "of another host":
        bad = make_certificate(authority, "far", reach="IP:10.9.8.7")
    with bare_server(Security(bytes.fromhex(TOKEN), bad)) as address:
        source = RemoteSource(address, TOKEN, tls=tls)
        with pytest.raises(Unavailable) as error:
            source.wait_manifests(-1, 0)
        source.close()
    if bad is not None:
        assert "do not accept each other's certificates" in str(error.value)


@needs_openssl
@pytest.mark.parametrize("fault", ["expired", "of another authority", "none"])
def test_server_refuses_a_receiver_that_shows_no_good_certificate(
    authority: Path, tls: TlsFiles, tmp_path: Path, fault: str
) -> None:
    with published(tls) as (publisher, server):
        manifest = publisher.publish(changed(weights(1), 1))
        bad: TlsFiles | None = None
        if fault == "expired":
            bad = make_certificate(authority, "old-receiver", days=-1)
        elif fault == "of another authority":
            made = make_certificate(make_authority(tmp_path, "other"), "other-receiver")
            bad = TlsFiles(made.certificate, made.key, authority)
        with source_of(server, bad) as source:
            with pytest.raises(Unavailable):
                source.wait_manifests(-1, 0)
            # It knows where the chunks are, and how they are asked for; that is of no use.
            source._chunk_port = server._chunks.port
            with pytest.raises((Unavailable, InvalidArgument)):
                list(source.chunks(manifest.key, manifest.chunks))
        assert publisher._log.statistics().sent_bytes == 0
        with source_of(server, tls) as source:
            assert len(source.wait_manifests(-1, 0)) == 2


@needs_openssl
def test_certificate_does_not_stand_for_a_token(tls: TlsFiles) -> None:
    with published(tls) as (_, server):
        with (
            source_of(server, tls, secrets.token_hex(32)) as source,
            pytest.raises(Unavailable, match="another token"),
        ):
            source.hello()
        context = ssl.create_default_context(cafile=tls.authority)
        context.load_cert_chain(tls.certificate, tls.key)
        with (
            socket.create_connection(("127.0.0.1", server._chunks.port), LONG_S) as below,
            context.wrap_socket(below, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(wire.greeting(bytes(32)))
            assert connection.recv(1) == b""


@needs_openssl
def test_unusable_certificate_gives_one_sentence(
    authority: Path, tls: TlsFiles, tmp_path: Path
) -> None:
    check_files(tls)
    other = make_authority(tmp_path, "other")
    nowhere = tmp_path / "nowhere.pem"
    wrong = [
        (make_certificate(authority, "late", days=-1), "has expired"),
        (TlsFiles(tls.certificate, tls.key, other), "unable to get local issuer"),
        (TlsFiles(tls.certificate, authority.with_suffix(".key"), authority), "mismatch"),
        (TlsFiles(nowhere, tls.key, authority), "No such file"),
        (TlsFiles(tls.certificate, nowhere, authority), "No such file"),
        (TlsFiles(tls.certificate, tls.key, nowhere), "No such file"),
        (TlsFiles(tls.certificate, tls.key, tls.key), "cannot be used"),
    ]
    for files, sentence in wrong:
        with pytest.raises(InvalidArgument, match=sentence) as error:
            Security.of(TOKEN, files)
        assert "\n" not in str(error.value)


@needs_openssl
def test_only_what_is_encrypted_listens_beyond_this_machine(tls: TlsFiles) -> None:
    for address in ["0.0.0.0:0", "[::]:0", "10.1.2.3:80"]:
        with pytest.raises(InvalidArgument, match="loopback"):
            serve(VersionLog(), address)
        with pytest.raises(InvalidArgument, match="loopback"):
            RemoteSource(address, TOKEN)
    with serve(VersionLog(), "0.0.0.0:0", token=TOKEN, tls=tls) as server:
        port = int(server.address.rpartition(":")[2])
        source = RemoteSource(f"127.0.0.1:{port}", TOKEN, tls=tls)
        assert source.wait_manifests(-1, 0) == []
        source.close()


MALFORMED = ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1", "::1:0", "[::1]", "[]:1"]


@pytest.mark.parametrize("address", MALFORMED)
def test_malformed_address_is_refused_with_and_without_tls(address: str) -> None:
    for is_encrypted in (True, False):
        with pytest.raises(InvalidArgument, match="an address must be HOST:PORT") as error:
            reachable(address, is_encrypted=is_encrypted)
        assert str(error.value).endswith(f"got '{address}'")


def test_address_is_taken_apart() -> None:
    assert reachable("host.example:80", is_encrypted=True) == ("host.example", 80)
    for is_encrypted in (True, False):
        assert reachable("[::1]:80", is_encrypted=is_encrypted) == ("::1", 80)
        assert reachable("127.0.0.2:0", is_encrypted=is_encrypted) == ("127.0.0.2", 0)


def test_name_needs_no_encryption_if_all_its_addresses_are_on_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"here": ["::1", "127.0.0.1"], "six": ["::1"], "both": ["127.0.0.1", "10.1.2.3"]}

    def look_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host not in found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in found[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert reachable("here:5", is_encrypted=False) == ("127.0.0.1", 5)
    assert reachable("six:5", is_encrypted=False) == ("::1", 5)
    with pytest.raises(InvalidArgument, match=r"on loopback.*'both:5' \(10.1.2.3\)"):
        reachable("both:5", is_encrypted=False)
    with pytest.raises(InvalidArgument, match="'nowhere:5' has no address: Name or service"):
        reachable("nowhere:5", is_encrypted=False)


@needs_openssl
@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_versions_come_to_names_and_to_ipv6(authority: Path, host: str, is_encrypted: bool) -> None:
    files = make_certificate(authority, "six", reach="DNS:localhost,IP:::1")
    tls = files if is_encrypted else None
    with published(tls, f"{host}:0") as (publisher, server):
        publisher.publish(bits := changed(weights(1), 1))
        port = server.address.rpartition(":")[2]
        with (
            closing(RemoteSource(f"{host}:{port}", TOKEN, tls=tls)) as source,
            Worker(source, weights(1)) as worker,
        ):
            worker.follow(publisher.version)
            assert np.array_equal(worker.bits, bits)


def test_token_is_not_shown() -> None:
    assert TOKEN not in repr(Security.of(TOKEN))
    assert repr(bytes.fromhex(TOKEN)) not in repr(Security.of(TOKEN))


# ---- strangers


def test_client_without_a_token_gets_no_data(caplog: pytest.LogCaptureFixture) -> None:
    with published(None) as (_, server), grpc.insecure_channel(server.address) as channel:
        seen = set()
        for method in ["Hello", "Wait", "Snapshot", "Report", "Nothing"]:
            for content in [b"", b"\xff", bytes(messages.REQUEST_BYTES_MAX + 1)]:
                call = channel.unary_unary(f"/{messages.SERVICE}/{method}")
                with pytest.raises(grpc.RpcError) as error:
                    call(content, timeout=LONG_S, metadata=((messages.TOKEN_KEY, "00"),))
                seen.add((error.value.code(), error.value.details()))
    assert seen == {(grpc.StatusCode.UNAUTHENTICATED, "")}
    assert len([one for one in caplog.records if "another token" in one.message]) == 1


def test_rejections_of_a_flood_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    rejections = Rejections(clock)
    for _ in range(2):  # twice in one minute
        for one in range(2 * REJECTIONS_MAX):
            rejections.note("token", str(one))
        assert len(caplog.records) == REJECTIONS_MAX
    clock.sleep(60.0)
    assert [rejections.note("token", "1") for _ in range(3)] == [True, False, False]
    clock.sleep(59.0)
    assert not rejections.note("token", "1")
