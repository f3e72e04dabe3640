"""A pytest plugin that records each test when it ends, so that a dead process leaves its results.

`-p bench.gpu.progress --progress FILE`: one JSON object per line, `{"collected": [...]}`, then
`{"began": id}` and `{"test": id, "outcome": ..., "why": ...}` for each test.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

WHY_CHARS_MAX: Final = 300


class Progress:
    """Writes to one file. A test that fails in several phases is recorded once for each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _write(self, **one: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(one) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write(collected=[item.nodeid for item in session.items])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(began=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write(test=report.nodeid, outcome=report.outcome, why=why(report))


def why(report: pytest.TestReport) -> str:
    """Return the reason of a skip or failure, in one line."""
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):  # of a skipped test: path, line, reason
        text = report.longrepr[2].removeprefix("Skipped: ")
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(report.longrepr) if crash is None else crash.message
    return " ".join(text.split())[:WHY_CHARS_MAX]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--progress", type=Path, help="file that each ended test is appended to")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--progress")
    if path is not None:
        config.pluginmanager.register(Progress(path), "gpu-progress")
