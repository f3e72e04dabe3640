"""End to end: two decoders on one device; serving's latencies in each arm divided by those alone.

`make gpu` runs it for seconds, which is enough for medians. A P99 of TTFT needs 2,000 requests:

    python -m bench.gpu.end_to_end --device cuda:0 --seconds 340 --rows rows.jsonl
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.gpu.arms import ALONE, ARMS, Opened, Promise, Sharing, run_through
from bench.gpu.decoder import LIKE_8B, TINY, Decoder, Shape
from bench.gpu.engines import Place, RolloutEngine, ServingEngine
from bench.gpu.report import Cannot, Report
from bench.gpu.requests import Latencies, bursty
from bench.gpu.shared_rows import END_TO_END_ROWS, STATISTICS, end_to_end_row
from bench.paired import PairedRatio
from bench.rows import Bar, Peer
from rose.engines.torch import run_on_cores
from rose.errors import check
from rose.executor import SLO

WARM_UP_SHARE: Final = 0.1
# An overloaded arm is stopped after its arrivals' duration times this factor.
LIMIT: Final = 3.0
JOIN_S: Final = 30.0
# Fewest requests for a meaningful P99.
REQUESTS_FOR_P99: Final = 100


ROWS: Final = END_TO_END_ROWS
# Serving alone, twice: every arm is compared with the first; the second is the control.
_CONTROLS: Final = ("alone", "again")


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of all arms.

    Args:
        seconds: duration of arrivals in each arm.
        rate: requests per second.
        every: layers in a segment of the rollouts.
        seeds: seeds of the traces; an arm runs once with each.
    """

    device: str
    shape: Shape
    seconds: float
    rate: float
    every: int = 4
    prompt_max: int = 512
    output_max: int = 128
    seeds: tuple[int, ...] = (1,)
    ttft_ms: float = 500.0
    tpot_ms: float = 50.0


FULL: Final = Settings("cuda:0", LIKE_8B, seconds=8.0, rate=6.0)
SMALL: Final = Settings(
    "cpu",
    TINY,
    seconds=1.0,
    rate=20.0,
    every=1,
    prompt_max=24,
    output_max=16,
    ttft_ms=2000.0,
    tpot_ms=200.0,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one arm with one trace."""

    latencies: Latencies
    rollout_tokens_per_s: float
    seconds: float


class Bench:
    """Both engines, built once for all arms."""

    def __init__(self, settings: Settings) -> None:
        import torch

        self.settings = settings
        self.device = torch.device(settings.device)
        self._need_room()
        if self.device.type == "cpu":
            run_on_cores(1)  # both engines' threads need one core each
        with torch.inference_mode():
            models = [Decoder(settings.shape, self.device, seed=seed) for seed in (1, 2)]
            self.serving = ServingEngine(models[0], Place())
            self.rollout = RolloutEngine(models[1], Place(), every=settings.every)
            if self.device.type == "cuda":
                self._capture()

    def _need_room(self) -> None:
        if self.device.type != "cuda":
            return
        from bench.gpu.timing import need_free

        shape = self.settings.shape
        need_free(2 * (shape.weight_bytes + shape.kv_bytes) + (8 << 30))

    def _capture(self) -> None:
        import torch

        torch.cuda.synchronize()  # weights were drawn on another stream
        for engine in (self.serving, self.rollout):
            # One stream per engine: torch builds a stream's cuBLAS workspace into its graphs, and
            # graphs of both engines run at the same time.
            engine.place = Place(torch.cuda.Stream(self.device))
            engine.capture()
        torch.cuda.synchronize()

    def rollout_alone(self, seconds: float) -> float:
        """Return the tokens per second of rollouts that have the device alone."""
        import torch

        began_s, before = time.perf_counter(), self.rollout.tokens
        one_step = run_through(self.rollout.place)
        with torch.inference_mode(), self.rollout.place.inside():
            while time.perf_counter() - began_s < seconds:
                one_step(self.rollout.next)
                self.rollout.count()
        return (self.rollout.tokens - before) / (time.perf_counter() - began_s)

    def run(self, opened: Opened, seed: int) -> Outcome:
        """Run one arm with the trace of `seed`."""
        import torch

        settings = self.settings
        requests = bursty(
            seed=seed,
            seconds=settings.seconds,
            rate=settings.rate,
            prompt_max=settings.prompt_max,
            output_max=settings.output_max,
        )
        over = threading.Event()
        limit = threading.Timer(settings.seconds * LIMIT, over.set)
        with opened(self.device, self._promise()) as sharing:
            self.serving.place, self.rollout.place = sharing.serving, sharing.rollout
            rollouts = _Rollouts(self.rollout, sharing)
            with torch.inference_mode():
                self.serving.warm_up(sharing.watched)
            before = self.rollout.tokens
            rollouts.start()
            limit.start()
            began_s = time.perf_counter()
            try:
                self._serve(requests, sharing, over, began_s)
                took_s = time.perf_counter() - began_s
                tokens = self.rollout.tokens - before
            finally:
                limit.cancel()
                limit.join()
                rollouts.end()
        latencies = Latencies.of(requests, from_s=WARM_UP_SHARE * settings.seconds)
        if latencies is None:
            raise Cannot("no request ended within the time")
        return Outcome(latencies, tokens / took_s, took_s)

    def _promise(self) -> Promise:
        settings = self.settings
        return Promise(
            SLO(ttft_ms=settings.ttft_ms, tpot_ms=settings.tpot_ms),
            step_tokens=self.serving.chunk,
            request_tokens=settings.prompt_max + settings.output_max,
        )

    def _serve(
        self, requests: Any, sharing: Sharing, over: threading.Event, began_s: float
    ) -> None:
        import torch

        with torch.inference_mode():
            self.serving.run(requests, sharing.watched, stop=over, began_s=began_s)


class _Rollouts:
    """The thread of the rollouts."""

    def __init__(self, engine: RolloutEngine, sharing: Sharing) -> None:
        self._engine, self._sharing = engine, sharing
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        import torch

        if self._sharing.one_step is None:
            return
        try:
            with torch.inference_mode():
                self._engine.run(self._sharing.one_step, self._stop)
        except BaseException as failure:  # noqa: BLE001 (raised again by the thread that joins)
            self._failure = failure

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._sharing.close()
        self._thread.join(JOIN_S)
        check(not self._thread.is_alive(), "the rollouts did not end after their arm was closed")
        if self._failure is not None:
            raise self._failure


class Trials:
    """Results of each arm with each trace so far, and the reasons for missing arms."""

    def __init__(self, bench: Bench) -> None:
        self.outcomes: dict[str, list[Outcome]] = {name: [] for name in (*_CONTROLS, *ARMS)}
        self.failures: dict[str, Exception] = {}
        self._bench = bench

    def run(self, name: str, seed: int) -> None:
        """Run an arm, unless it failed with an earlier trace."""
        if name in self.failures:
            return
        try:
            self.outcomes[name].append(self._bench.run(ARMS.get(name, ALONE), seed))
        except Exception as failure:  # noqa: BLE001 (the other arms go on)
            self.failures[name] = failure


def measure(report: Report, settings: Settings = FULL) -> None:
    """Run every arm with every trace; report an arm's medians after its last trace."""
    with report.rows(*ROWS):
        bench = Bench(settings)
        # The first runs make all allocations and fill caches.
        warm_s = min(2.0, settings.seconds / 4)
        rollout_rate = [bench.rollout_alone(warm_s) for _ in range(2)][-1]
        bench.run(ALONE, settings.seeds[0])
        report.add("e2e_rollout_tokens_per_s", rollout_rate, "tokens/s")
        trials = Trials(bench)
        *earlier, last = settings.seeds
        for seed in earlier:
            for name in (*_CONTROLS, *ARMS):
                trials.run(name, seed)
        for name in _CONTROLS:
            trials.run(name, last)
            if name in trials.failures:
                raise trials.failures[name]
        requests = min(one.latencies.requests for one in trials.outcomes["alone"])
        report.add("e2e_requests_each_arm", requests, "requests")
        for arm in ARMS:
            trials.run(arm, last)
            with report.rows(
                *(end_to_end_row(arm, one) for one in STATISTICS), f"e2e_harvest_{arm}"
            ):
                if arm in trials.failures:
                    raise trials.failures[arm]
                rates = [one.rollout_tokens_per_s for one in trials.outcomes[arm]]
                share = statistics.median(rates) / rollout_rate
                report.add(f"e2e_harvest_{arm}", share, "share")
                _report(report, arm, trials.outcomes, requests)


def _report(report: Report, arm: str, outcomes: dict[str, list[Outcome]], requests: int) -> None:
    def values(name: str, statistic: str) -> list[float]:
        return [getattr(one.latencies, statistic) for one in outcomes[name]]

    for statistic in STATISTICS:
        row = end_to_end_row(arm, statistic)
        with report.rows(row):
            if statistic.endswith("p99") and requests < REQUESTS_FOR_P99:
                raise Cannot(f"{requests} requests are too few for a P99: run it for longer")
            mine, alone, again = (values(name, statistic) for name in (arm, "alone", "again"))
            paired = PairedRatio(
                ratio=statistics.median(a / b for a, b in zip(mine, alone, strict=True)),
                control=statistics.median(a / b for a, b in zip(again, alone, strict=True)),
                subject=statistics.median(mine),
                peer=statistics.median(alone),
            )
            peer = Peer("serving alone", paired.peer, "ms")
            # Slack mode raises TPOT towards its target by design, so it has no bar.
            bar = Bar(at_most=1.02) if arm == "rose_idle" else None
            report.add_ratio(row, paired, peer=peer, bar=bar)


def parse(arguments: Sequence[str]) -> tuple[Settings, Path]:
    parser = argparse.ArgumentParser(prog="end_to_end", description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="'cpu' runs the tiny shapes")
    parser.add_argument("--seconds", type=float, help="seconds of arrivals in each arm")
    parser.add_argument("--rate", type=float, help="requests a second")
    parser.add_argument("--seeds", type=int, default=1, help="traces, each run in every arm")
    parser.add_argument("--rows", type=Path, required=True, help="file that rows are appended to")
    given = parser.parse_args(arguments)
    base = SMALL if given.device == "cpu" else FULL
    settings = replace(
        base,
        device=given.device,
        seconds=given.seconds or base.seconds,
        rate=given.rate or base.rate,
        seeds=tuple(range(1, given.seeds + 1)),
    )
    return settings, given.rows


def main(arguments: Sequence[str]) -> int:
    settings, rows = parse(arguments)
    measure(Report(rows, ROWS), settings)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
