"""Gates inside one graph, 0, 9 or 36 of them, and the time until an abort ends a graph."""

import random
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from bench.gpu.lanes import CREDIT_MAX, LONG_MS, WINDOW_MAX, Lanes, spin_until
from bench.gpu.report import Report
from bench.gpu.timing import fresh_seed
from bench.paired import quantile
from bench.rows import Bar, Peer
from rose.errors import check

KINDS: Final = ("memop", "kernel")
LAYERS: Final = 36
GATES: Final = (0, 9, 36)
LAYER_MS: Final = 0.1
ROUNDS: Final = 30
ABORTS: Final = 60
SEGMENT_MS: Final = 0.33

ROWS: Final = (
    *(f"graph_with_{count}_gates_over_none_{kind}" for kind in KINDS for count in GATES[1:]),
    *(f"abortable_graph_over_none_{kind}" for kind in KINDS),
    *(f"abort_p99_over_segment_{kind}" for kind in KINDS),
    *(f"abort_of_plain_graph_p99_over_segment_{kind}" for kind in KINDS),
)


class Graphs:
    """Graphs of the same sleeps with more and fewer gates, and their borrower."""

    def __init__(self, lanes: Lanes, kind: Any, *, layer_ms: float) -> None:
        self.lanes = lanes
        self.borrower = lanes.graph_borrower(kind, window=WINDOW_MAX)
        self._work = lanes.sleep_ms(layer_ms)

    def captured(self, *, layers: int, gates: int) -> Any:
        import torch

        from rose._core import CudaGraph

        device, stream = self.lanes.gpu.device, self.lanes.gpu.rollout.handle
        CudaGraph.begin_capture(device, stream)
        with torch.cuda.stream(self.lanes.rollout):
            for layer in range(layers):
                if gates and layer % (layers // gates) == 0:
                    self.borrower.half.insert(stream)
                self._work()
        return CudaGraph.end_capture(device, stream)

    def abortable(self, *, segments: int) -> tuple[Any, list[Any]]:
        """Return the graph, and the graphs of its segments, which must be kept."""
        parts = [self.captured(layers=1, gates=0) for _ in range(segments)]
        return self.borrower.half.make_abortable([one.handle for one in parts]), parts

    def launch(self, graph: Any) -> None:
        from rose._core import Verdict

        verdict = self.borrower.half.launch(graph, timeout_ms=LONG_MS)
        check(verdict == Verdict.PASSED, "an open gate refused a graph")

    def timed_ms(self, put: Callable[[], None]) -> float:
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(self.lanes.rollout)
        put()
        end.record(self.lanes.rollout)
        end.synchronize()
        self.borrower.half.leave()
        return float(start.elapsed_time(end))


def costs(report: Report, lanes: Lanes, kind: Any, name: str) -> None:
    graphs = Graphs(lanes, kind, layer_ms=LAYER_MS)
    graphs.borrower.open(CREDIT_MAX)
    graphs.borrower.half.begin_step()
    plain = graphs.captured(layers=LAYERS, gates=0)
    stream = lanes.gpu.rollout.handle

    def compare(row: str, make: Callable[[], Any]) -> None:
        with report.rows(row):
            made = make()
            graph = made[0] if isinstance(made, tuple) else made
            pairs = []
            for _ in range(ROUNDS):
                gated_ms = graphs.timed_ms(lambda: graphs.launch(graph))
                pairs.append((gated_ms, graphs.timed_ms(lambda: plain.launch(stream))))
            plain_us = statistics.median(alone for _, alone in pairs[1:]) * 1e3
            ratio = statistics.median(gated / alone for gated, alone in pairs[1:])
            report.add(row, ratio, "ratio", peer=Peer("the graph without gates", plain_us, "us"))

    for count in GATES[1:]:
        compare(
            f"graph_with_{count}_gates_over_none_{name}",
            lambda count=count: graphs.captured(layers=LAYERS, gates=count),
        )
    compare(f"abortable_graph_over_none_{name}", lambda: graphs.abortable(segments=LAYERS))
    graphs.borrower.half.end_step()
    graphs.borrower.close()


def abort_ms(graphs: Graphs, graph: Any, rng: random.Random) -> float:
    """Abort a step at a random moment; return the time until its blocks could be freed."""
    from rose._core import CloseReason, Verdict

    host, half = graphs.borrower.host, graphs.borrower.half
    half.begin_step()
    graphs.borrower.open(CREDIT_MAX)
    before = host.passed
    graphs.launch(graph)
    spin_until(lambda: host.passed > before)
    time.sleep(rng.uniform(0, LAYERS / 2) * SEGMENT_MS * 1e-3)
    began_ns = time.perf_counter_ns()
    host.close(CloseReason.REVOCATION)
    check(host.abort_step(), "no step was in flight")
    check(half.pass_(timeout_ms=LONG_MS) == Verdict.ABORTED, "the gate did not report the abort")
    took_ms = (time.perf_counter_ns() - began_ns) * 1e-6
    half.leave()
    half.end_step()
    return took_ms


def aborts(report: Report, lanes: Lanes, kind: Any, name: str) -> None:
    rng = random.Random(fresh_seed(f"aborts, {name}"))
    # One segment plus a millisecond is the bar of a revocation.
    bar = Bar(at_most=1.0 + 1.0 / SEGMENT_MS)
    for row, is_abortable in (
        (f"abort_p99_over_segment_{name}", True),
        (f"abort_of_plain_graph_p99_over_segment_{name}", False),
    ):
        with report.rows(row):
            graphs = Graphs(lanes, kind, layer_ms=SEGMENT_MS)
            if is_abortable:
                graph, kept = graphs.abortable(segments=LAYERS)
            else:
                graph, kept = graphs.captured(layers=LAYERS, gates=LAYERS), []
            samples = [abort_ms(graphs, graph, rng) for _ in range(ABORTS)]
            del kept
            report.add(
                row,
                quantile(samples, 0.99) / SEGMENT_MS,
                "ratio",
                peer=Peer("a segment", SEGMENT_MS, "ms"),
                bar=bar if is_abortable else None,
            )


def measure(report: Report) -> None:
    from rose._core import GateKind

    lanes = Lanes()
    for name in KINDS:
        kind = getattr(GateKind, name.upper())
        costs(report, lanes, kind, name)
        aborts(report, lanes, kind, name)
