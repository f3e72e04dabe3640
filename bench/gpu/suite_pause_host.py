"""Pauses behind a HOST gate, by length of the segment."""

from typing import Final

from bench.gpu.lanes import Lanes
from bench.gpu.pauses import measure_kind, rows_of
from bench.gpu.report import Report

ROWS: Final = rows_of("host", (None,))


def measure(report: Report) -> None:
    from rose._core import GateKind

    measure_kind(report, Lanes(), GateKind.HOST, "host", (None,))
