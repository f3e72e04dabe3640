"""The rollout service: agentic conversations beside rival routers, and the cost of a token."""

import asyncio
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psutil
import pytest

from bench.agentic import ROOMY_TOKENS, TIGHT_TOKENS, TRACE, Door, Played, conversations, play
from bench.agentic_doors import HttpDoor, RoundRobinDoor, SchedulerDoor
from bench.conftest import Report
from bench.paired import PairedRatio, median_interval
from bench.rows import Bar, Peer, Term
from rose.errors import check
from rose.scheduler import PlacementPolicy

pytest.importorskip("fastapi")

TALKS: Final = 64
TURNS: Final = 6
ROUNDS: Final = 5
STREAMS: Final = 64
TOKENS: Final = 128
PROMPT: Final = 100
ANSWER_S: Final = 120.0  # longest wait for a program or an answer
FAULTS_SEED: Final = 7

Arms = Mapping[str, Callable[[], Any]]
HTTP: Final = "http"
HTTP_AGAIN: Final = "http again"
SCHEDULER: Final = "scheduler"
ROUND_ROBIN: Final = "round robin"
STICKY: Final = "sticky least loaded, by the rules of vllm-router"
_DOORS: Final[Arms] = {
    HTTP: HttpDoor,
    SCHEDULER: lambda: SchedulerDoor(TALKS, PlacementPolicy.JOINT),
    ROUND_ROBIN: RoundRobinDoor,
    STICKY: lambda: SchedulerDoor(TALKS, PlacementPolicy.LEAST_LOADED_STICKY),
    HTTP_AGAIN: HttpDoor,
}


class Rounds:
    """Runs of all arms in turn; every other round is reversed, so drift cancels."""

    def __init__(self, arms: list[str], *, kv_tokens: int, has_faults: bool, talks: int) -> None:
        self._arms, self._kv_tokens, self._has_faults = arms, kv_tokens, has_faults
        self._talks = conversations(talks, TURNS)
        self.runs: dict[str, list[Played]] = {arm: [] for arm in arms}

    def run(self, report: Report) -> None:
        def all_rounds() -> None:
            for _ in range(report.count(ROUNDS, at_least=1, brief=3)):
                self._round()

        report.once(all_rounds)

    def _round(self) -> None:
        number = len(self.runs[HTTP])
        seed = FAULTS_SEED + number if self._has_faults else None
        for arm in self._arms if number % 2 == 0 else reversed(self._arms):
            self.runs[arm].append(asyncio.run(self._run(_DOORS[arm](), seed)))

    async def _run(self, door: Door, seed: int | None) -> Played:
        async with door:  # type: ignore[attr-defined]  # every door is a context
            return await play(door, self._talks, kv_tokens=self._kv_tokens, faults_seed=seed)

    def ratio(self, figure: Callable[[Played], float], peer: str) -> PairedRatio:
        """Return the service's figure ÷ that of another arm, with its control."""
        columns = {arm: list(map(figure, runs)) for arm, runs in self.runs.items()}
        ratios = [ours / theirs for ours, theirs in zip(columns[HTTP], columns[peer], strict=True)]
        again = zip(columns[HTTP], columns[HTTP_AGAIN], strict=True)
        return PairedRatio(
            ratio=statistics.median(ratios),
            control=statistics.median(one / other for one, other in again),
            subject=statistics.median(columns[HTTP]),
            peer=statistics.median(columns[peer]),
            interval=median_interval(ratios),
        )


def _time(played: Played) -> float:
    return played.time_s


def _prefill(played: Played) -> float:
    return played.prefilled / played.least


@pytest.fixture
def trace() -> None:
    if not TRACE.exists():
        pytest.skip(f"the trace {TRACE.name} is not beside the repository")


def _add(report: Report, rounds: Rounds, name: str, arm: str, bar: Bar | None) -> None:
    paired = rounds.ratio(_time, arm)
    prefill = rounds.ratio(_prefill, arm)
    report.add_ratio(name, paired, peer=Peer(arm, paired.peer, "s"), bar=bar)
    report.add(
        name.replace("_time_", "_prefill_"),
        prefill.ratio,
        "ratio",
        peer=Peer(arm, prefill.peer, "of the least"),
        interval=prefill.interval,
    )


@pytest.mark.usefixtures("trace")
@pytest.mark.parametrize("is_tight", [False, True], ids=["roomy", "tight"])
def test_agentic_calm(report: Report, is_tight: bool) -> None:
    kv_tokens, suffix = (TIGHT_TOKENS, "_tight") if is_tight else (ROOMY_TOKENS, "")
    rounds = Rounds(
        list(_DOORS), kv_tokens=kv_tokens, has_faults=False, talks=report.count(TALKS, at_least=16)
    )
    rounds.run(report)
    http = rounds.runs[HTTP]
    shares = [_prefill(one) for one in http]
    report.add(
        f"agentic{suffix}_prefill_over_least",
        statistics.median(shares),
        "ratio",
        bar=None if is_tight else Bar(at_most=1.10),
        interval=median_interval(shares),
        terms=[Term(f"{arm} over least", _median(rounds, arm), "ratio") for arm in _DOORS],
    )
    _add(report, rounds, f"agentic{suffix}_time_over_scheduler", SCHEDULER, Bar(at_most=1.05))
    _add(report, rounds, f"agentic{suffix}_time_over_round_robin", ROUND_ROBIN, Bar(at_most=0.75))
    _add(report, rounds, f"agentic{suffix}_time_over_sticky", STICKY, Bar(at_most=1.0))
    _add_tokens(report, http, f"agentic{suffix}")


def _median(rounds: Rounds, arm: str) -> float:
    return statistics.median(map(_prefill, rounds.runs[arm]))


def _add_tokens(report: Report, runs: list[Played], name: str) -> None:
    wrong = sum(one.wrong_turns for one in runs)
    decoded = statistics.median(one.decoded_over_needed for one in runs)
    report.add(f"{name}_wrong_turns_count", wrong, "turns", bar=Bar(at_most=0))
    report.add(f"{name}_tokens_decoded_over_needed", decoded, "ratio", bar=Bar(at_most=1.02))


@pytest.mark.usefixtures("trace")
def test_agentic_with_faults(report: Report) -> None:
    """A death or a revocation every 1.5 s, by the same schedule for all arms of a round."""
    rounds = Rounds(
        list(_DOORS),
        kv_tokens=ROOMY_TOKENS,
        has_faults=True,
        talks=report.count(TALKS, at_least=16),
    )
    rounds.run(report)
    _add(report, rounds, "agentic_faults_time_over_scheduler", SCHEDULER, Bar(at_most=1.05))
    prefill = rounds.ratio(_prefill, SCHEDULER)
    report.add(
        "agentic_faults_prefill_over_schedulers",
        prefill.ratio,
        "ratio",
        peer=Peer(SCHEDULER, prefill.peer, "of the least"),
        bar=Bar(at_most=1.05),
        interval=prefill.interval,
    )
    _add(report, rounds, "agentic_faults_time_over_round_robin", ROUND_ROBIN, None)
    _add(report, rounds, "agentic_faults_time_over_sticky", STICKY, None)
    _add_tokens(report, rounds.runs[HTTP], "agentic_faults")


class Program:
    """A program that writes its URL in its first line."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        late = threading.Timer(ANSWER_S, self.process.kill)
        late.start()
        line = self.process.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
        late.cancel()
        check("http" in line, f"'{' '.join(arguments)}' must write its URL, wrote '{line.strip()}'")
        self.url = next(word for word in line.split() if word.startswith("http"))

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def cpu_s(self) -> float:
        used = psutil.Process(self.process.pid).cpu_times()
        return float(used.user + used.system)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(ANSWER_S)


@contextmanager
def service_before(tokens: int, step_s: float) -> Iterator[Program]:
    """Run `rose serve` before an engine that streams `tokens` tokens in each event."""
    engine = Program("bench.stream_engine", str(tokens), str(step_s))
    try:
        service = Program(
            *("rose.cli.main", "serve", "--rollouts", engine.url, "--listen", "127.0.0.1:0")
        )
        try:
            yield service
        finally:
            service.end()
    finally:
        engine.end()


async def ask(address: tuple[str, int], max_tokens: int, *, is_streamed: bool) -> bytes:
    """Return the whole answer to one request, which closes its connection."""
    body = {"prompt": [1] * PROMPT, "max_tokens": max_tokens, "stream": is_streamed}
    content = json.dumps({**body, "return_token_ids": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(*address)
    writer.write(head.encode() + content)
    answer = await asyncio.wait_for(reader.read(-1), ANSWER_S)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
    return answer


async def _streams(address: tuple[str, int], max_tokens: int) -> None:
    answers = await asyncio.gather(
        *(ask(address, max_tokens, is_streamed=True) for _ in range(STREAMS))
    )
    assert all(answer.count(b"data: [DONE]") == 1 for answer in answers)


@pytest.mark.parametrize(("tokens", "most"), [(1, 80.0), (8, 33.0)])
def test_cost_of_a_token(report: Report, tokens: int, most: float) -> None:
    """CPU time of the service, which reads the engine's stream and writes the client's."""
    samples: list[float] = []
    count = report.count(TOKENS, at_least=8)
    with service_before(tokens, 0.02 * tokens) as service:
        asyncio.run(_streams(service.address, 8))  # imports and caches

        def round_() -> None:
            begin_s = service.cpu_s()
            asyncio.run(_streams(service.address, count))
            samples.append((service.cpu_s() - begin_s) / (STREAMS * count) * 1e6)

        report.repeat(round_, 7)
    report.add(
        f"service_us_per_token_at_{tokens}_an_event",
        statistics.median(samples),
        "us",
        bar=Bar(at_most=most),
        interval=median_interval(samples),
    )


def test_cost_of_a_turn(report: Report) -> None:
    """CPU time of the service's process for a turn of one token, in parallel streams."""
    samples: list[float] = []
    count = report.count(20, at_least=2)

    async def turns(address: tuple[str, int]) -> None:
        for _ in range(count):
            await asyncio.gather(*(ask(address, 1, is_streamed=False) for _ in range(STREAMS)))

    with service_before(1, 0.001) as service:
        asyncio.run(turns(service.address))  # imports and caches

        def round_() -> None:
            begin_s = service.cpu_s()
            asyncio.run(turns(service.address))
            samples.append((service.cpu_s() - begin_s) / (STREAMS * count) * 1e3)

        report.repeat(round_, 7)
    report.add(
        "service_ms_per_turn",
        statistics.median(samples),
        "ms",
        bar=Bar(at_most=1.0),
        interval=median_interval(samples),
    )
