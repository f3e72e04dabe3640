"""The delta codec: bytes on a trained model's own steps, and speeds for several densities and
sizes.

The trained model is one flat row in blocks of 64 Ki elements. Bytes are those of the sent frames
(header, class rule, table and payload) per changed element. Bounds and peers use the same arrays. A
speed is bytes of weights (two per element) divided by the time of a call.
"""

import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.codecs import COO, GAP_XOR_ZSTD, PEERS
from bench.conftest import Report
from bench.entropy import class_entropy_bytes, iid_entropy_bytes
from bench.paired import Measure, timed
from bench.rows import Bar, Peer
from bench.trained.record import Recording, record
from bench.trained.settings import Point, Settings
from bench.trained.store import TrainedSteps, trained_steps
from bench.versions import Versions, two_versions
from rose.errors import InternalError, check
from rose.transfer import Delta, delta_apply, delta_pack
from rose.transfer.codec.class_rule import class_rule
from rose.transfer.codec.operations import digest, topk_unpack
from rose.transfer.codec.strat import strat_pack, strat_unpack, wire_pack

Bits = npt.NDArray[np.uint16]

MI = 1 << 20


# ---- bytes, on steps of a trained model


def not_now(_settings: Settings) -> Recording:
    pytest.skip("no trained versions are kept: FULL=1 trains the model for minutes, once")


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest) -> TrainedSteps:
    """Return stored versions of a trained model; if there are none, train it with --full only."""
    return trained_steps(make=record if request.config.getoption("--full") else not_now)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes per changed element."""

    gap: float
    strat: float
    peers: dict[str, float]
    iid_bound: float
    class_bound: float


def sizes_of(new: Bits, old: Bits) -> Sizes:
    """Encode a step with every codec, and check that each restores it."""
    changed = int((new != old).sum())
    rule = class_rule(new, old)
    delta = delta_pack(new, old.copy())
    if rule is None:
        raise InternalError("no class rule makes the delta smaller")
    strat = strat_pack(delta, old, rule)
    check(strat_unpack(strat, old).to_bytes() == delta.to_bytes(), "STRAT does not restore GAP")
    weights = old.copy()
    delta_apply(weights, delta)
    check(np.array_equal(weights, new), "GAP does not restore the new version")
    peers = {}
    for peer in PEERS:
        frame = peer.encode(new, old)
        check(np.array_equal(peer.decode(frame, old), new), f"{peer.name} does not restore it")
        peers[peer.name] = len(frame) / changed
    return Sizes(
        gap=len(delta.to_bytes()) / changed,
        strat=len(strat.to_bytes()) / changed,
        peers=peers,
        iid_bound=iid_entropy_bytes(new, old),
        class_bound=class_entropy_bytes(new, old),
    )


@pytest.mark.parametrize("point", Settings().points, ids=lambda point: point.name)
def test_bytes_per_change(report: Report, trained: TrainedSteps, point: Point) -> None:
    new, old = (np.ascontiguousarray(version) for version in trained.pair(point))
    measured: list[Sizes] = []
    report.once(lambda: measured.append(sizes_of(new, old)))
    (size,), at = measured, point.name
    report.add(f"trained_density_{at}", 100 * float((new != old).mean()), "%")
    report.add(f"bytes_per_changed_gap_trained_{at}", size.gap, "B")
    bar = Bar(at_most=1.05) if at == "1pct" else None
    report.add(f"bytes_per_changed_strat_{at}", size.strat, "B", bar=bar)
    for peer in PEERS:
        report.add(f"bytes_per_changed_{peer.name}_{at}", size.peers[peer.name], "B")
    report.add(
        f"gap_over_iid_entropy_{at}",
        size.gap / size.iid_bound,
        "ratio",
        peer=Peer("bound: positions and steps, i.i.d.", size.iid_bound, "B"),
        bar=Bar(at_most=1.25),
    )
    report.add(
        f"strat_over_class_entropy_{at}",
        size.strat / size.class_bound,
        "ratio",
        peer=Peer("bound: the same given the old exponent", size.class_bound, "B"),
        bar=Bar(at_most=1.3),
    )
    zstd = size.peers[GAP_XOR_ZSTD.name]
    report.add(
        f"strat_over_gap_xor_zstd_{at}",
        size.strat / zstd,
        "ratio",
        peer=Peer(GAP_XOR_ZSTD.title, zstd, "B"),
        bar=Bar(at_most=0.65),
    )
    coo = size.peers[COO.name]
    report.add(f"strat_over_coo_{at}", size.strat / coo, "ratio", peer=Peer(COO.title, coo, "B"))


# ---- speeds, on versions of any density and size


@dataclass(frozen=True, slots=True)
class Case:
    """The conditions of a measured speed."""

    percent: float
    mi_elements: int
    threads: int

    @property
    def elements(self) -> int:
        return self.mi_elements * MI

    @property
    def name(self) -> str:
        threads = "1_thread" if self.threads == 1 else f"{self.threads}_threads"
        return f"{self.percent:g}pct_{self.mi_elements}Mi_{threads}"

    @property
    def is_judged(self) -> bool:
        """True if the bars apply to this case."""
        return self in JUDGED

    @property
    def rounds(self) -> int:
        """Number of rounds, fewer for slow cases."""
        return max(5, min(31, 240 // self.mi_elements))


JUDGED = [Case(1, 16, 1), Case(1, 16, 2)]
OTHERS = [Case(percent, 16, 1) for percent in (0.05, 6.7, 50)] + [Case(0.8, 512, 2)]
CASES = [*JUDGED, *(pytest.param(case, marks=pytest.mark.slow) for case in OTHERS)]
REST_S = 0.02


class Bench:
    """Makes the versions of one case at a time, and gives torch the case's number of threads."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._made: tuple[float, int] | None = None
        self._versions: Versions | None = None

    def versions(self, case: Case) -> Versions:
        if self._made != (case.percent, case.elements) or self._versions is None:
            self._versions = None  # two of the largest would not fit into memory
            self._versions = two_versions(case.elements, density=case.percent / 100)
            self._made = case.percent, case.elements
        self.torch.set_num_threads(case.threads)
        return self._versions

    def tensor(self, bits: Bits) -> Any:
        return self.torch.from_numpy(bits.view(np.int16))


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    pytest.importorskip("torch")
    torch = importlib.import_module("torch")
    threads = torch.get_num_threads()
    yield Bench(torch)
    torch.set_num_threads(threads)


def speed_gb_s(case: Case, call: Callable[[], object], prepare: Callable[[], object]) -> Measure:
    """Return a measure in GB/s of weights; `prepare` runs before each call, unmeasured.

    After each call, the measure waits until torch's threads are idle. They spin for milliseconds
    after their work, on as many cores as there are threads, and would slow down the next
    measurement.
    """
    measure_ns = timed(call)

    def measure() -> float:
        prepare()
        time.sleep(REST_S)
        return 2 * case.elements / measure_ns()

    return measure


def case_id(case: Case) -> str:
    return case.name


def by_torch(bench: Bench, new: Any, held: Any) -> Any:
    positions = bench.torch.ne(new, held).nonzero().view(-1)
    values = new[positions]
    held.copy_(new)
    return positions, values


@pytest.mark.parametrize("encoding", ["gap", "strat"])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_pack(report: Report, bench: Bench, case: Case, encoding: str) -> None:
    """Measure packing, including the digest and the choice of block kinds.

    STRAT is packed together with GAP in one pass, with a given class rule.

    As in a chain of deltas, the shadow's digest is known from the previous delta, so it is computed
    once and not timed. The digest of the result is part of every call.
    """
    versions = bench.versions(case)
    base = digest(versions.old)
    shadow = versions.old.copy()
    rule = class_rule(versions.new, versions.old)
    if rule is None and encoding == "strat":
        pytest.skip("no class rule makes this delta smaller, so its encoding is GAP")
    fresh, held = bench.tensor(versions.new), bench.tensor(shadow)

    def gap() -> Delta:
        return delta_pack(versions.new, shadow, threads=case.threads, base_digest=base)

    def strat() -> Delta:
        if rule is None:
            raise InternalError("a case without a rule was not left out")
        made = wire_pack(versions.new, shadow, rule, threads=case.threads, base_digest=base)
        return made[1]

    def reset() -> None:
        shadow[:] = versions.old

    paired = report.pairs(
        speed_gb_s(case, {"gap": gap, "strat": strat}[encoding], reset),
        speed_gb_s(case, lambda: by_torch(bench, fresh, held), reset),
        rounds=case.rounds,
    )
    at_least = {"gap": 8.0, "strat": 3.0}[encoding]
    report.add_ratio(
        f"pack_{encoding}_speedup_vs_torch_{case.name}",
        paired,
        peer=Peer("torch ne, nonzero, index, copy_; no digest", paired.peer, "GB/s"),
        bar=Bar(at_least=at_least) if case.is_judged else None,
    )


@pytest.mark.parametrize("case", JUDGED, ids=case_id)
def test_pack_over_memory_read(report: Report, bench: Bench, case: Case) -> None:
    """Speed of a pack, divided by that of reading both versions with as many threads."""
    versions = bench.versions(case)
    base, shadow = digest(versions.old), versions.old.copy()
    words = [bench.tensor(one).view(bench.torch.int64) for one in (versions.new, shadow)]

    def reset() -> None:
        shadow[:] = versions.old

    paired = report.pairs(
        speed_gb_s(
            case,
            lambda: delta_pack(versions.new, shadow, threads=case.threads, base_digest=base),
            reset,
        ),
        speed_gb_s(case, lambda: [one.sum() for one in words], reset),
        rounds=case.rounds,
    )
    report.add_ratio(
        f"pack_gap_over_memory_read_{case.name}",
        paired,
        # The sums read two bytes for each byte of weights.
        peer=Peer("torch sums both versions as int64", 2 * paired.peer, "GB/s"),
    )


@pytest.mark.parametrize("case", [JUDGED[0]], ids=case_id)  # an apply uses one thread
def test_apply(report: Report, bench: Bench, case: Case) -> None:
    versions, torch = bench.versions(case), bench.torch
    delta = delta_pack(versions.new, versions.old.copy())
    weights = versions.old.copy()
    held = bench.tensor(weights).view(torch.bfloat16)
    positions, values = topk_unpack(delta, versions.old)
    where, become = torch.from_numpy(positions), bench.tensor(values).view(torch.bfloat16)

    def reset() -> None:
        weights[:] = versions.old

    def by_dense() -> None:
        dense = torch.full((case.elements,), torch.nan, dtype=torch.bfloat16)
        dense[where] = become
        held.copy_(torch.where(dense.isnan(), held, dense))

    by_dense()
    check(np.array_equal(weights, versions.new), "the result is not the new version")
    paired = report.pairs(
        speed_gb_s(case, lambda: delta_apply(weights, delta), reset),
        speed_gb_s(case, by_dense, reset),
        rounds=case.rounds,
    )
    report.add_ratio(
        f"apply_speedup_vs_dense_{case.name}",
        paired,
        peer=Peer("a dense tensor of NaN, torch.where, copy_", paired.peer, "GB/s"),
        bar=Bar(at_least=10.0),
    )
