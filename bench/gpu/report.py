"""The report of a suite of device rows: each row is written to a file when it is known."""

import json
import math
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.paired import PairedRatio
from bench.rows import CONTROL, CONTROL_BAR, Bar, Peer, row
from rose.errors import check

WHY_CHARS_MAX: Final = 300


class Cannot(Exception):
    """A row cannot be measured on this machine; the message has the reason."""


def sentence(failure: BaseException) -> str:
    """Return a failure in one line."""
    text = " ".join(str(failure).split())
    if isinstance(failure, Cannot):
        return text
    return f"{type(failure).__name__}: {text}"[:WHY_CHARS_MAX]


class Report:
    """Writes rows, and the reasons for missing ones, one JSON object per line.

    Args:
        path: file to append to.
        promised: names that the suite may report.
    """

    def __init__(self, path: Path, promised: Iterable[str]) -> None:
        self._path = path
        self._promised = frozenset(promised)
        self._said: set[str] = set()

    def _write(self, one: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(one) + "\n")

    def _add(self, one: dict[str, Any]) -> None:
        name = one["name"]
        check(name.removeprefix(CONTROL) in self._promised, f"{name} is not in ROWS")
        check(name not in self._said, f"{name} is reported twice")
        check(math.isfinite(one["value"]), f"{name}: {one['value']} is not a finite number")
        self._said.add(name)
        self._write({"row": one})

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        peer: Peer | None = None,
        bar: Bar | None = None,
    ) -> None:
        """Report a figure."""
        self._add(row(name, value, unit, peer=peer, bar=bar))

    def add_ratio(
        self, name: str, paired: PairedRatio, *, peer: Peer, bar: Bar | None = None
    ) -> None:
        """Report a paired ratio and its control."""
        self._add(row(name, paired.ratio, "ratio", peer=peer, bar=bar, is_void=paired.is_void))
        self._add(row(CONTROL + name, paired.control, "ratio", bar=CONTROL_BAR))

    @contextmanager
    def rows(self, *names: str) -> Iterator[None]:
        """Measure these rows: a failure affects only those that were not reported yet."""
        check(self._promised.issuperset(names), f"{names} are not all in ROWS")
        try:
            yield
        except Exception as failure:  # noqa: BLE001 (whatever it is, the other rows go on)
            if not isinstance(failure, Cannot):
                traceback.print_exc()
            for name in names:
                if name not in self._said:
                    self._said.add(name)
                    self._write({"unmeasured": {"name": name, "reason": sentence(failure)}})


def read_rows(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return the rows of a file and the unmeasured ones; an incomplete last line is ignored."""
    rows, unmeasured = [], []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            one = json.loads(line)
        except json.JSONDecodeError:
            break
        if "row" in one:
            rows.append(one["row"])
        else:
            unmeasured.append(one["unmeasured"])
    return rows, unmeasured
