"""One suite in a separate process: `python -m bench.gpu.child MODULE ROWS_FILE`."""

import faulthandler
import importlib
import signal
import sys
from pathlib import Path

from bench.gpu.report import Report


def main(module: str, rows: str) -> int:
    # A child stopped at its limit prints a traceback of every thread, then ends as by SIGTERM.
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    suite = importlib.import_module(module)
    suite.measure(Report(Path(rows), suite.ROWS))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
