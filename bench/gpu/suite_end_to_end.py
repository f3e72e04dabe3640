"""End to end within `make gpu`: two decoders of 8B on one device, for seconds per arm."""

from typing import Final

from bench.gpu.report import Report
from bench.gpu.shared_rows import END_TO_END_ROWS

ROWS: Final = END_TO_END_ROWS


def measure(report: Report) -> None:
    from bench.gpu.end_to_end import FULL, measure

    measure(report, FULL)
