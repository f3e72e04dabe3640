"""A real vLLM serves beside rollouts of a second one, on one core: cost for serving, and harvest.

Slices alternate: with loans, without loans, with loans, and without rose beside rollouts that
nothing stops. Loans are switched as by `rose lending`. The suite takes about six minutes on a quiet
machine; with --full each arm has at least 540 requests.
"""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from bench.conftest import Report
from bench.paired import PairedRatio, median_interval, quantile
from bench.rows import CONTROL, Bar, Peer
from bench.vllm_servers import (
    ANSWERS_S,
    ENVIRONMENT,
    KV_BYTES,
    PYTHON,
    ROOT,
    Server,
    Talk,
    prompts,
)
from rose.errors import Unavailable, check
from rose.executor.messages import SetLimit
from rose.executor.observing import ask_device
from rose.units import MS_PER_S

_ROUNDS: Final = 9
_ROUNDS_BRIEF: Final = 3
_REQUESTS: Final = 60  # per slice; each arm has at least 540 in 9 rounds
_REQUESTS_BRIEF: Final = 12
_GAP_S: Final = 0.5
_TOKENS: Final = 24
_ROLLOUT_TOKENS: Final = 200
_REVOKE_MS: Final = 500.0
_SETTLE_S: Final = 1.0
_QUIET_S: Final = 5.0
# Prompts that together need most of the pool, and rollouts beside them, while the limit changes.
_STORM: Final = prompts(16, tokens=800)
_STORM_TOKENS: Final = 40
_STORM_ROLLOUTS: Final = prompts(8, tokens=32)
_STORM_ROLLOUT_TOKENS: Final = 80
_REVOCATIONS: Final = 1000
_STORM_S: Final = 1800.0
_STORM_BRIEF_S: Final = 30.0
_LEND_S: Final = 0.25  # longer than the pause after a revocation
_AWAY_S: Final = 0.05
_NO_VLLM: Final = "real vLLM is not installed here: make vllm-env"


@dataclass
class Slice:
    """Latencies and tokens of the requests of one slice.

    Args:
        ttft_ms: time to the first token, of each request.
        tpot_ms: mean time between tokens, of each request.
        tokens: tokens of each answer.
        busy_s: time during which serving had a request.
        took_s: length of the slice.
        rollout_tokens: tokens that the borrower generated during the slice.
    """

    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    busy_s: float = 0.0
    took_s: float = 0.0
    rollout_tokens: float = 0.0


class Machine:
    """Two servers under rose and two without, on one core, and rollouts that never end."""

    def __init__(self, folder: Path) -> None:
        self._core = max(os.sched_getaffinity(0))
        self._client_cores = os.sched_getaffinity(0) - {self._core} or {self._core}
        self.socket = folder / "s"
        from rose.engines.vllm.tiny import make_model  # It imports transformers.

        served = make_model(folder / "served", layers=4, hidden=128, seed=1)
        rolled_out = make_model(folder / "rolled-out", layers=8, hidden=256, seed=2)
        memory = ("--enforce-eager", "--kv-cache-memory-bytes", str(KV_BYTES))
        rose, stock = ("rose.cli.main", "vllm"), "vllm.entrypoints.cli.main"

        def server(name: str, *command: str) -> Server:
            return Server(*command, log=folder / f"{name}.log", core=self._core)

        self.serving = server(
            "serving",
            *(*rose, "serve", str(served), "--listen", str(self.socket)),
            *("--epsilon", "0.02", "--revoke-ms", str(_REVOKE_MS), *memory),
        )
        self.borrower = server(
            "borrower", *rose, "rollout", str(rolled_out), "--attach", str(self.socket)
        )
        self.stock = server("stock", stock, "serve", str(served), *memory)
        self.stock_rollouts = server("stock-rollouts", stock, "serve", str(rolled_out), *memory)
        self._rollouts: Talk | None = None
        self._taken = 0  # loans that were taken back because the storm lowered the limit

    @property
    def _servers(self) -> tuple[Server, ...]:
        return (self.serving, self.stock, self.stock_rollouts, self.borrower)

    def start(self, say: Callable[[str], None]) -> None:
        say("four servers start")
        for one in (self.serving, self.stock, self.stock_rollouts):
            one.launch()
        self.serving.wait_until_up()  # A borrower attaches when it starts.
        self.borrower.launch()
        for one in self._servers:
            one.wait_until_up()

    def close(self) -> None:
        self.stop_rollouts()
        for one in reversed(self._servers):
            one.stop()

    def lend(self, share: float) -> None:
        ask_device(self.socket, SetLimit(share), timeout_s=30)
        time.sleep(_SETTLE_S)

    def roll_out(self) -> None:
        """Give the borrower prompts, unless it still works on earlier ones."""
        if self._rollouts is None or self._rollouts.is_over:
            said = prompts(5000, tokens=64)
            self._rollouts = Talk(
                self.borrower, said, tokens=_ROLLOUT_TOKENS, cores=self._client_cores
            )

    def stop_rollouts(self) -> None:
        if self._rollouts is not None:
            self._rollouts.kill()
            self._rollouts = None

    def rollout_tokens(self) -> float:
        return self.borrower.counter("vllm:generation_tokens_total")

    def alone_per_s(self) -> float:
        """Return the borrower's rate in tokens/s while serving has no request."""
        self.lend(1.0)
        before, began_s = self.rollout_tokens(), time.monotonic()
        time.sleep(_QUIET_S)
        return (self.rollout_tokens() - before) / (time.monotonic() - began_s)

    def slice(self, said: Sequence[Sequence[int]], *, share: float) -> Slice:
        """Serve the prompts, one every half second, while `share` of the pool may be lent."""
        self.lend(share)
        before = self.rollout_tokens()
        found = self._serve(self.serving, said)
        found.rollout_tokens = self.rollout_tokens() - before
        return found

    def share_all(self, said: Sequence[Sequence[int]]) -> Slice:
        """Serve the prompts without rose, beside rollouts that nothing stops."""
        self.lend(0.0)
        rollouts = Talk(
            self.stock_rollouts,
            prompts(5000, tokens=64),
            tokens=_ROLLOUT_TOKENS,
            cores=self._client_cores,
        )
        try:
            time.sleep(_SETTLE_S)
            return self._serve(self.stock, said)
        finally:
            rollouts.kill()

    def _serve(self, server: Server, said: Sequence[Sequence[int]]) -> Slice:
        began_s = time.monotonic()
        answers = Talk(
            server, said, tokens=_TOKENS, gap_s=_GAP_S, cores=self._client_cores
        ).answers()
        found = Slice(
            took_s=time.monotonic() - began_s,
            busy_s=_covered(
                [(one["began_s"], one["began_s"] + one["at_s"][-1]) for one in answers]
            ),
        )
        for one in answers:
            at_s = one["at_s"]
            found.ttft_ms.append(at_s[0] * MS_PER_S)
            found.tpot_ms.append((at_s[-1] - at_s[0]) / (len(at_s) - 1) * MS_PER_S)
            found.tokens.append(one["tokens"])
        return found

    def storm(self, served: Any, rolled_out: Any) -> tuple[int, int]:
        """Serve and roll out while the limit falls and rises.

        Returns:
            Number of answers, and number of these that differ from the expected answers.
        """
        both = (
            (Talk(self.serving, _STORM, tokens=_STORM_TOKENS), served),
            (Talk(self.borrower, _STORM_ROLLOUTS, tokens=_STORM_ROLLOUT_TOKENS), rolled_out),
        )
        made = self.rollout_tokens()
        end_s = time.monotonic() + ANSWERS_S
        while not all(talk.is_over for talk, _ in both):
            check(time.monotonic() < end_s, f"the storm had not ended after {ANSWERS_S:g} s")
            time.sleep(_LEND_S)
            # Rollouts start over when their memory is gone, so each time they get time for some
            # tokens.
            if self.rollout_tokens() <= made and not both[1][0].is_over:
                continue
            made = self.rollout_tokens()
            self._taken += self.serving.status["lent_bytes"] > 0
            ask_device(self.socket, SetLimit(0.0), timeout_s=30)
            time.sleep(_AWAY_S)
            ask_device(self.socket, SetLimit(1.0), timeout_s=30)
        pairs = [
            pair for talk, expected in both for pair in zip(talk.tokens(), expected, strict=True)
        ]
        return len(pairs), sum(mine != theirs for mine, theirs in pairs)

    def revocations(self) -> int:
        """Return how often loans were taken back and steps were aborted since the start.

        Loans are taken back when serving needs them, or when the limit falls.
        """
        needed = self.serving.status["revocations"]
        return int(self._taken + needed + self.borrower.status["aborted_steps"])


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of the spans."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


@contextmanager
def machine(say: Callable[[str], None]) -> Iterator[Machine]:
    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="rose"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        all_ = Machine(folder)
        undo.callback(all_.close)
        all_.start(say)
        yield all_


def _ratio(lent: Sequence[Sequence[float]], alone: Sequence[float]) -> PairedRatio:
    """Return the paired ratio of medians, from two slices with loans and one without per round."""
    ratios = [pair[0] / base for pair, base in zip(lent, alone, strict=True)]
    return PairedRatio(
        ratio=statistics.median(ratios),
        control=statistics.median(first / last for first, last in lent),
        subject=statistics.median(pair[0] for pair in lent),
        peer=statistics.median(alone),
        interval=median_interval(ratios),
    )


@dataclass
class Found:
    """Results of a run of the four servers.

    Args:
        rounds: slices with loans, without loans and with loans, of each round.
        shared: the slice without rose of each round.
        alone_per_s: rollout tokens per second while serving had no request, of each round.
        storm_answers: number of answers during the storm.
        storm_differing: number of these answers that differ from those without a storm.
        revocations: revocations and aborted steps during the storm.
        serving: last status of serving.
    """

    rounds: list[tuple[Slice, Slice, Slice]] = field(default_factory=list)
    shared: list[Slice] = field(default_factory=list)
    alone_per_s: list[float] = field(default_factory=list)
    storm_answers: int = 0
    storm_differing: int = 0
    revocations: int = 0
    serving: Mapping[str, Any] = field(default_factory=dict)


def test_serving_beside_rollouts(report: Report) -> None:
    if not PYTHON.exists():
        pytest.skip(_NO_VLLM)
    said = prompts(report.count(_REQUESTS, brief=_REQUESTS_BRIEF), tokens=64)
    found = Found()

    def run() -> None:
        with machine(report.say) as all_:
            _measure(report, all_, said, found)
            _storm(report, all_, found)
            found.serving = all_.serving.status

    report.once(run)
    _report(report, found)


def _measure(report: Report, all_: Machine, said: Sequence[Sequence[int]], found: Found) -> None:
    all_.slice(said, share=0.0)  # to warm up
    rounds = report.count(_ROUNDS, brief=_ROUNDS_BRIEF)
    for number in range(rounds):
        all_.roll_out()
        found.alone_per_s.append(all_.alone_per_s())
        first = all_.slice(said, share=1.0)
        alone = all_.slice(said, share=0.0)
        last = all_.slice(said, share=1.0)
        found.rounds.append((first, alone, last) if number % 2 == 0 else (last, alone, first))
        found.shared.append(all_.share_all(said))
        report.say(f"round {number + 1} of {rounds}")


def _storm(report: Report, all_: Machine, found: Found) -> None:
    """Compare tokens through 1,000 revocations and aborts, for half a minute without --full."""
    all_.stop_rollouts()
    all_.lend(0.0)
    served = Talk(all_.serving, _STORM, tokens=_STORM_TOKENS).tokens()
    all_.lend(1.0)
    rolled_out = Talk(all_.borrower, _STORM_ROLLOUTS, tokens=_STORM_ROLLOUT_TOKENS).tokens()
    before = all_.revocations()
    end_s = time.monotonic() + (_STORM_S if report.is_full else _STORM_BRIEF_S)
    while found.revocations < _REVOCATIONS:
        answers, differing = all_.storm(served, rolled_out)
        found.storm_answers += answers
        found.storm_differing += differing
        found.revocations = all_.revocations() - before
        report.say(f"{found.revocations} revocations and aborts, {found.storm_differing} differ")
        if time.monotonic() > end_s:
            break


def _report(report: Report, found: Found) -> None:
    rounds = found.rounds
    for name in ("ttft", "tpot"):
        figures: list[Any] = [[getattr(one, f"{name}_ms") for one in slices] for slices in rounds]
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            lent = [(quantile(one[0], share), quantile(one[2], share)) for one in figures]
            paired = _ratio(lent, [quantile(one[1], share) for one in figures])
            peer = Peer(f"{name} {label} without loans", paired.peer, "ms")
            bar = Bar(at_most=1.05) if label == "p50" else None
            report.add_ratio(f"vllm_{name}_{label}_ratio", paired, peer=peer, bar=bar)
    _report_share_all(report, found)
    lent_slices = [one for first, _, last in rounds for one in (first, last)]
    made = sum(one.rollout_tokens for one in lent_slices)
    idle_s = sum(one.took_s - one.busy_s for one in lent_slices)
    alone_per_s = statistics.median(found.alone_per_s)
    if idle_s * alone_per_s > 0:
        peer = Peer("rollouts alone", alone_per_s, "tokens/s")
        harvest = made / (idle_s * alone_per_s)
        report.add("vllm_harvest_over_idle", harvest, "ratio", peer=peer, bar=Bar(at_least=0.6))
    else:
        report.leave_out(["vllm_harvest_over_idle"], "the borrower got no time while it was alone")
    _report_tokens(report, found)


def _report_share_all(report: Report, found: Found) -> None:
    """Report the P50 of TTFT beside rollouts without rose, divided by that with rose."""
    lent = [
        (statistics.median(first.ttft_ms), statistics.median(last.ttft_ms))
        for first, _, last in found.rounds
    ]
    shared = [statistics.median(one.ttft_ms) for one in found.shared]
    alone = statistics.median(statistics.median(one.ttft_ms) for _, one, _ in found.rounds)
    ratios = [one / pair[0] for one, pair in zip(shared, lent, strict=True)]
    paired = PairedRatio(
        ratio=statistics.median(ratios),
        control=statistics.median(first / last for first, last in lent),
        subject=statistics.median(shared),
        peer=statistics.median(pair[0] for pair in lent),
        interval=median_interval(ratios),
    )
    peer = Peer(
        "ttft p50 beside rollouts of rose, over ttft p50 alone", paired.peer / alone, "ratio"
    )
    report.add_ratio("vllm_share_all_ratio", paired, peer=peer)


def _report_tokens(report: Report, found: Found) -> None:
    reference = found.rounds[0][1].tokens
    slices = [one for three in found.rounds for one in three] + found.shared
    differing = found.storm_differing + sum(
        mine != theirs for one in slices for mine, theirs in zip(one.tokens, reference, strict=True)
    )
    report.add("vllm_tokens_differing", differing, "answers", bar=Bar(at_most=0))
    answers = found.storm_answers + sum(len(one.tokens) for one in slices)
    report.add("vllm_answers", answers, "answers")
    bar = Bar(at_least=_REVOCATIONS) if report.is_full else None
    report.add("vllm_revocations_and_aborts", found.revocations, "events", bar=bar)
    if found.serving["revoke_ms_p99"] is None:
        report.leave_out(["vllm_revoke_ms_p99"], "nothing was revoked")
    else:
        bar = Bar(at_most=_REVOKE_MS)
        report.add("vllm_revoke_ms_p99", found.serving["revoke_ms_p99"], "ms", bar=bar)


def test_priority_steps_waited(report: Report, tmp_path: Path) -> None:
    """Count the scheduler steps, without a model, that 8 urgent prompts wait beside 200 decodes."""
    pytest.importorskip("torch")
    from tests.engines.vllm import rig, urgent

    name = "vllm_priority_steps_waited"
    try:
        vllm = rig.Parts(tmp_path)
    except Unavailable as reason:
        report.leave_out([name], str(reason))
        pytest.skip(str(reason))
    waited: dict[str, list[int]] = {}

    def run() -> None:
        waited["stock"] = urgent.waited_on_stock(vllm, policy="priority")
        with rig.Pair(vllm, tmp_path / "certificates.log", slabs=urgent.SLABS) as pair:
            urgent.fill_borrower(vllm, pair)
            waited["rose"] = urgent.waited_on_rose(vllm, pair)
            pair.finish()

    report.once(run)
    peer = Peer("vLLM's priority policy, in the mean", statistics.mean(waited["stock"]), "steps")
    worst = max(waited["rose"])
    report.add(name, worst, "steps, the most of 8", peer=peer, bar=Bar(at_most=0))


def test_overhead_alone(report: Report) -> None:
    """Compare CPU times of a thread, because latencies here cannot resolve 1 %."""
    if not PYTHON.exists():
        pytest.skip(_NO_VLLM)
    lines: list[Any] = []

    def run() -> None:
        with tempfile.TemporaryDirectory(prefix="rose") as folder:
            from rose.engines.vllm.tiny import make_model  # It imports transformers.

            model = make_model(Path(folder) / "served", layers=4, hidden=128, seed=1)
            done = subprocess.run(
                [
                    *(str(PYTHON), str(ROOT / "bench" / "vllm_overhead.py"), str(model)),
                    *(f"{folder}/s", str(report.count(41, brief=7))),
                ],
                env={**os.environ, **ENVIRONMENT},
                stdout=subprocess.PIPE,
                check=True,
                timeout=ANSWERS_S,
            )
        lines.extend(json.loads(one) for one in done.stdout.splitlines() if one[:1] in b"[{")

    report.once(run)
    *rounds, said = lines
    for part, bar in (("books", Bar(at_most=1.0)), ("all", None)):
        _report_added(report, rounds, part, steps=said["steps"], bar=bar)
    report.add("vllm_is_equal_to_stock", float(said["are_equal"]), "1: yes", bar=Bar(at_least=1))


def _report_added(
    report: Report, rounds: Sequence[Any], part: str, *, steps: int, bar: Bar | None
) -> None:
    """Report the CPU time that rose adds in one part of a step; stock vLLM again is the control."""
    name = {"books": "vllm_overhead_alone_percent", "all": "vllm_whole_step_alone_percent"}[part]
    added = [ours[part] - stock[part] for ours, stock, _ in rounds]
    control = [again[part] - stock[part] for _, stock, again in rounds]
    whole = [stock["all"] for _, stock, _ in rounds]

    def percent(figures: Sequence[float]) -> list[float]:
        return [100 * one / all_ns for one, all_ns in zip(figures, whole, strict=True)]

    peer = Peer("a step of vLLM without rose", statistics.median(whole) / steps / 1e3, "us")
    report.add(
        f"{CONTROL}{name}",
        statistics.median(percent(control)),
        "percent",
        bar=Bar(at_least=-0.5, at_most=0.5),
        interval=median_interval(percent(control)),
    )
    interval = median_interval(percent(added))
    value = statistics.median(percent(added))
    report.add(name, value, "percent", peer=peer, bar=bar, interval=interval)
    if part == "books":
        report.add("vllm_overhead_alone_us", statistics.median(added) / steps / 1e3, "us per step")
