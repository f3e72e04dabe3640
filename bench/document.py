"""The document of a suite while it is measured: valid on the disk after every row."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rose.whole_file import write_whole

NOT_REACHED = "the run ended before it"
UNFINISHED = "the run ended in it"


class Document:
    """Writes the file after every change, so that a killed run leaves its finished rows.

    Args:
        path: file with a head and no rows yet; None keeps nothing on the disk.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._head: dict[str, Any] = {} if path is None else json.loads(path.read_text("utf-8"))
        self._head.pop("unmeasured", None)
        self._rows: list[dict[str, Any]] = []
        self._unmeasured: dict[str, str] = {}

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        self._write()

    def leave_out(self, names: Iterable[str], reason: str) -> None:
        """Record benchmarks without rows, including those still to come."""
        self._unmeasured |= dict.fromkeys(names, reason)
        self._write()

    def begun(self, benchmark: str) -> None:
        """Note the benchmark that runs now, for the case that it never ends."""
        self.leave_out([benchmark], UNFINISHED)

    def finished(self, benchmark: str) -> None:
        """Note that a benchmark has reported all of its rows."""
        self._unmeasured.pop(benchmark, None)
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        missing = [{"name": name, "reason": why} for name, why in self._unmeasured.items()]
        unmeasured = {"unmeasured": missing} if missing else {}
        document = {**self._head, "rows": self._rows, **unmeasured}
        write_whole(self._path, json.dumps(document, indent=1).encode() + b"\n")
