"""The delta codec on one thread of a CPU: 1 % of 16 Mi elements change, 89 % of those by one step.

A speed is bytes of weights (two for each element) over the time of a call, so a ratio of speeds is
how many times faster the subject is.
"""

import importlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bench.conftest import Report
from bench.paired import Measure, timed
from bench.rows import Bar, Peer
from bench.versions import Versions, two_versions
from rose.errors import InternalError, check
from rose.transfer import Commit, InProcessSource, Version, VersionLog, delta_apply, delta_pack
from rose.transfer.codec.operations import digest, topk_unpack
from rose.transfer.publishing.row_publisher import RowPublisher
from rose.transfer.receiving.chain import Held
from rose.transfer.receiving.commit import CommitState
from rose.transfer.receiving.puller import Puller
from rose.transfer.receiving.staging import Staging
from rose.transfer.receiving.subscription import Subscription
from rose.transfer.row import Row
from rose.transfer.wire.remote import RemoteSource
from rose.transfer.wire.server import serve

ELEMENTS = 1 << 24
DENSITY = 0.01
ROUNDS = 31


@pytest.fixture(scope="module")
def versions() -> Versions:
    return two_versions(ELEMENTS, density=DENSITY)


@pytest.fixture
def torch() -> Iterator[Any]:
    """Yield torch on one thread."""
    pytest.importorskip("torch")
    module = importlib.import_module("torch")
    threads = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(threads)


def speed_gb_s(function: Callable[[], object], prepare: Callable[[], object]) -> Measure:
    """Return a measure in GB/s of weights; `prepare` runs before each call, unmeasured."""

    def measure() -> float:
        prepare()
        began_ns = time.perf_counter_ns()
        function()
        return 2 * ELEMENTS / (time.perf_counter_ns() - began_ns)

    return measure


def report_speedup(
    report: Report,
    name: str,
    subject: Measure,
    peer: Measure,
    *,
    own_name: str,
    peer_name: str,
    bar: Bar,
) -> None:
    paired = report.pairs(subject, peer, rounds=ROUNDS)
    report.add_ratio(name, paired, peer=Peer(peer_name, paired.peer, "GB/s"), bar=bar)
    report.add(own_name, paired.subject, "GB/s")


def test_pack_gap_speedup_vs_torch(report: Report, versions: Versions, torch: Any) -> None:
    """As a publisher packs: it knows its shadow's digest, found once and here not timed."""
    base = digest(versions.old)
    shadow = versions.old.copy()
    fresh = torch.from_numpy(versions.new.view(np.int16))
    held = torch.from_numpy(shadow.view(np.int16))

    def reset() -> None:
        shadow[:] = versions.old

    def by_torch() -> Any:
        positions = torch.ne(fresh, held).nonzero().view(-1)
        values = fresh[positions]
        held.copy_(fresh)
        return positions, values

    positions, _ = by_torch()
    reset()
    delta = delta_pack(versions.new, shadow)
    check(delta.changed == len(positions), "both find the same changes")
    report_speedup(
        report,
        "pack_gap_speedup_vs_torch",
        speed_gb_s(lambda: delta_pack(versions.new, shadow, base_digest=base), reset),
        speed_gb_s(by_torch, reset),
        own_name="pack_gap_gb_s",
        peer_name="torch ne, nonzero, index, copy_; no digest",
        bar=Bar(at_least=8.0),
    )
    report.add("bytes_per_changed_gap_1pct", delta.nbytes / delta.changed, "B")


def test_apply_speedup_vs_dense(report: Report, versions: Versions, torch: Any) -> None:
    delta = delta_pack(versions.new, versions.old.copy())
    weights = versions.old.copy()
    held = torch.from_numpy(weights.view(np.int16)).view(torch.bfloat16)
    positions, values = topk_unpack(delta, versions.old)
    where = torch.from_numpy(positions)
    become = torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)

    def reset() -> None:
        weights[:] = versions.old

    def by_torch() -> None:
        dense = torch.full((ELEMENTS,), torch.nan, dtype=torch.bfloat16)
        dense[where] = become
        held.copy_(torch.where(dense.isnan(), held, dense))

    by_torch()
    check(np.array_equal(weights, versions.new), "both make the new version")
    report_speedup(
        report,
        "apply_speedup_vs_dense",
        speed_gb_s(lambda: delta_apply(weights, delta), reset),
        speed_gb_s(by_torch, reset),
        own_name="apply_gb_s",
        peer_name="a dense tensor of NaN, torch.where, copy_",
        bar=Bar(at_least=10.0),
    )


def test_digest_gb_s(report: Report, versions: Versions) -> None:
    def digests(count: int) -> None:
        for _ in range(count):
            digest(versions.new)

    call_ns = report.loop(digests, rounds=ROUNDS, calls=5)
    report.add("digest_gb_s", 2 * ELEMENTS / call_ns, "GB/s")


# ---- from a version of the trainer to a version of the engine


class Circle:
    """A publisher and one receiver without a thread; versions go back and forth between two."""

    def __init__(self, versions: Versions, *, is_remote: bool) -> None:
        self._versions = versions
        log = VersionLog(versions_max=4)
        self._publisher = RowPublisher(versions.old, "bench", 1, 1, log)
        tiles = self._publisher.tiles
        self._bits = versions.old.copy()
        self._row = Row(self._bits, tiles)
        self._digests = self._row.digests()
        self._server = serve(log) if is_remote else None
        self._source: InProcessSource | RemoteSource = InProcessSource(log)
        if self._server is not None:
            self._source = RemoteSource(self._server.address, self._server.token)
        self._staging = Staging(
            self._source,
            "bench",
            Held(Version("", 0, 0), self._digests.total),
            Subscription(tiles),
            puller=Puller(self._source, threading.Event()),
            on_staged=lambda: None,
        )
        self.commit_staged()

    def commit_staged(self) -> None:
        self._staging.round(10.0)
        staged = self._staging.take_staged()
        if staged is None:
            raise InternalError("no version is staged")
        commit = Commit(staged, self._row, self._staging.held.digest, digests=self._digests)
        while commit.step():
            pass
        check(commit.state is CommitState.COMMITTED, f"{commit.outcome}")
        self._staging.report(commit.outcome)

    def turn(self) -> None:
        """Publish the other version, and bring the receiver there."""
        is_at_old = self._publisher.version.n % 2 == 1
        self._publisher.publish(self._versions.new if is_at_old else self._versions.old)
        self.commit_staged()

    def close(self) -> None:
        if isinstance(self._source, RemoteSource):
            self._source.close()
        if self._server is not None:
            self._server.close()


def milliseconds(function: Callable[[], object]) -> Measure:
    measure_ns = timed(function)
    return lambda: measure_ns() / 1e6


def test_publish_to_commit(report: Report, versions: Versions) -> None:
    """Pack, log, ship, check, stage and commit, with the server in this process."""
    remote, local = Circle(versions, is_remote=True), Circle(versions, is_remote=False)
    paired = report.pairs(milliseconds(remote.turn), milliseconds(local.turn), rounds=ROUNDS)
    remote.close()
    report.add_ratio(
        "publish_to_commit_tcp_vs_in_process",
        paired,
        peer=Peer("the log in this process", paired.peer, "ms"),
    )
    report.add("publish_to_commit_tcp_ms", paired.subject, "ms")
    report.add("publish_to_commit_in_process_ms", paired.peer, "ms")


def test_commit_pause(report: Report, versions: Versions) -> None:
    """A commit that knows its digests, beside what no commit can leave out.

    That is to read, change and write the touched tiles, and to read what is there now: by the
    fastest means at hand, one pass of NumPy with a dense patch, and rose's own digest.
    """
    log = VersionLog()
    publisher = RowPublisher(versions.old, "bench", 1, 1, log)
    manifest = publisher.publish(versions.new)
    staged = Puller(InProcessSource(log), threading.Event()).pull(
        manifest, Subscription(publisher.tiles)
    )
    if staged is None:
        raise InternalError("the version is not there")
    bits, patch = versions.old.copy(), versions.old ^ versions.new
    row = Row(bits, publisher.tiles)

    def measure() -> float:
        bits[:] = versions.old
        digests = row.digests()
        began_ns = time.perf_counter_ns()
        commit = Commit(staged, row, manifest.base_digest, digests=digests)
        while commit.step():
            pass
        took_ms = (time.perf_counter_ns() - began_ns) / 1e6
        check(commit.state is CommitState.COMMITTED, f"{commit.outcome}")
        return took_ms

    def bare() -> float:
        bits[:] = versions.old
        row.digests()  # the same caches
        began_ns = time.perf_counter_ns()
        for chunk in manifest.chunks:
            where = publisher.tiles[chunk.tile].where
            np.bitwise_xor(bits[where], patch[where], out=bits[where])
            row.digest(chunk.tile)
        return (time.perf_counter_ns() - began_ns) / 1e6

    paired = report.pairs(measure, bare, rounds=ROUNDS)
    report.add_ratio(
        "commit_pause_vs_read_modify_write",
        paired,
        peer=Peer("touched tiles ^= a dense patch, then their digest", paired.peer, "ms"),
        bar=Bar(at_most=1.3),
    )
    report.add("commit_pause_ms", paired.subject, "ms")
