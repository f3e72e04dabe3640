"""Memory bandwidth of this GPU, the reference of every other row."""

from typing import Final

from bench.gpu.report import Report
from bench.gpu.timing import copy_gb_s

ROWS: Final = ("copy_bandwidth_gb_s",)


def measure(report: Report) -> None:
    with report.rows(*ROWS):
        report.add("copy_bandwidth_gb_s", copy_gb_s(), "GB/s")
