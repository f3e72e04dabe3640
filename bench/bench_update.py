"""An update from the trainer to the engine: over links, beside peers, and under load.

The kernel limits the rate of links, and a separate process delays them. Where links cannot be made,
their rows are missing and the document has the reason. A ratio of speeds is the subject's speed
divided by the peer's.
"""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import pytest

from bench.bench_chunks import certificate
from bench.conftest import Report
from bench.extrapolation import (
    LARGE,
    Parts,
    pause_on_cpus_ms,
    pause_on_devices_ms,
    published_to_staged_s,
)
from bench.link_ends import Wire, link_ends
from bench.netns import check_able, shaped_link
from bench.paired import Measure, Pairs
from bench.refit_peers import REFIT_PEERS, Layout, RefitPeer
from bench.refit_ranks import peer_trainer
from bench.refit_rose import rose_trainer
from bench.row_publisher import RowPublisher
from bench.rows import Bar, Peer
from bench.serving_updates import UPDATE_EVERY_S, Felt, ServedEngine, served_engine
from bench.versions import PATTERN, Versions, two_versions
from rose.errors import InternalError, Unavailable, check
from rose.transfer import Commit, VersionLog
from rose.transfer.manifest import Manifest, StagedVersion, Subscription
from rose.transfer.receiving.commit import CommitState
from rose.transfer.receiving.puller import Puller, sound_delta
from rose.transfer.tiles import Row
from rose.transfer.wire.security import TlsFiles
from rose.units import MIB

GBIT: Final = 1e9
MI: Final = 1 << 20
T = TypeVar("T")


def without_links() -> str | None:
    """Return the reason why this machine can have no links, or None."""
    try:
        check_able()
    except Unavailable as error:
        return str(error)
    return None


# ---- the data plane through a link

WIRES: Final = tuple(Wire(rate * GBIT, delay) for rate in (1, 10) for delay in (0.2, 20.0))
# About half a second at full rate, so that a single delay is a small part of it.
WIRE_BYTES: Final = {1 * GBIT: 64 * MIB, 10 * GBIT: 256 * MIB}
WIRE_ROUNDS: Final = 11


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(wire, id=wire.name, marks=pytest.mark.slow if wire.bits_per_s > GBIT else ())
        for wire in WIRES
    ],
)
def test_paced_link(report: Report, wire: Wire) -> None:
    """Rate of rose's data plane, divided by that of a bare TCP sender on the same link.

    A link that this machine cannot fill counts as a slower one, at the peer's rate. A second row
    gives the rate relative to the link's limit.
    """
    name, own = f"paced_link_fraction_{wire.name}", f"paced_link_gbit_s_{wire.name}"
    if reason := without_links():
        report.leave_out([name, own], reason)
        return
    with link_ends(wire, WIRE_BYTES[wire.bits_per_s]) as ends:
        paired = report.pairs(ends.by_rose, ends.by_tcp, rounds=WIRE_ROUNDS)
    given = Peer("a bare TCP sender through the same link", paired.peer / GBIT, "Gb/s")
    report.add_ratio(name, paired, peer=given, bar=Bar(at_least=0.9))
    paced = Peer("the paced link, headers included", wire.bits_per_s / GBIT, "Gb/s")
    report.add(own, paired.subject / GBIT, "Gb/s", peer=paced)


# ---- beside raw TCP on a long link with losses

LONG_MS: Final = 25.0
LONG_BYTES: Final = {200e6: 8 * MIB, 1 * GBIT: 32 * MIB}  # a third of a second at full rate
LONG_ROUNDS: Final = 7
LONG_WIRES: Final = tuple(
    Wire(rate, LONG_MS, loss, congestion)
    for rate in LONG_BYTES
    for loss in (0.0, 1e-4, 1e-3)
    for congestion in ("cubic", "bbr")
)


@pytest.mark.parametrize(
    ("wire", "streams"),
    [
        pytest.param(
            wire,
            streams,
            id=f"{wire.name}-{streams}",
            marks=()
            if wire.bits_per_s < GBIT and wire.loss == 1e-3 and streams == 4
            else pytest.mark.slow,
        )
        for wire in LONG_WIRES
        for streams in (4, 1)
    ],
)
def test_long_link(report: Report, wire: Wire, streams: int) -> None:
    """Rate of rose's data plane, divided by that of bare TCP connections on the same link."""
    long_link(report, wire, streams)


@pytest.mark.slow
@pytest.mark.parametrize("congestion", ["cubic", "bbr"])
def test_long_link_in_tls(report: Report, congestion: str, tmp_path: Path) -> None:
    """The same in TLS, beside bare TCP in the clear."""
    wire = Wire(200e6, LONG_MS, 1e-4, congestion)
    long_link(report, wire, 4, files_for=lambda address: certificate(tmp_path, address))


def long_link(
    report: Report,
    wire: Wire,
    streams: int,
    *,
    files_for: Callable[[str], TlsFiles] | None = None,
) -> None:
    name = f"long_link_over_{streams}_tcp_{wire.name}" + ("" if files_for is None else "_tls")
    try:
        with link_ends(wire, LONG_BYTES[wire.bits_per_s], files_for=files_for) as ends:
            paired = report.pairs(ends.by_rose, lambda: ends.by_tcp(streams), rounds=LONG_ROUNDS)
    except Unavailable as error:
        report.leave_out([name], str(error))
        return
    given = Peer(f"{streams} bare TCP connections", paired.peer / GBIT, "Gb/s")
    report.add_ratio(name, paired, peer=given, bar=Bar(at_least=0.9) if streams == 4 else None)


# ---- beside methods of other projects

RANKS: Final = 2
REFIT_ELEMENTS: Final = 64 * MI
REFIT_DENSITY: Final = 0.01
REFIT_ROUNDS: Final = 5
REFIT_RATES: Final = (1, 10)
# Peers with a bar; the other peer is only shown.
JUDGED: Final = ("dense_broadcast", "nemo_like", "verl_like")


@dataclass(frozen=True, slots=True)
class Refit:
    """Input of the updates of an engine's ranks; `folder` has the old row as `old.npy`."""

    layout: Layout
    versions: Versions
    folder: Path


@pytest.fixture(scope="module")
def refit(tmp_path_factory: pytest.TempPathFactory) -> Refit:
    layout = Layout.like_a_transformer(REFIT_ELEMENTS, ranks=RANKS)
    versions = two_versions(layout.count, density=REFIT_DENSITY)
    folder = tmp_path_factory.mktemp("refit")
    np.save(folder / "old.npy", versions.old)
    return Refit(layout, versions, folder)


def without_torch(peer: RefitPeer) -> str | None:
    """Return the reason why a peer that needs torch cannot run here, or None."""
    is_missing = peer.name == "verl_like" and find_spec("torch") is None
    return "torch is not installed" if is_missing else None


def to_and_fro(update: Callable[[int], object]) -> Measure:
    """Return a measure of updates per second; `update` gets 1 and 0 in turn, for two versions."""
    turns = 0

    def measure() -> float:
        nonlocal turns
        turns += 1
        began_ns = time.perf_counter_ns()
        update(turns % 2)
        return 1e9 / (time.perf_counter_ns() - began_ns)

    return measure


@pytest.mark.parametrize(
    ("gbit", "peer"),
    [
        pytest.param(
            gbit,
            peer,
            id=f"{gbit}-{peer.name}",
            marks=() if gbit == 1 and peer.name in JUDGED else pytest.mark.slow,
        )
        for gbit in REFIT_RATES
        for peer in REFIT_PEERS
    ],
)
def test_refit(report: Report, refit: Refit, peer: RefitPeer, gbit: int) -> None:
    """Update both ranks of an engine, from pack to apply. All results must equal bit for bit."""
    name = f"speedup_vs_{peer.name}_{gbit}gbit"
    update_row = f"update_ms_beside_{peer.name}_{gbit}gbit"
    crossing_row = f"crossing_mib_beside_{peer.name}_{gbit}gbit"
    if reason := without_links() or without_torch(peer):
        report.leave_out([name, update_row, crossing_row], reason)
        return
    old, new = refit.versions.old, refit.versions.new
    common = (refit.layout, old, refit.folder)
    with (
        shaped_link(gbit * GBIT) as link,
        rose_trainer(*common, link) as rose,
        peer_trainer(peer, *common, link) as other,
    ):
        paired = report.pairs(
            to_and_fro(lambda which: rose.update((old, new)[which])),
            to_and_fro(lambda which: other.update((old, new)[which])),
            rounds=REFIT_ROUNDS,
        )
        crossed = []
        for one in (rose, other):
            one.update(old)  # from here on the current version is known
            before = link.near.sent_bytes()
            one.update(new)
            crossed.append((link.near.sent_bytes() - before) / MIB)
        other.check_ranks(new)
    report.add_ratio(
        name,
        paired,
        peer=Peer(peer.title, 1e3 / paired.peer, "ms"),
        bar=Bar(at_least=1.0) if peer.name in JUDGED else None,
    )
    report.add(update_row, 1e3 / paired.subject, "ms")
    mine, theirs = crossed
    report.add(
        crossing_row,
        mine,
        "MiB an update",
        peer=Peer(peer.title, theirs, "MiB an update"),
    )


# ---- from measured parts to a model that no machine here holds

PART_ELEMENTS: Final = 2 * PATTERN
PART_ROUNDS: Final = 5
PART_WIRE: Final = Wire(1 * GBIT, 0.2)
EXTRAPOLATED: Final = (
    "extrapolated_update_s_120b_3pct_25gbit",
    "extrapolated_pause_ms_120b_on_devices",
    "extrapolated_pause_ms_120b_on_cpus",
)


class PartsRun:
    """Measures each part of an update separately, on one thread."""

    def __init__(self) -> None:
        self._versions = two_versions(PART_ELEMENTS, density=LARGE.density)
        self._log = VersionLog(versions_max=2)
        self._publisher = RowPublisher(self._versions.old, "bench", 1, 1, self._log)
        self._bits = self._versions.old.copy()
        self._row = Row(self._bits, self._publisher.tiles)
        self._patch = self._versions.old ^ self._versions.new
        self._samples: list[tuple[float, float, float, float, float]] = []
        self._turns = 0

    def round(self) -> None:
        """Measure every part once, one after the other."""
        self._turns += 1
        weights_gb = 2 * PART_ELEMENTS / 1e9
        tiles = self._publisher.tiles
        new = self._versions.new if self._turns % 2 else self._versions.old
        bare_s = self._bare_s()
        digests = self._row.digests()
        manifest, pack_s = timed_call(lambda: self._publisher.publish(new))
        frames = [(self._log.chunk(manifest.key, chunk.tile), chunk) for chunk in manifest.chunks]
        _, stage_s = timed_call(
            lambda: [sound_delta(frame or b"", chunk, tiles[chunk.tile]) for frame, chunk in frames]
        )
        staged = staged_of(self._log, manifest, Subscription(tiles))
        commit = Commit(staged, self._row, manifest.base_digest, digests=digests)
        _, commit_s = timed_call(commit.run)
        check(commit.state is CommitState.COMMITTED, f"{commit.outcome}")
        self._samples.append(
            (
                weights_gb / pack_s,
                manifest.nbytes / manifest.changed,
                manifest.nbytes / 1e9 / stage_s,
                weights_gb / commit_s,
                commit_s / bare_s,
            )
        )

    def _bare_s(self) -> float:
        def bare() -> None:
            for tile in self._publisher.tiles:
                bits = self._row.bits(tile.index)
                np.bitwise_xor(bits, self._patch[tile.where], out=bits)
                self._row.digest(tile.index)

        _, seconds = timed_call(bare)
        self._bits ^= self._patch  # restores the bits
        return seconds

    def parts(self, wire_efficiency: float) -> Parts:
        pack, change, stage, commit, over_bare = map(
            statistics.median, zip(*self._samples, strict=True)
        )
        return Parts(pack, change, wire_efficiency, stage, commit, over_bare)


def staged_of(log: VersionLog, manifest: Manifest, wanted: Subscription) -> StagedVersion:
    """Return a version of a log as a receiver stages it."""
    staged = Puller(log, threading.Event()).pull(manifest, wanted)
    if staged is None:
        raise InternalError("the version is not there")
    return staged


def timed_call(function: Callable[[], T]) -> tuple[T, float]:
    began_ns = time.perf_counter_ns()
    result = function()
    return result, (time.perf_counter_ns() - began_ns) / 1e9


def test_extrapolation(report: Report) -> None:
    """Compute an update from parts that were measured in this run, and show them in the rows."""
    if reason := without_links():
        report.leave_out(EXTRAPOLATED, reason)
        return
    measured = PartsRun()
    report.repeat(measured.round, PART_ROUNDS)
    with link_ends(PART_WIRE, WIRE_BYTES[PART_WIRE.bits_per_s]) as ends:
        rate = statistics.median(ends.by_rose() for _ in range(3))
    parts = measured.parts(rate / PART_WIRE.bits_per_s)
    bars = (Bar(at_most=3.0), Bar(at_most=50.0), None)
    figures = (
        published_to_staged_s(parts, LARGE),
        pause_on_devices_ms(parts, LARGE),
        pause_on_cpus_ms(parts, LARGE),
    )
    for name, figure, bar in zip(EXTRAPOLATED, figures, bars, strict=True):
        unit = "s" if name.endswith("gbit") else "ms"
        report.add(name, figure.value, unit, bar=bar, terms=figure.terms)


# ---- interference with serving

WINDOW_S: Final = 3.0
WINDOW_ROUNDS: Final = 4


@pytest.fixture
def served() -> Iterator[ServedEngine]:
    pytest.importorskip("transformers")
    with served_engine() as engine:
        yield engine


@pytest.mark.slow
def test_serving_during_updates(report: Report, served: ServedEngine) -> None:
    """P99s in windows with updates, divided by those without, on a real engine of one thread."""
    seconds = WINDOW_S if report.count(WINDOW_ROUNDS, at_least=1) > 1 else WINDOW_S / 3
    tpot: deque[float] = deque()

    def window(has_updates: bool) -> Measure:
        def measure() -> float:
            felt: Felt = served.window(seconds, has_updates=has_updates)
            tpot.append(felt.tpot_ms_p99)
            return felt.ttft_ms_p99

        return measure

    both = {"ttft": Pairs(window(True), window(False)), "tpot": Pairs(tpot.popleft, tpot.popleft)}

    def one_round() -> None:
        for pairs in both.values():  # "ttft" runs the windows, "tpot" takes their other P99s
            pairs.round()

    report.repeat(one_round, WINDOW_ROUNDS)
    for what, pairs in both.items():
        paired = pairs.result()
        peer = Peer("the same engine without updates", paired.peer, "ms")
        report.add_ratio(f"{what}_p99_during_update_ratio", paired, peer=peer)
        report.add(f"{what}_p99_during_update_ms", paired.subject, "ms")
    report.add("serving_update_pause_ms", statistics.median(served.pauses_ms), "ms")
    report.add("serving_update_every_ms", 1e3 * UPDATE_EVERY_S, "ms")
