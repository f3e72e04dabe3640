"""Two processes on one device with the driver's time slices."""

from typing import Final

from bench.gpu.report import Report
from bench.gpu.shared_rows import meeting_rows

ROWS: Final = meeting_rows("time_sliced")


def measure(report: Report) -> None:
    from bench.gpu.meeting import measure_arm

    measure_arm(report, "time_sliced")
