"""Two processes on one device under MPS, if its daemon starts."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.gpu.report import Cannot, Report
from bench.gpu.shared_rows import meeting_rows

ARM: Final = "mps"
ROWS: Final = meeting_rows(ARM)
DAEMON_S: Final = 10.0


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Start the daemon of MPS; yield the environment of its clients.

    Raises:
        Cannot: it is missing, or does not start.
    """
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        raise Cannot("nvidia-cuda-mps-control is not on the path")
    with TemporaryDirectory() as folder:
        where = {
            "CUDA_MPS_PIPE_DIRECTORY": str(Path(folder, "pipe")),
            "CUDA_MPS_LOG_DIRECTORY": str(Path(folder, "log")),
        }
        for one in where.values():
            Path(one).mkdir()
        try:
            subprocess.run([program, "-d"], env=os.environ | where, check=True, timeout=DAEMON_S)
        except (subprocess.SubprocessError, OSError) as failure:
            raise Cannot(f"the daemon of MPS does not start: {failure}") from failure
        try:
            yield where
        finally:
            subprocess.run(
                [program],
                input="quit\n",
                text=True,
                env=os.environ | where,
                check=False,
                timeout=DAEMON_S,
            )


def measure(report: Report) -> None:
    from bench.gpu.meeting import measure_arm

    with report.rows(*ROWS), mps() as where:
        # Before this process has a context: the driver looks for the daemon when it creates one.
        os.environ.update(where)
        measure_arm(report, ARM, **where)
