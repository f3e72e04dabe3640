"""Interference of a parked and of a running borrower with serving."""

import random
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from bench.gpu.lanes import Lanes
from bench.gpu.report import Report
from bench.gpu.timing import event_timed, fresh_seed
from bench.paired import Pairs, quantile
from bench.rows import Bar, Peer
from rose.errors import check

KINDS: Final = ("memop", "kernel")
# A decode step: matrices that are read once for a few rows, in a graph.
LAYERS: Final = 16
HIDDEN: Final = 8192
ROWS_OF_BATCH: Final = 16
ROUNDS: Final = 40
# The borrower's work when serving arrives: one large product after another.
LONG_SIDE: Final = 8192
ARRIVALS: Final = 200

ROWS: Final = (
    *(f"parked_borrower_tax_{kind}" for kind in KINDS),
    "serving_step_us",
    "priority_residual_us_p50",
    "priority_residual_us_p99",
    "same_priority_residual_us_p50",
    "same_priority_residual_us_p99",
)


class ServingStep:
    """A graph of products on the serving stream."""

    def __init__(self, lanes: Lanes) -> None:
        import torch

        self.stream = lanes.serving
        options = {"device": lanes.torch_device, "dtype": torch.bfloat16}
        self._weights = [torch.randn(HIDDEN, HIDDEN, **options) / 90 for _ in range(LAYERS)]
        self._states = [torch.randn(ROWS_OF_BATCH, HIDDEN, **options) for _ in range(LAYERS + 1)]
        self.graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._layers()  # the first run allocates workspaces
        self.stream.synchronize()
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self._layers()

    def _layers(self) -> None:
        import torch

        for layer, weight in enumerate(self._weights):
            torch.mm(self._states[layer], weight, out=self._states[layer + 1])

    def timed_ms(self) -> Callable[[], float]:
        import torch

        def measure() -> float:
            with torch.cuda.stream(self.stream):
                return event_timed(self.graph.replay)()

        return measure


def parked_tax(report: Report, lanes: Lanes, step: ServingStep, kind: Any, name: str) -> None:
    """A step beside a borrower that waits at its gate, divided by the step alone."""
    row = f"parked_borrower_tax_{name}"
    with report.rows(row):
        borrower = lanes.borrower(kind, window=2)
        step_ms = step.timed_ms()

        def beside_ms() -> float:
            with borrower.parked():
                return statistics.median(step_ms() for _ in range(3))

        def alone_ms() -> float:
            return statistics.median(step_ms() for _ in range(3))

        pairs = Pairs(beside_ms, alone_ms)
        pairs.round()  # to warm up
        pairs = Pairs(beside_ms, alone_ms)
        for _ in range(ROUNDS):
            pairs.round()
        paired = pairs.result()
        peer = Peer("the step without a borrower", paired.peer * 1e3, "us")
        report.add_ratio(row, paired, peer=peer, bar=Bar(at_most=1.02))


class Arrivals:
    """Serving steps that arrive while a long product of the borrower runs."""

    def __init__(self, lanes: Lanes, step: ServingStep) -> None:
        import torch

        options = {"device": lanes.torch_device, "dtype": torch.bfloat16}
        self._left = torch.randn(LONG_SIDE, LONG_SIDE, **options)
        self._product = torch.empty_like(self._left)
        self._step = step
        self._done = torch.cuda.Event()

    def _work(self, stream: Any) -> None:
        import torch

        with torch.cuda.stream(stream):
            torch.mm(self._left, self._left, out=self._product)

    def _step_us(self) -> float:
        """Time from the launch until the host sees the end of the step."""
        import torch

        began_ns = time.perf_counter_ns()
        with torch.cuda.stream(self._step.stream):
            self._step.graph.replay()
            self._done.record()
        while not self._done.query():
            pass
        return (time.perf_counter_ns() - began_ns) * 1e-3

    def residual_us(self, stream: Any, seed_name: str) -> list[float]:
        """Return the additional time of a step at random moments of a product."""
        import torch

        rng = random.Random(fresh_seed(seed_name))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            for _ in range(4):
                self._work(stream)
            start.record()
            self._work(stream)
            end.record()
        end.synchronize()
        product_s = start.elapsed_time(end) * 1e-3
        alone_us = statistics.median(self._step_us() for _ in range(20))
        late_us = []
        for _ in range(ARRIVALS):
            for _ in range(3):
                self._work(stream)
            time.sleep(rng.uniform(0.2, 1.2) * product_s)
            late_us.append(self._step_us() - alone_us)
            stream.synchronize()
        return late_us


def residuals(report: Report, lanes: Lanes, step: ServingStep) -> None:
    import torch

    from rose._core import CudaStream
    from rose.engines.torch import stream_of

    arrivals = Arrivals(lanes, step)
    same = CudaStream.create(lanes.gpu.device, highest=True)
    streams = {
        "priority": lanes.rollout,
        "same_priority": stream_of(same.handle, lanes.torch_device),
    }
    for name, stream in streams.items():
        names = [f"{name}_residual_us_{statistic}" for statistic in ("p50", "p99")]
        with report.rows(*names):
            late_us = arrivals.residual_us(stream, name)
            for row, share in zip(names, (0.5, 0.99), strict=True):
                report.add(row, quantile(late_us, share), "us")
    torch.cuda.synchronize()


def measure(report: Report) -> None:
    from rose._core import GateKind

    lanes = Lanes()
    step = ServingStep(lanes)
    with report.rows("serving_step_us"):
        step_ms = step.timed_ms()
        samples = [step_ms() for _ in range(20)]
        check(min(samples) > 0, "a step took no time")
        report.add("serving_step_us", statistics.median(samples) * 1e3, "us")
    for name in KINDS:
        parked_tax(report, lanes, step, getattr(GateKind, name.upper()), name)
    residuals(report, lanes, step)
