"""The borrower on a share of the device: what it costs serving, and whether the share holds."""

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.gpu.lanes import CREDIT_MAX, LONG_MS, WINDOW_MAX, Lanes
from bench.gpu.report import Cannot, Report
from bench.gpu.timing import event_timed, median_of
from bench.paired import Measure, Pairs
from bench.rows import Peer
from rose.errors import check

SHARES: Final = (16, 32, 64)
# Decode reads weights for a few rows, prefill computes on them.
BATCHES: Final = {"decode": 16, "prefill": 512}
HIDDEN: Final = 8192
LAYERS: Final = 8
SIDE: Final = 4096
ROUNDS: Final = 12
SWITCHES: Final = 32
SEGMENT_MS: Final = 0.05
JOIN_S: Final = 20.0

ROWS: Final = (
    *(f"confined_{kind}_slowdown_{share}" for kind in BATCHES for share in SHARES),
    *(f"whole_{kind}_slowdown" for kind in BATCHES),
    *(f"confined_product_over_whole_{share}" for share in SHARES),
    *(f"graph_of_share_over_its_stream_{share}" for share in SHARES),
    "share_switch_us",
)


class Shares:
    """The borrower's streams as torch sees them, and a long product to run on them."""

    def __init__(self, lanes: Lanes) -> None:
        import torch

        from rose.compute import Confinement
        from rose.engines.torch import stream_of

        self.lanes = lanes
        gpu = lanes.gpu
        self.confinement = Confinement.open(gpu.device, gpu.rollout, shares=SHARES)
        self._as_torch = lambda one: stream_of(one.handle, lanes.torch_device)
        options = {"device": lanes.torch_device, "dtype": torch.bfloat16}
        self._left = torch.randn(SIDE, SIDE, **options)
        self._out = torch.empty_like(self._left)

    def stream(self, share: int | None) -> Any:
        if share is not None and share not in self.confinement.shares:
            raise Cannot(self.confinement.why_not)
        return self._as_torch(self.confinement.stream_for(share))

    def product(self) -> None:
        import torch

        torch.mm(self._left, self._left, out=self._out)

    def product_ms(self, stream: Any) -> float:
        import torch

        with torch.cuda.stream(stream):
            return median_of(event_timed(self.product), rounds=ROUNDS)

    def graph_ms(self, captured_on: Any, launched_on: Any) -> float:
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(captured_on):
            self.product()
        captured_on.synchronize()
        with torch.cuda.graph(graph, stream=captured_on):
            self.product()
        with torch.cuda.stream(launched_on):
            return median_of(event_timed(graph.replay), rounds=ROUNDS)

    @contextmanager
    def busy(self, stream: Any) -> Iterator[None]:
        """Have products run on a stream without end."""
        import torch

        over = threading.Event()
        room = [torch.cuda.Event() for _ in range(4)]

        def run() -> None:
            with torch.cuda.stream(stream):
                for turn in iter(over.is_set, True):
                    del turn
                    mark = room.pop(0)
                    mark.synchronize()
                    self.product()
                    mark.record()
                    room.append(mark)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(JOIN_S)
            stream.synchronize()
            check(not thread.is_alive(), "a borrower that is told to stop stops")


def serving_step_ms(lanes: Lanes, rows: int) -> Measure:
    """Return a measure of a graph of products on serving's stream."""
    import torch

    options = {"device": lanes.torch_device, "dtype": torch.bfloat16}
    weights = [torch.randn(HIDDEN, HIDDEN, **options) / 90 for _ in range(LAYERS)]
    states = [torch.randn(rows, HIDDEN, **options) for _ in range(LAYERS + 1)]

    def layers() -> None:
        for at, weight in enumerate(weights):
            torch.mm(states[at], weight, out=states[at + 1])

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(lanes.serving):
        layers()
    lanes.serving.synchronize()
    with torch.cuda.graph(graph, stream=lanes.serving):
        layers()

    def measure() -> float:
        with torch.cuda.stream(lanes.serving):
            return event_timed(graph.replay)()

    return measure


def slowdowns(report: Report, shares: Shares) -> None:
    for kind, rows in BATCHES.items():
        step_ms = serving_step_ms(shares.lanes, rows)
        for share in (None, *SHARES):
            row = f"whole_{kind}_slowdown" if share is None else f"confined_{kind}_slowdown_{share}"
            with report.rows(row):
                _slowdown(report, row, step_ms, shares.stream(share), shares)


def _slowdown(report: Report, row: str, step_ms: Measure, stream: Any, shares: Shares) -> None:
    def alone_ms() -> float:
        return statistics.median(step_ms() for _ in range(5))

    def beside_ms() -> float:
        with shares.busy(stream):
            return alone_ms()

    pairs = Pairs(beside_ms, alone_ms)
    for _ in range(ROUNDS):
        pairs.round()
    paired = pairs.result()
    report.add_ratio(row, paired, peer=Peer("alone", paired.peer * 1e3, "us"))


def holds(report: Report, shares: Shares) -> None:
    """A product on a share takes longer by the share, unless the share does not hold."""
    whole = shares.stream(None)
    for share in SHARES:
        names = (f"confined_product_over_whole_{share}", f"graph_of_share_over_its_stream_{share}")
        with report.rows(*names):
            stream = shares.stream(share)
            whole_ms, mine_ms = shares.product_ms(whole), shares.product_ms(stream)
            report.add(
                names[0], mine_ms / whole_ms, "ratio", peer=Peer("whole", whole_ms * 1e3, "us")
            )
            # 1: a graph keeps the share it was captured on; the ratio above, inverted: it does not.
            there_ms = shares.graph_ms(stream, stream)
            elsewhere_ms = shares.graph_ms(stream, whole)
            report.add(
                names[1],
                elsewhere_ms / there_ms,
                "ratio",
                peer=Peer("launched on its own stream", there_ms * 1e3, "us"),
            )


def switches(report: Report, shares: Shares) -> None:
    """What a change of stream costs the borrower, over staying in one."""
    import torch

    from rose._core import GateKind, Verdict
    from rose.engines.torch import stream_of

    with report.rows("share_switch_us"):
        lanes = shares.lanes
        borrower = lanes.graph_borrower(GateKind.MEMOP, window=WINDOW_MAX)
        borrower.open(CREDIT_MAX)
        borrower.half.begin_step()
        work = lanes.sleep_ms(SEGMENT_MS)
        share = shares.confinement.stream_for(shares.confinement.shares[0])
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def run_ms(streams: list[Any]) -> float:
            start.record(lanes.rollout)
            for turn in range(SWITCHES):
                one = streams[turn % len(streams)]
                borrower.half.use_stream(one.handle)
                verdict = borrower.half.pass_(timeout_ms=LONG_MS)
                check(verdict == Verdict.PASSED, "an open gate lets every segment in")
                with torch.cuda.stream(stream_of(one.handle, lanes.torch_device)):
                    work()
            borrower.half.use_stream(lanes.gpu.rollout.handle)
            end.record(lanes.rollout)
            end.synchronize()
            borrower.half.leave()
            return float(start.elapsed_time(end))

        plain = lanes.gpu.rollout
        run_ms([plain, share])
        each_us = [
            (run_ms([plain, share]) - run_ms([plain, plain])) / SWITCHES * 1e3
            for _ in range(ROUNDS)
        ]
        borrower.half.end_step()
        borrower.close()
        report.add("share_switch_us", statistics.median(each_us), "us")


def measure(report: Report) -> None:
    shares = Shares(Lanes())
    holds(report, shares)
    switches(report, shares)
    slowdowns(report, shares)
