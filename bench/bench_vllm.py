"""Real vLLM serves beside rollouts of another, on one core: what serving pays, what they get.

Slices alternate: with loans, without loans, with loans. Between them the operator's switch acts.
"""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from bench.conftest import Report
from bench.paired import PairedRatio, median_interval, quantile
from bench.rows import CONTROL, Bar, Peer
from bench.vllm_servers import (
    ENVIRONMENT,
    KV_BYTES,
    PYTHON,
    ROOT,
    Server,
    Talk,
    make_model,
    prompts,
)
from rose.executor.messages import SetLimit
from rose.executor.observing import ask_device
from rose.units import MS_PER_S

_ROUNDS: Final = 9
_REQUESTS: Final = 60  # of a slice: 9 rounds of three slices have 1,620
_REQUESTS_BRIEF: Final = 12
_GAP_S: Final = 0.5
_TOKENS: Final = 24
_ROLLOUT_TOKENS: Final = 200
_REVOKE_MS: Final = 500.0
_SETTLE_S: Final = 1.0
_QUIET_S: Final = 10.0
_UNMEASURED: Final = {
    "vllm_share_all_ratio": "needs two more servers, without rose",
    "vllm_priority_steps_waited": "not written yet",
}


@dataclass
class Slice:
    """What the requests of one slice met.

    Args:
        ttft_ms: time to the first token, of each request.
        tpot_ms: mean time between tokens, of each request.
        tokens: of each answer.
        busy_s: time during which serving had a request.
        took_s: length of the slice.
        rollout_tokens: that the borrower made during it.
    """

    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    busy_s: float = 0.0
    took_s: float = 0.0
    rollout_tokens: float = 0.0


class Machine:
    """Both servers, and rollouts that never end."""

    def __init__(self, folder: Path) -> None:
        self._core = max(os.sched_getaffinity(0))
        self._client_cores = os.sched_getaffinity(0) - {self._core} or {self._core}
        self.socket = folder / "s"
        rolled_out = make_model(folder / "rolled-out", layers=8, hidden=256, seed=2)
        self.serving = lending_server(folder, core=self._core)
        self.borrower = Server(
            *("rose.cli.main", "vllm", "rollout", str(rolled_out), "--attach", str(self.socket)),
            log=folder / "borrower.log",
            core=self._core,
        )
        self._rollouts: Talk | None = None

    def start(self) -> None:
        self.serving.start()
        self.borrower.start()

    def close(self) -> None:
        if self._rollouts is not None:
            self._rollouts.kill()
        self.borrower.stop()
        self.serving.stop()

    def lend(self, share: float) -> None:
        ask_device(self.socket, SetLimit(share), timeout_s=30)
        time.sleep(_SETTLE_S)

    def roll_out(self) -> None:
        """Keep the borrower at work."""
        if self._rollouts is None or self._rollouts.is_over:
            said = prompts(5000, tokens=64)
            self._rollouts = Talk(
                self.borrower, said, tokens=_ROLLOUT_TOKENS, cores=self._client_cores
            )

    def rollout_tokens(self) -> float:
        return self.borrower.counter("vllm:generation_tokens_total")

    def slice(self, said: Sequence[Sequence[int]], *, share: float) -> Slice:
        """Serve the prompts, one every half second, while `share` of the pool may be lent."""
        self.lend(share)
        before, began_s = self.rollout_tokens(), time.monotonic()
        answers = Talk(
            self.serving, said, tokens=_TOKENS, gap_s=_GAP_S, cores=self._client_cores
        ).answers()
        found = Slice(
            took_s=time.monotonic() - began_s,
            rollout_tokens=self.rollout_tokens() - before,
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


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return how long at least one span lasts."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


@contextmanager
def machine() -> Iterator[Machine]:
    with ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="rose"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        both = Machine(folder)
        undo.callback(both.close)
        both.start()
        yield both


def lending_server(folder: Path, *, core: int) -> Server:
    served = make_model(folder / "served", layers=4, hidden=128, seed=1)
    return Server(
        *("rose.cli.main", "vllm", "serve", str(served), "--listen", str(folder / "s")),
        *("--epsilon", "0.02", "--revoke-ms", str(_REVOKE_MS), "--enforce-eager"),
        *("--kv-cache-memory-bytes", str(KV_BYTES)),
        log=folder / "serving.log",
        core=core,
    )


def _ratio(lent: Sequence[Sequence[float]], alone: Sequence[float]) -> PairedRatio:
    """Return the paired ratio of medians, from two slices with loans and one without a round."""
    ratios = [pair[0] / base for pair, base in zip(lent, alone, strict=True)]
    return PairedRatio(
        ratio=statistics.median(ratios),
        control=statistics.median(first / last for first, last in lent),
        subject=statistics.median(pair[0] for pair in lent),
        peer=statistics.median(alone),
        interval=median_interval(ratios),
    )


def test_serving_beside_rollouts(report: Report) -> None:
    if not PYTHON.exists():
        pytest.skip("real vLLM is not installed here: make vllm-env")
    said = prompts(report.count(_REQUESTS, brief=_REQUESTS_BRIEF), tokens=64)
    rounds: list[tuple[Slice, Slice, Slice]] = []
    alone_per_s = 0.0
    serving: dict[str, Any] = {}

    def run() -> None:
        nonlocal alone_per_s
        with machine() as both:
            both.slice(said, share=0.0)  # to warm up
            both.roll_out()
            both.lend(1.0)
            before, began_s = both.rollout_tokens(), time.monotonic()
            time.sleep(_QUIET_S)
            alone_per_s = (both.rollout_tokens() - before) / (time.monotonic() - began_s)
            for number in range(report.count(_ROUNDS, brief=5)):
                first = both.slice(said, share=1.0)
                alone = both.slice(said, share=0.0)
                last = both.slice(said, share=1.0)
                forwards = number % 2 == 0
                rounds.append((first, alone, last) if forwards else (last, alone, first))
                both.roll_out()
            serving.update(both.serving.status)

    report.once(run)
    _report(report, rounds, alone_per_s=alone_per_s, serving=serving)


def _report(
    report: Report,
    rounds: Sequence[tuple[Slice, Slice, Slice]],
    *,
    alone_per_s: float,
    serving: Mapping[str, Any],
) -> None:
    for name in ("ttft", "tpot"):
        figures: list[Any] = [[getattr(one, f"{name}_ms") for one in slices] for slices in rounds]
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            lent = [(quantile(one[0], share), quantile(one[2], share)) for one in figures]
            paired = _ratio(lent, [quantile(one[1], share) for one in figures])
            peer = Peer(f"{name} {label} without loans", paired.peer, "ms")
            bar = Bar(at_most=1.05) if label == "p50" else None
            report.add_ratio(f"vllm_{name}_{label}_ratio", paired, peer=peer, bar=bar)
    lent_slices = [one for first, _, last in rounds for one in (first, last)]
    made = sum(one.rollout_tokens for one in lent_slices)
    idle_s = sum(one.took_s - one.busy_s for one in lent_slices)
    if idle_s * alone_per_s > 0:
        peer = Peer("rollouts alone", alone_per_s, "tokens/s")
        harvest = made / (idle_s * alone_per_s)
        report.add("vllm_harvest_over_idle", harvest, "ratio", peer=peer, bar=Bar(at_least=0.6))
    else:
        report.leave_out(["vllm_harvest_over_idle"], "the borrower got no time while it was alone")
    reference = rounds[0][1].tokens
    answers = [one.tokens for slices in rounds for one in slices]
    differing = sum(
        mine != theirs for answer in answers for mine, theirs in zip(answer, reference, strict=True)
    )
    report.add("vllm_tokens_differing", differing, "answers", bar=Bar(at_most=0))
    report.add("vllm_answers", sum(map(len, answers)), "answers")
    report.add("vllm_revocations", serving["revocations"], "revocations")
    if serving["revoke_ms_p99"] is None:
        report.leave_out(["vllm_revoke_ms_p99"], "nothing was revoked")
    else:
        bar = Bar(at_most=_REVOKE_MS)
        report.add("vllm_revoke_ms_p99", serving["revoke_ms_p99"], "ms", bar=bar)
    for name, reason in _UNMEASURED.items():
        report.leave_out([name], reason)


def test_overhead_alone(report: Report) -> None:
    """Compare CPU times of a thread, because latencies here cannot resolve 1 %."""
    if not PYTHON.exists():
        pytest.skip("real vLLM is not installed here: make vllm-env")
    lines: list[Any] = []

    def run() -> None:
        with tempfile.TemporaryDirectory(prefix="rose") as folder:
            model = make_model(Path(folder) / "served", layers=4, hidden=128, seed=1)
            done = subprocess.run(
                [
                    *(str(PYTHON), str(ROOT / "bench" / "vllm_overhead.py"), str(model)),
                    *(f"{folder}/s", str(report.count(41, brief=15))),
                ],
                env={**os.environ, **ENVIRONMENT},
                stdout=subprocess.PIPE,
                check=True,
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
    """Report the CPU time that rose adds in one part of each step, and the same of stock vLLM."""
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
