"""m6 within `make gpu`: two decoders of 8B on one device, for seconds an arm."""

from bench.gpu.end_to_end import FULL, ROWS
from bench.gpu.end_to_end import measure as measure_all
from bench.gpu.report import Report

__all__ = ["ROWS", "measure"]


def measure(report: Report) -> None:
    measure_all(report, FULL)
