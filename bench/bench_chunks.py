"""Chunks between two ends of a loopback: the core's chunk plane, gRPC and TLS."""

import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import numpy as np

from bench.conftest import Report
from bench.grpc_chunks import OPTIONS, GrpcChunks, serving
from bench.paired import Measure, timed
from bench.rows import Bar, Peer
from rose import _core
from rose.errors import check
from rose.transfer.manifest import CHUNK_BYTES_MAX, Chunk, UpdateKey
from rose.transfer.wire.chunk_plane import ChunkClient, core_files
from rose.transfer.wire.security import TlsFiles

KEY = UpdateKey(2, 1)
CHUNKS = 64  # 256 MiB
ROUNDS = 11
TIMEOUT_S = 60.0
TLS_ROWS = ("tls_over_clear", "chunks_in_tls_gib_s")
TOKEN = secrets.token_bytes(32)


def frames() -> list[bytes]:
    """Return the frames to send: a few frames repeated, so that memory is not the limit."""
    rng = np.random.default_rng(1)
    few = [rng.bytes(CHUNK_BYTES_MAX) for _ in range(4)]
    return [few[i % len(few)] for i in range(CHUNKS)]


def certificate(folder: Path, address: str = "127.0.0.1") -> TlsFiles:
    """Return a self-signed certificate for an address, used by both sides."""
    where, key = folder / "one.pem", folder / "one.key"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    name = ["-subj", "/CN=one", "-addext", f"subjectAltName=IP:{address}"]
    command = ["openssl", "req", "-x509", *kind, *name, "-keyout", str(key), "-out", str(where)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return TlsFiles(where, key, where)


Pull = Callable[[], None]


def rate(pull: Pull) -> Measure:
    """Return a measure in GiB/s."""
    took_ns = timed(pull)
    return lambda: CHUNKS * CHUNK_BYTES_MAX / 2**30 / (took_ns() * 1e-9)


def pull_all(source: ChunkClient | GrpcChunks, wanted: list[Chunk]) -> Pull:
    def pull() -> None:
        nbytes = sum(len(frame or b"") for _, frame in source.chunks(KEY, wanted))
        check(nbytes == CHUNKS * CHUNK_BYTES_MAX, f"expected {CHUNKS} frames, got {nbytes} bytes")

    return pull


def cpu_ms(pull: Pull) -> Measure:
    """Return the processor time of all threads in this process, which has both ends, in ms."""

    def measure() -> float:
        began_ns = time.process_time_ns()
        pull()
        return (time.process_time_ns() - began_ns) * 1e-6

    return measure


def put_all(server: _core.ChunkServer, kept: list[bytes]) -> None:
    for tile, frame in enumerate(kept):
        server.put(KEY.n, KEY.base_n, tile, frame)


@contextmanager
def both_planes() -> Iterator[tuple[Pull, Pull]]:
    """Yield functions that pull all frames by TCP and by gRPC: warmed up, without TLS."""
    kept = frames()
    wanted = [Chunk(tile, len(frame), 1, bytes(32), (0, 0)) for tile, frame in enumerate(kept)]
    with (
        serving(kept) as address,
        closing(_core.ChunkServer("127.0.0.1", 0, TOKEN)) as server,
        grpc.insecure_channel(address, options=OPTIONS) as channel,
        ChunkClient("127.0.0.1", server.port, TOKEN, timeout_s=TIMEOUT_S) as client,
    ):
        put_all(server, kept)
        by_tcp = pull_all(client, wanted)
        by_grpc = pull_all(GrpcChunks(channel, timeout_s=TIMEOUT_S), wanted)
        by_tcp()
        by_grpc()
        yield by_tcp, by_grpc


def test_tcp_over_grpc(report: Report) -> None:
    with both_planes() as (by_tcp, by_grpc):
        paired = report.pairs(rate(by_tcp), rate(by_grpc), rounds=ROUNDS)
    report.add_ratio(
        "tcp_over_grpc",
        paired,
        peer=Peer("gRPC streaming of the same frames", paired.peer, "GiB/s"),
        bar=Bar(at_least=2.0),
    )
    report.add("chunks_gib_s", paired.subject, "GiB/s")


def test_tcp_cpu_over_grpc(report: Report) -> None:
    """The receiver's processor time in its serving process, which hardly depends on other load."""
    with both_planes() as (by_tcp, by_grpc):
        paired = report.pairs(cpu_ms(by_tcp), cpu_ms(by_grpc), rounds=ROUNDS)
    report.add_ratio(
        "tcp_cpu_over_grpc",
        paired,
        peer=Peer("gRPC streaming, processor time of both ends", paired.peer, "ms"),
        bar=Bar(at_most=0.6),
    )


def test_chunks_in_tls(report: Report) -> None:
    if shutil.which("openssl") is None:
        report.leave_out(TLS_ROWS, "certificates are made with the program openssl")
        return
    kept = frames()
    wanted = [Chunk(tile, len(frame), 1, bytes(32), (0, 0)) for tile, frame in enumerate(kept)]
    with tempfile.TemporaryDirectory() as folder:
        tls = certificate(Path(folder))
        with (
            closing(_core.ChunkServer("127.0.0.1", 0, TOKEN)) as clear,
            closing(_core.ChunkServer("127.0.0.1", 0, TOKEN, tls=core_files(tls))) as server,
            ChunkClient("127.0.0.1", clear.port, TOKEN, timeout_s=TIMEOUT_S) as in_the_clear,
            ChunkClient("127.0.0.1", server.port, TOKEN, tls=tls, timeout_s=TIMEOUT_S) as in_tls,
        ):
            put_all(clear, kept)
            put_all(server, kept)
            by_tls, by_clear = pull_all(in_tls, wanted), pull_all(in_the_clear, wanted)
            by_tls()
            by_clear()
            paired = report.pairs(rate(by_tls), rate(by_clear), rounds=ROUNDS)
    report.add_ratio(
        "tls_over_clear",
        paired,
        peer=Peer("the same in the clear", paired.peer, "GiB/s"),
    )
    report.add("chunks_in_tls_gib_s", paired.subject, "GiB/s")
