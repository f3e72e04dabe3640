"""Weights through `rose.publish` and `rose.receive`, beside gloo and other ways to move them.

Both ends are processes of their own. Subject and peer move the same tensors, in turn. A publisher's
start is not part of a first sync, and neither is the rendezvous of gloo.
"""

import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

import rose
from bench.bench_chunks import certificate
from bench.conftest import Report
from bench.netns import inside, shaped_link
from bench.paired import PairedRatio
from bench.refit_peers import Bits
from bench.refit_ranks import DEADLINE_S, Rank
from bench.rows import Bar, Peer, Term
from bench.weight_ends import Call, Ends, Took, qwen, small_tensors, two_ends
from bench.weight_faults import FaultLoop
from rose.errors import RoseError, Unavailable
from rose.transfer.wire.security import TlsFiles

pytest.importorskip("torch")

MODELS: Final = {"0.5b": qwen(24, 896, 4864, 128), "1.5b": qwen(28, 1536, 8960, 256)}
SIZES: Final = [("0.5b", "0.5b"), pytest.param("1.5b", "1.5b", marks=pytest.mark.slow)]
SMALL_MODEL: Final = pytest.mark.parametrize("ends", ["0.5b"], indirect=True)
DENSITIES: Final = (0.01, 0.03)
ROUNDS: Final = 7
GBIT: Final = 1e9
STATISTICS: Final = Path(__file__).parent / "results" / "trained-steps.json"


class Sides:
    """Two methods that alternate, and what each costs."""

    def __init__(self, subject: Callable[[], Took], peer: Callable[[], Took]) -> None:
        self.subjects: list[Took] = []
        self.peers: list[Took] = []
        self._subject, self._peer = subject, peer

    def subject(self) -> float:
        self.subjects.append(self._subject())
        return self.subjects[-1].wall_s

    def peer(self) -> float:
        self.peers.append(self._peer())
        return self.peers[-1].wall_s

    def report(self, report: Report, name: str, title: str, bar: Bar | None) -> PairedRatio:
        """Measure, and report the ratio of wall times and a row of CPU times."""
        paired = report.pairs(self.subject, self.peer, rounds=ROUNDS)
        report.add_ratio(name, paired, peer=Peer(title, paired.peer, "s"), bar=bar)
        rose_s, peer_s = _cpu_s(self.subjects), _cpu_s(self.peers)
        terms = [
            Term("wall time", paired.subject, "s"),
            *(Term(side, value, "CPU s") for side, value in rose_s.items()),
            *(Term(f"{side} of the peer", value, "CPU s") for side, value in peer_s.items()),
        ]
        report.add(
            f"cpu_s_of_{name}",
            sum(rose_s.values()),
            "CPU s",
            peer=Peer(title, sum(peer_s.values()), "CPU s"),
            terms=terms,
        )
        return paired


def _cpu_s(some: list[Took]) -> dict[str, float]:
    return {
        "trainer": statistics.median(one.trainer_cpu_s for one in some),
        "engine": statistics.median(one.engine_cpu_s for one in some),
    }


GLOO: Final = "gloo's broadcast of all tensors"


def gloo(ends: Ends) -> Took:
    return ends.run(("gloo",), ("gloo",))


def peak_of(ends: Callable[..., Any], step: Callable[[], object]) -> tuple[int, int, int]:
    """Run a step; return the peak memory of an end, its memory before, and the weights' size."""
    ends("forget_peak")
    step()
    peak, before, model = ends("memory")
    return peak, before, model


@pytest.fixture(scope="module")
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Both ends of a model's size on loopback, with shared memory."""
    with two_ends(MODELS[request.param]) as both:
        yield both


# ---- a first sync


@pytest.mark.parametrize("door", ["tcp", "shared_memory"])
@pytest.mark.parametrize(("size", "ends"), SIZES, indirect=["ends"])
def test_first_sync(report: Report, ends: Ends, size: str, door: str) -> None:
    """From `receive` until the first version is committed."""
    name = f"{door}_{size}"
    ends.engine("open_memory_door", door == "shared_memory")
    place = ends.publish()

    def first_sync() -> Took:
        ends.engine("clear")
        took = ends.run(None, ("first_sync", *place))
        ends.engine("close")
        return took

    peak, _, model = peak_of(ends.engine, first_sync)
    sent = ends.trainer("sent_bytes")
    assert ends.is_equal()
    gloos, _, _ = peak_of(ends.engine, lambda: gloo(ends))
    report.add(
        f"receiver_rss_over_model_{name}",
        peak / model,
        "ratio",
        peer=Peer(GLOO, gloos / model, "ratio"),
        bar=Bar(at_most=1.4),
        terms=[Term("peak of the process", peak, "B"), Term("model", model, "B")],
    )
    report.add(f"bytes_of_first_sync_{name}", sent, "B", peer=Peer(GLOO, model, "B"))
    bar = Bar(at_most=3.0 if door == "tcp" else 1.5)
    both = Sides(first_sync, lambda: gloo(ends))
    both.report(report, f"first_sync_over_gloo_{name}", GLOO, bar)
    ends.trainer("close")


# ---- an update


@contextmanager
def updates(ends: Ends, density: float) -> Iterator[Callable[[], Took]]:
    """Bring the engine to the trainer's version; yield a function that updates both.

    The time in which the weights change is not part of its cost.
    """
    ends.trainer("patch", density)
    ends.engine("open_memory_door", False)
    ends.engine("first_sync", *ends.publish())

    def update() -> Took:
        ends.trainer("change")
        return ends.run(("update",), ("follow",))

    yield update
    assert ends.is_equal()
    ends.engine("close")
    ends.trainer("close")


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize(("size", "ends"), SIZES, indirect=["ends"])
def test_update(report: Report, ends: Ends, size: str, density: float) -> None:
    """From `update` until the engine has committed, over loopback."""
    name = f"{density:.0%}_{size}"
    with updates(ends, density) as update:
        sent = -ends.trainer("sent_bytes")
        peak, before, model = peak_of(ends.trainer, update)
        sent += ends.trainer("sent_bytes")
        report.add(
            f"trainer_rss_over_model_{name}",
            1 + (peak - before) / model,
            "ratio, above the shadow",
            bar=Bar(at_most=1.1),
            terms=[
                Term("before the first update", before, "B"),
                Term("peak of the update", peak, "B"),
                Term("model", model, "B"),
            ],
        )
        report.add(f"bytes_of_update_{name}", sent, "B", peer=Peer(GLOO, model, "B"))
        both = Sides(update, lambda: gloo(ends))
        both.report(report, f"update_over_gloo_loopback_{name}", GLOO, Bar(at_most=1.7))


@pytest.mark.parametrize(
    "density", [DENSITIES[0], pytest.param(DENSITIES[1], marks=pytest.mark.slow)]
)
def test_update_on_a_link(report: Report, density: float) -> None:
    name = f"update_over_gloo_1gbps_{density:.0%}"
    try:
        with (
            shaped_link(GBIT) as link,
            two_ends(MODELS["0.5b"], link) as ends,
            updates(ends, density) as update,
        ):
            Sides(update, lambda: gloo(ends)).report(report, name, GLOO, None)
    except Unavailable as error:
        report.leave_out([name], str(error))


@SMALL_MODEL
def test_pause(report: Report, ends: Ends) -> None:
    """Time of `commit` for 1 % of the elements."""
    density = DENSITIES[0]
    with updates(ends, density) as update:
        ends.engine("keep_other")
        paired = report.pairs(
            lambda: update().values[1], lambda: ends.engine("bare", density), rounds=ROUNDS
        )
    title = "every tile ^= a dense patch, then its digest"
    report.add_ratio(
        "pause_over_bare_change", paired, peer=Peer(title, paired.peer, "s"), bar=Bar(at_most=1.1)
    )
    report.add("pause_of_commit_ms", 1e3 * paired.subject, "ms")


# ---- other ways to move an update


def through_file(ends: Ends, folder: Path) -> Took:
    file = str(folder / "weights.safetensors")
    return ends.run(("save", file), None) + ends.run(None, ("load", file))


def through_zstd(ends: Ends) -> Took:
    send: tuple[Call, Call] = (("send_changes",), ("take_changes",))
    ends.trainer("change")
    took = ends.run(*send)
    ends.trainer("change")
    ends.run(*send)
    return took


WAYS: Final = {
    "safetensors_disk": "safetensors: save_file, load_file and copy, on a disk",
    "safetensors_memory": "safetensors: save_file, load_file and copy, in /dev/shm",
    "ne_nonzero_zstd": "torch ne, nonzero and zstd-1, over gloo",
}


@SMALL_MODEL
@pytest.mark.parametrize("way", WAYS)
def test_update_beside(report: Report, ends: Ends, way: str, tmp_path: Path) -> None:
    """An update of 1 % over loopback, beside methods that are not judged."""
    report.leave_out(["update_over_ray"], "no environment of the bench has ray")
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        updates(ends, DENSITIES[0]) as update,
    ):
        ends.run(("keep_other",), ("keep_other",))
        peers = {
            "safetensors_disk": lambda: through_file(ends, tmp_path),
            "safetensors_memory": lambda: through_file(ends, Path(memory)),
            "ne_nonzero_zstd": lambda: through_zstd(ends),
        }
        Sides(update, peers[way]).report(report, f"update_over_{way}", WAYS[way], None)


# ---- many small tensors

SMALL: Final = 20_000
SMALL_ROUNDS: Final = 5


def test_small_tensors(report: Report) -> None:
    """CPU time of each operation in the process that asks for it, per tensor."""
    spent: dict[str, list[float]] = {}

    def note(operation: str, seconds: float) -> None:
        spent.setdefault(operation, []).append(1e6 * seconds / SMALL)

    def update(which: str, tensors: int | None) -> None:
        ends.trainer("change", tensors)
        both = ends.run(("update",), ("stage",))
        note(f"update_{which}", both.trainer_cpu_s)
        note(f"stage_{which}", both.engine_cpu_s)
        note(f"commit_{which}", ends.run(None, ("commit",)).engine_cpu_s)

    def all_operations() -> None:
        ends.engine("clear")
        published = ends.run(("publish", "127.0.0.1:0"), None)
        note("publish", published.trainer_cpu_s)
        note("receive", ends.run(None, ("receive", *published.values[0])).engine_cpu_s)
        ends.engine("follow")
        update("all", None)
        update("one", 1)
        assert ends.is_equal()
        ends.engine("close")
        ends.trainer("close")

    with two_ends(small_tensors(SMALL)) as ends:
        ends.trainer("patch", 1.0)
        report.repeat(all_operations, SMALL_ROUNDS)
    for operation, some in spent.items():
        median = statistics.median(some)
        report.add(f"us_per_tensor_{operation}", median, "CPU us", bar=Bar(at_most=20.0))


# ---- bytes on the recorded statistics of a trained model


def test_bytes_of_changes(report: Report) -> None:
    """Bytes of an update with encoding="strat", per changed element.

    No weights of a trained model are kept here, so both versions are drawn: from the elements and
    the changes of each exponent, and the sizes of changes, of a recorded step of training.
    """
    new, old = drawn_versions()
    model, engine = ({"w": old.view(ml_dtypes.bfloat16).copy()} for _ in range(2))
    with (
        rose.publish(model, encoding="strat") as publisher,
        rose.receive(engine, publisher.address, token=publisher.token) as receiver,
    ):
        receiver.wait(DEADLINE_S)
        receiver.commit()
        before = publisher.figures()["sent_bytes"]
        publisher.update({"w": new.view(ml_dtypes.bfloat16)})
        receiver.wait(DEADLINE_S)
        receiver.commit()
        sent = publisher.figures()["sent_bytes"] - before
    assert np.array_equal(engine["w"].view(np.uint16), new)
    changed = np.count_nonzero(new != old)
    report.add(
        "bytes_per_change_api_drawn_from_trained_steps",
        sent / changed,
        "B",
        bar=Bar(at_most=1.05),
        terms=[Term("changed", changed, "elements"), Term("sent", sent, "B")],
    )


def drawn_versions() -> tuple[Bits, Bits]:
    """Return (new, old) bf16 bits with the statistics of a recorded step of about 1 %."""
    step = json.loads(STATISTICS.read_text("utf-8"))["points"]["1pct"]
    rng = np.random.default_rng(49)
    parts = []
    for exponent, (elements, changed) in step["exponents"].items():
        old = (int(exponent) << 7 | rng.integers(0, 1 << 7, elements)).astype(np.uint16)
        old |= (rng.integers(0, 2, elements) << 15).astype(np.uint16)
        # The smallest, then the largest size of each group of sizes; the last group is open.
        low, high = np.array([1, 2, 3, 5]), np.array([1, 2, 4, 64])
        shares = np.array(list(step["ulp"].values()))
        group = rng.choice(4, changed, p=shares / shares.sum())
        size = rng.integers(low[group], high[group] + 1) * rng.choice([-1, 1], changed)
        new = old.copy()
        new[:changed] += size.astype(np.uint16)
        parts.append(np.stack([new, old])[:, rng.permutation(elements)])
    both = np.concatenate(parts, axis=1)
    new, old = both[:, rng.permutation(both.shape[1])]
    return new, old


# ---- never silently wrong, on any network

CONNECTS: Final = 5
FAULTS: Final = 10_000
BRIEF_FAULTS: Final = 400


def connects(line: Connection, address: str, token: str, files: TlsFiles) -> None:
    """Send for each of several receivers whether its first attempt got the weights."""
    for _ in range(CONNECTS):
        tensors = {"w": np.zeros(1000, np.float32)}
        try:
            tls = (files.certificate, files.key, files.authority)
            with rose.receive(tensors, address, token=token, tls=tls) as receiver:
                receiver.wait(DEADLINE_S)
                receiver.commit()
        except RoseError:
            pass
        line.send(bool(tensors["w"].all()))


def test_tls_connects(report: Report, tmp_path: Path) -> None:
    """Share of receivers that connect at the first attempt, with a round trip of 300 ms."""
    name = "tls_connects_at_300ms"
    if shutil.which("openssl") is None:
        report.leave_out([name], "certificates are made with the program openssl")
        return
    try:
        with shaped_link(GBIT, delay_ms=150.0) as link:
            files = certificate(tmp_path, link.near.address)
            tls = (files.certificate, files.key, files.authority)
            tensors = {"w": np.ones(1000, np.float32)}
            listen = f"{link.near.address}:0"
            with inside(link.near.namespace), rose.publish(tensors, listen=listen, tls=tls) as one:
                far = Rank(link.far.namespace, connects, one.address, one.token, files)
                count = sum(far.hear() for _ in range(CONNECTS))
                far.end()
    except Unavailable as error:
        report.leave_out([name], str(error))
        return
    terms = [Term("connected", count, "receivers"), Term("tried", CONNECTS, "receivers")]
    report.add(name, count / CONNECTS, "share", bar=Bar(at_least=1.0), terms=terms)


def test_faults(report: Report, tmp_path: Path) -> None:
    loop = FaultLoop(tmp_path)
    try:
        report.once(lambda: loop.run(report.count(FAULTS, brief=BRIEF_FAULTS)))
    finally:
        loop.close()
    terms = [Term(f"faults: {kind}", count, "faults") for kind, count in loop.faults.items()]
    terms += [Term(f"errors: {kind}", count, "errors") for kind, count in loop.errors.items()]
    terms += [Term(f"scrub: {kind}", count, "repairs") for kind, count in loop.late.items()]
    report.add("silent_divergences", len(loop.silent), "faults", bar=Bar(at_most=0), terms=terms)
