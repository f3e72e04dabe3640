"""Pauses behind a KERNEL gate, by length of the segment and number of queued segments."""

from typing import Final

from bench.gpu.lanes import Lanes
from bench.gpu.pauses import WINDOWS, measure_kind, rows_of
from bench.gpu.report import Report

ROWS: Final = rows_of("kernel", WINDOWS)


def measure(report: Report) -> None:
    from rose._core import GateKind

    measure_kind(report, Lanes(), GateKind.KERNEL, "kernel", WINDOWS)
