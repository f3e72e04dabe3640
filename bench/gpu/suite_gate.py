"""Cost of an open gate in the borrower's stream, and time until it opens."""

import statistics
import time
from typing import Any, Final

from bench.gpu.lanes import CREDIT_MAX, LONG_MS, WINDOW_MAX, Borrower, Lanes, spin_until
from bench.gpu.report import Cannot, Report
from bench.paired import quantile
from bench.rows import Peer
from rose.errors import check

KINDS: Final = ("memop", "kernel")
# A decoder of 36 layers with a gate before each, and kernels short enough to show the cost.
GATES: Final = 36
SEGMENT_MS: Final = 0.02
# Long enough for the host to enqueue all of them in the meantime.
LEAD_MS: Final = 5.0
ROUNDS: Final = 30
WAKES: Final = 200

ROWS: Final = (
    *(f"gate_{kind}_us" for kind in KINDS),
    *(f"gate_{kind}_in_graph_us" for kind in KINDS),
    *(f"gate_wake_us_{statistic}_{kind}" for kind in KINDS for statistic in ("p50", "p99")),
    "graph_update_us",
    *(f"gate_alias_us_{kind}" for kind in KINDS),
)


class Chain:
    """Small kernels in the borrower's stream, with or without a gate before each."""

    def __init__(self, lanes: Lanes, kind: Any) -> None:
        import torch

        self.lanes = lanes
        self.borrower = lanes.graph_borrower(kind, window=WINDOW_MAX)
        self.borrower.open(CREDIT_MAX)
        self._lead = lanes.sleep_ms(LEAD_MS)
        self._work = lanes.sleep_ms(SEGMENT_MS)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def _timed_ms(self, put: Any) -> float:
        """Return the device time of the work that `put` enqueues."""
        import torch

        start, end = self._events
        with torch.cuda.stream(self.lanes.rollout):
            self._lead()
            start.record()
            put()
            end.record()
        end.synchronize()
        self.borrower.half.leave()
        return float(start.elapsed_time(end))

    def plain_ms(self) -> float:
        def put() -> None:
            for _ in range(GATES):
                self._work()

        return self._timed_ms(put)

    def gated_ms(self) -> float:
        from rose._core import Verdict

        def put() -> None:
            for _ in range(GATES):
                verdict = self.borrower.half.pass_(timeout_ms=LONG_MS)
                check(verdict == Verdict.PASSED, "an open gate refused a segment")
                self._work()

        return self._timed_ms(put)

    def captured(self, *, has_gates: bool) -> Any:
        import torch

        from rose._core import CudaGraph

        device, stream = self.lanes.gpu.device, self.lanes.gpu.rollout.handle
        CudaGraph.begin_capture(device, stream)
        with torch.cuda.stream(self.lanes.rollout):
            for _ in range(GATES):
                if has_gates:
                    self.borrower.half.insert(stream)
                self._work()
        return CudaGraph.end_capture(device, stream)


def gate_cost(report: Report, lanes: Lanes, kind: Any, name: str) -> None:
    chain = Chain(lanes, kind)
    chain.borrower.half.begin_step()
    with report.rows(f"gate_{name}_us"):
        for put in (chain.plain_ms, chain.gated_ms):
            put()  # the first run loads kernels
        pairs = [(chain.gated_ms(), chain.plain_ms()) for _ in range(ROUNDS)]
        each_us = [(gated - plain) / GATES * 1e3 for gated, plain in pairs]
        plain_us = statistics.median(plain for _, plain in pairs) / GATES * 1e3
        report.add(
            f"gate_{name}_us",
            statistics.median(each_us),
            "us",
            peer=Peer("the segment alone", plain_us, "us"),
        )
    in_graph = f"gate_{name}_in_graph_us"
    with report.rows(in_graph, *(["graph_update_us"] * (name == "memop"))):
        graph_cost(report, chain, name)
    chain.borrower.half.leave()
    chain.borrower.half.end_step()


def graph_cost(report: Report, chain: Chain, name: str) -> None:
    from rose._core import Verdict

    gated, plain = chain.captured(has_gates=True), chain.captured(has_gates=False)
    stream = chain.lanes.gpu.rollout.handle
    host_us: dict[str, list[float]] = {"gated": [], "plain": []}

    def launch_gated() -> None:
        began_ns = time.perf_counter_ns()
        verdict = chain.borrower.half.launch(gated, timeout_ms=LONG_MS)
        host_us["gated"].append((time.perf_counter_ns() - began_ns) * 1e-3)
        check(verdict == Verdict.PASSED, "an open gate refused a graph")

    def launch_plain() -> None:
        began_ns = time.perf_counter_ns()
        plain.launch(stream)
        host_us["plain"].append((time.perf_counter_ns() - began_ns) * 1e-3)

    for put in (launch_gated, launch_plain):
        chain._timed_ms(put)
    pairs = [(chain._timed_ms(launch_gated), chain._timed_ms(launch_plain)) for _ in range(ROUNDS)]
    each_us = [(with_gates - without) / GATES * 1e3 for with_gates, without in pairs]
    plain_us = statistics.median(without for _, without in pairs) / GATES * 1e3
    report.add(
        f"gate_{name}_in_graph_us",
        statistics.median(each_us),
        "us",
        peer=Peer("the segment alone, in a graph", plain_us, "us"),
    )
    if name == "memop":
        # The host's work before each launch: new numbers for every node.
        gated_us, bare_us = (statistics.median(host_us[one][1:]) for one in ("gated", "plain"))
        report.add(
            "graph_update_us",
            (gated_us - bare_us) / GATES,
            "us",
            peer=Peer("launching the graph without gates", bare_us, "us"),
        )


def wake(report: Report, lanes: Lanes, kind: Any, name: str) -> None:
    """A round trip: from the opening store to the host's view of the device's own store."""
    names = [f"gate_wake_us_{statistic}_{name}" for statistic in ("p50", "p99")]
    with report.rows(*names):
        borrower = lanes.borrower(kind, window=2)
        samples_us = []
        for _ in range(WAKES):
            with borrower.parked():
                waiting = borrower.host.passed
                time.sleep(1e-4)
                check(borrower.host.passed == waiting, "a closed gate let a segment pass")
                samples_us.append(_wake_us(borrower, waiting))
        for statistic, share in (("p50", 0.5), ("p99", 0.99)):
            report.add(f"gate_wake_us_{statistic}_{name}", quantile(samples_us, share), "us")


def _wake_us(borrower: Borrower, waiting: int) -> float:
    # It has credit from before the close; only the open bit is missing.
    epoch = borrower.host.close_epoch
    began_ns = time.perf_counter_ns()
    borrower.host.open(epoch)
    spin_until(lambda: borrower.host.passed > waiting)
    return (time.perf_counter_ns() - began_ns) * 1e-3


def probed(report: Report, lanes: Lanes) -> None:
    """Time of an idle serving stream beside a parked borrower, from the self-test."""
    rows = {name: f"gate_alias_us_{name}" for name in KINDS}
    with report.rows(*rows.values()):
        found = lanes.gpu.probe(max_connections=None)
        print(f"the self-test chose {found.choice.kind}: {found.choice.why}", flush=True)
        for name, row in rows.items():
            with report.rows(row):
                one = getattr(found, name)
                if not one.is_usable:
                    raise Cannot(f"the self-test refuses it: {one.why}")
                report.add(row, one.alias_us, "us")


def measure(report: Report) -> None:
    from rose._core import GateKind

    lanes = Lanes()
    probed(report, lanes)
    for name in KINDS:
        kind = getattr(GateKind, name.upper())
        gate_cost(report, lanes, kind, name)
        wake(report, lanes, kind, name)
