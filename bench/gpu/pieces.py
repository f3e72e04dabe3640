"""The work of `make gpu` in order, in pieces, and the selection of PART=K/N."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

from bench.gpu import parts
from bench.gpu.children import Deadline
from bench.gpu.parts import Findings, Suite


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number` of `count`; the only part of one is all the work."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"PART={self.number}/{self.of}"


def read_part(text: str) -> Part:
    """Read K/N.

    Raises:
        argparse.ArgumentTypeError: it is not a part.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    number, of = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= of:
        raise argparse.ArgumentTypeError(f"'{text}' is no part: PART=2/3 is the second of three")
    return Part(number, of)


@dataclass(frozen=True, slots=True)
class Piece:
    """Work that is done or skipped as a whole.

    Args:
        what: description, printed at its start.
        log: its log file in the folder of results.
        rows: names of its rows.
        limit_s: its time limit, without the time to end it.
        run: does the work, in that folder and before that deadline.
        reserved_s: time that earlier pieces must leave for it.
        is_first: whether the build must leave its time too.
        needs_build: False if it runs without the extension.
    """

    what: str
    log: str
    rows: tuple[str, ...]
    limit_s: float
    run: Callable[[Path, Deadline], Findings]
    reserved_s: float = 0.0
    is_first: bool = False
    needs_build: bool = True


def pieces(suites: Sequence[Suite], test_files: Sequence[str]) -> list[Piece]:
    """Return all the work but the build, in order."""

    def tests(out: Path, deadline: Deadline) -> Findings:
        return parts.tests(out, deadline, test_files)

    measured = [
        Piece(
            f"measuring, {one.module}",
            "suites.log",
            one.promised,
            one.limit_s,
            partial(parts.suite, one),
            is_first=one.is_first,
            needs_build=one.needs_build,
        )
        for one in suites
    ]
    return [
        *(one for one in measured if one.is_first),
        Piece(
            f"testing, {len(test_files)} files",
            "tests.log",
            parts.TEST_ROWS,
            parts.TESTS_S,
            tests,
        ),
        *(one for one in measured if not one.is_first),
        Piece(
            "running the demo",
            "demo.log",
            parts.DEMO_ROWS,
            parts.DEMO_S,
            parts.demo,
            # The most important piece: earlier ones must leave its time.
            reserved_s=0.0 if parts.why_no_demo() else parts.DEMO_S,
        ),
        Piece(
            "running compute-sanitizer",
            "sanitizer.log",
            parts.SANITIZER_ROWS,
            parts.SANITIZER_S * len(parts.SANITIZER_TOOLS),
            parts.sanitizer,
        ),
    ]


def split(work: Sequence[Piece], of: int) -> Mapping[Piece, Part]:
    """Return the part of each piece, in order, by the position of its middle in the sum of all
    limits.
    """
    ends_s = list(accumulate(piece.limit_s for piece in work))
    return {
        piece: Part(int((end_s - piece.limit_s / 2) / ends_s[-1] * of) + 1, of)
        for piece, end_s in zip(work, ends_s, strict=True)
    }
