"""The chunk plane from Python, with and without TLS: chunks arrive intact, a token is needed."""

import gc
import hashlib
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import Self

from rose import _core
from rose.errors import InvalidArgument, Unavailable
from rose.transfer.manifest import CHUNK_BYTES_MAX, WHOLE, Chunk, UpdateKey
from rose.transfer.wire import chunk_plane
from rose.transfer.wire.chunk_plane import ChunkClient, core_files
from rose.transfer.wire.chunk_plane import ChunkServer as LogServer
from rose.transfer.wire.security import TlsFiles
from tests.transfer import chunk_wire
from tests.transfer.certificates import make_authority, make_certificate, needs_openssl
from tests.transfer.worker import LONG_S, eventually

TOKEN = secrets.token_bytes(32)
KEY = UpdateKey(7, 6)


class PlainServer:
    """The chunk server of the core by itself, with update keys and seconds."""

    def __init__(self, token: bytes, port: int = 0, *, tls: Any = None, park_s: float = 0) -> None:
        self._core = _core.ChunkServer(
            "127.0.0.1", port, token, tls=core_files(tls), park_ms=park_s * 1000
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._core.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def put(self, key: UpdateKey, tile: int, frame: Any) -> None:
        self._core.put(key.n, key.base_n, tile, frame)

    def forget(self, key: UpdateKey) -> int:
        return self._core.forget(key.n, key.base_n)


def chunk_of(tile: int, frame: bytes) -> Chunk:
    return Chunk(tile, len(frame), 1, hashlib.sha256(frame).digest(), (0, 0))


def frames(count: int, nbytes: int, seed: int = 1) -> dict[int, bytes]:
    rng = np.random.default_rng(seed)
    return {tile: rng.bytes(nbytes) for tile in range(count)}


def wanted(kept: dict[int, bytes]) -> list[Chunk]:
    return [chunk_of(tile, frame) for tile, frame in kept.items()]


@pytest.fixture
def server() -> Iterator[PlainServer]:
    with PlainServer(TOKEN) as one:
        yield one


def client_of(server: PlainServer) -> ChunkClient:
    return ChunkClient("127.0.0.1", server.port, TOKEN, timeout_s=LONG_S)


def put_all(server: PlainServer, kept: dict[int, bytes], key: UpdateKey = KEY) -> None:
    for tile, frame in kept.items():
        server.put(key, tile, frame)


# ---- what comes


@pytest.mark.parametrize(("count", "nbytes"), [(1, 1), (3000, 33), (9, CHUNK_BYTES_MAX)])
def test_frames_come_bit_for_bit(server: PlainServer, count: int, nbytes: int) -> None:
    kept = frames(count, nbytes)
    put_all(server, kept)
    with client_of(server) as client:
        assert dict(client.chunks(KEY, wanted(kept))) == kept
        assert client._client.losses == 0
    # The last frame may be here before the server has counted it.
    eventually(lambda: server.sent_bytes_total == count * nbytes)
    assert server.forget(KEY) == count * nbytes
    assert server.sent_bytes(KEY.n, KEY.base_n) == 0


def test_missing_update_is_none_and_whole_tiles_have_their_own_key(
    server: PlainServer,
) -> None:
    kept = frames(5, 100)
    put_all(server, kept)
    put_all(server, frames(5, 100, seed=2), UpdateKey(7, WHOLE))
    chunks = [*wanted(kept), chunk_of(9, b"gone")]
    with client_of(server) as client:
        assert dict(client.chunks(KEY, chunks)) == {**kept, 9: None}
        server.forget(KEY)
        assert set(dict(client.chunks(KEY, chunks)).values()) == {None}
        whole = dict(client.chunks(UpdateKey(7, WHOLE), wanted(kept)))
    assert whole == frames(5, 100, seed=2)


def test_frames_are_kept_not_copied_and_let_go_of(server: PlainServer) -> None:
    content = np.arange(1000, dtype=np.uint8)
    gone = weakref.ref(content)
    server.put(KEY, 0, memoryview(content))
    del content
    gc.collect()
    assert gone() is not None
    server.forget(KEY)
    gc.collect()
    assert gone() is None


def test_bytes_in_flight_are_bounded(server: PlainServer, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = frames(40, 1000)
    put_all(server, kept)
    monkeypatch.setattr(chunk_plane, "AHEAD_BYTES", 4000)
    with client_of(server) as client:
        coming = client.chunks(KEY, wanted(kept))
        assert next(coming)[0] in kept
        # Asked for are four frames, so no more can have come however long one waits.
        assert client._client.received_bytes <= 4 * 16 + 4 * (32 + 1000)
        assert len(dict(coming)) == 39


def test_requests_keep_the_line_full(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = frames(100, 1000)
    monkeypatch.setattr(chunk_plane, "AHEAD_BYTES", 16_000)
    ahead = chunk_plane._Ahead(wanted(kept))
    left = len(kept)
    while ahead.has_more:
        left -= len(ahead.portion())
        assert left == 0 or len(ahead.sizes) > 12 - 1, "three quarters are always on their way"
        ahead.came(next(iter(ahead.sizes)))


def test_enough_is_asked_for_at_once_to_fill_a_long_fast_line() -> None:
    """Of 10 Gb/s at 20 ms each way: so many bytes are due before the first of them can be here."""
    ahead = chunk_plane._Ahead([chunk_of(tile, bytes(CHUNK_BYTES_MAX)) for tile in range(32)])
    ahead.portion()
    assert 10e9 / 8 * 2 * 0.020 <= sum(ahead.sizes.values()) <= chunk_plane.AHEAD_BYTES


def test_generator_that_is_closed_early_leaves_the_client_usable(server: PlainServer) -> None:
    kept = frames(60, CHUNK_BYTES_MAX // 8)
    put_all(server, kept)
    with client_of(server) as client:
        for _ in range(3):
            coming = client.chunks(KEY, wanted(kept))
            next(coming)
            coming.close()
        assert dict(client.chunks(KEY, wanted(kept))) == kept


# ---- what does not


def test_cancel_and_close_from_another_thread_end_a_wait() -> None:
    with PlainServer(TOKEN, park_s=LONG_S) as server, client_of(server) as client:
        for end in (client.cancel, client.close):
            coming = client.chunks(KEY, [chunk_of(0, b"never")])
            caught: list[BaseException] = []

            def wait(coming: object = coming, caught: list[BaseException] = caught) -> None:
                try:
                    next(coming)  # type: ignore[call-overload]
                except Unavailable as error:
                    caught.append(error)

            thread = threading.Thread(target=wait)
            thread.start()
            assert server.take_misses(LONG_S * 1000) == [(KEY.n, KEY.base_n, 0)]
            end()
            thread.join(LONG_S)
            assert len(caught) == 1
        with pytest.raises(Unavailable, match="closed"):
            list(client.chunks(KEY, [chunk_of(0, b"never")]))


def test_bad_input_is_refused_in_a_sentence(server: PlainServer) -> None:
    for token in (b"", bytes(31), bytes(33)):
        with pytest.raises(InvalidArgument, match="32 bytes"):
            PlainServer(token)
        with pytest.raises(InvalidArgument, match="32 bytes"):
            ChunkClient("127.0.0.1", 1, token)
    for frame in (b"", bytes(CHUNK_BYTES_MAX + 1)):
        with pytest.raises(InvalidArgument, match="the size must be from 1"):
            server.put(KEY, 0, frame)
    with pytest.raises(InvalidArgument, match="contiguous"):
        server.put(KEY, 0, np.zeros((4, 4), np.uint8)[:, ::2].data)
    with pytest.raises(InvalidArgument, match="an update cannot lead"):
        server.put(UpdateKey(3, 3), 0, b"x")
    with pytest.raises(InvalidArgument, match="burst_bytes"):
        server.set_pace(1000, 10)
    with pytest.raises(Unavailable, match="cannot listen"):
        PlainServer(TOKEN, port=server.port)
    with client_of(server) as client, pytest.raises(InvalidArgument, match="only once per call"):
        list(client.chunks(KEY, [chunk_of(0, b"a"), chunk_of(0, b"a")]))


# ---- what is not there yet


def test_server_of_a_log_looks_up_what_it_is_asked_and_survives_its_errors() -> None:
    kept = frames(50, 500)
    asked: list[int] = []

    class Served:
        def chunk(self, key: UpdateKey, tile: int) -> bytes | None:
            asked.append(tile)
            if tile >= 48:
                raise MemoryError if tile == 48 else Unavailable("the relay has lost its source")
            return kept[tile] if key == KEY else None

    server = LogServer(Served(), TOKEN, "127.0.0.1")
    try:
        with ChunkClient("127.0.0.1", server.port, TOKEN, timeout_s=LONG_S) as client:
            for _ in range(2):
                assert dict(client.chunks(KEY, wanted(kept))) == {**kept, 48: None, 49: None}
            assert dict(client.chunks(UpdateKey(8, 7), wanted(kept)[:3])) == dict.fromkeys(range(3))
    finally:
        server.close()
    assert sorted(asked) == sorted([*range(50), *range(50), 0, 1, 2])
    assert not [one for one in threading.enumerate() if one.name.startswith("rose-chunks")]


# ---- TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("certificates")
    ours, theirs = make_authority(folder, "ours"), make_authority(folder, "theirs")
    return {
        "server": make_certificate(ours, "server"),
        "client": make_certificate(ours, "client", reach="DNS:client"),
        "elsewhere": make_certificate(ours, "elsewhere", reach="IP:127.0.0.9"),
        "expired": make_certificate(ours, "expired", days=-1),
        "stranger": make_certificate(theirs, "stranger"),
    }


def fetch_in_tls(
    host: str, port: int, tls: TlsFiles, kept: dict[int, bytes]
) -> dict[int, bytes | bytearray | memoryview | None]:
    with ChunkClient(host, port, TOKEN, tls=tls, timeout_s=LONG_S) as client:
        return dict(client.chunks(KEY, wanted(kept)))


@needs_openssl
@pytest.mark.parametrize(
    ("of_server", "of_client", "says"),
    [
        ("elsewhere", "client", "IP address mismatch"),
        ("stranger", "client", "TLS"),
        ("server", "stranger", "TLS"),
    ],
)
def test_certificate_of_another_authority_or_host_is_refused(
    files: dict[str, TlsFiles], of_server: str, of_client: str, says: str
) -> None:
    with PlainServer(TOKEN, tls=files[of_server]) as server:
        put_all(server, kept := frames(3, 10))
        with pytest.raises(Unavailable, match=says):
            fetch_in_tls("127.0.0.1", server.port, files[of_client], kept)
        assert server.sent_bytes_total == 0


def python_tls(files: TlsFiles, *, is_server: bool) -> ssl.SSLContext:
    side = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(side)
    context.load_verify_locations(files.authority)
    return context


@needs_openssl
def test_client_without_a_certificate_gets_no_data(files: dict[str, TlsFiles]) -> None:
    with PlainServer(TOKEN, tls=files["server"]) as server:
        put_all(server, frames(1, 10))
        context = python_tls(files["server"], is_server=False)
        for show in (False, True):
            if show:
                context.load_cert_chain(files["client"].certificate, files["client"].key)
            received = b""
            with socket.create_connection(("127.0.0.1", server.port), LONG_S) as below:
                try:
                    with context.wrap_socket(below, server_hostname="127.0.0.1") as wire:
                        assert wire.version() == "TLSv1.3"
                        wire.sendall(chunk_wire.greeting(TOKEN))
                        received = wire.recv(chunk_wire.HELLO.size)
                except OSError:
                    pass
            assert received == (chunk_wire.hello() if show else b"")


@needs_openssl
def test_server_whose_certificate_has_expired_is_refused(files: dict[str, TlsFiles]) -> None:
    context = python_tls(files["expired"], is_server=True)
    context.load_cert_chain(files["expired"].certificate, files["expired"].key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):  # a client tries once more
                below, _ = listener.accept()
                with below:
                    try:
                        context.wrap_socket(below, server_side=True).close()
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unavailable, match="certificate has expired"):
            fetch_in_tls("127.0.0.1", listener.getsockname()[1], files["client"], frames(1, 10))
        thread.join(LONG_S)


@needs_openssl
def test_unusable_files_are_reported(files: dict[str, TlsFiles], tmp_path: Path) -> None:
    good, other = files["server"], files["client"]
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for bad, says in [
        (files["expired"], "has expired"),
        (TlsFiles(tmp_path / "no.pem", good.key, good.authority), "no.pem' cannot be read"),
        (TlsFiles(nonsense, good.key, good.authority), "nonsense.pem' cannot be read"),
        (TlsFiles(good.certificate, tmp_path / "no.key", good.authority), "no.key"),
        (TlsFiles(good.certificate, other.key, good.authority), "key"),
        (TlsFiles(good.certificate, good.key, tmp_path / "no.ca"), "no.ca' cannot be read"),
    ]:
        with pytest.raises(InvalidArgument, match=says):
            PlainServer(TOKEN, tls=bad)
        with pytest.raises(InvalidArgument, match=says):
            ChunkClient("127.0.0.1", 1, TOKEN, tls=bad)


def test_libssl_is_opened_only_when_tls_is_asked_for() -> None:
    program = (
        "from rose import _core\n"
        "server = _core.ChunkServer('127.0.0.1', 0, bytes(32))\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'libssl' not in maps, maps\n"
        "server.close()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LONG_S)
    assert _core.TlsFiles("a", "b", "c").authority == "c"
