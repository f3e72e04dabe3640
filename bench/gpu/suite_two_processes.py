"""Two processes on one device as the driver shares it between them, by time slices."""

from typing import Final

from bench.gpu.meeting import measure_arm, rows_of
from bench.gpu.report import Report

ROWS: Final = rows_of("time_sliced")


def measure(report: Report) -> None:
    measure_arm(report, "time_sliced")
