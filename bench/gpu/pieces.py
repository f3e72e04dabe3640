"""The work of `make gpu`, piece by piece in its order, and which of it PART=K/N does."""

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
    """The `number`-th of so many; the only one of one is all the work."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"PART={self.number}/{self.of}"


def read_part(text: str) -> Part:
    """Read K/N.

    Raises:
        argparse.ArgumentTypeError: it names no part.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    number, of = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= of:
        raise argparse.ArgumentTypeError(f"'{text}' is no part: PART=2/3 is the second of three")
    return Part(number, of)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is done or left out as a whole.

    Args:
        what: it does, said when it begins.
        log: file in the folder of the results that it says more in.
        rows: the names it promises.
        limit_s: it takes no longer than this, but for its end.
        run: does it, in that folder and before that deadline.
        reserved_s: what the pieces before it leave of the time.
    """

    what: str
    log: str
    rows: tuple[str, ...]
    limit_s: float
    run: Callable[[Path, Deadline], Findings]
    reserved_s: float = 0.0


def pieces(suites: Sequence[Suite], test_files: Sequence[str]) -> list[Piece]:
    """Return all the work but the build, in its order."""

    def tests(out: Path, deadline: Deadline) -> Findings:
        return parts.tests(out, deadline, test_files)

    measured = [
        Piece(
            f"measuring, {one.module}",
            "suites.log",
            one.promised,
            one.limit_s,
            partial(parts.suite, one),
        )
        for one in suites
    ]
    return [
        Piece(
            f"testing, {len(test_files)} files",
            "tests.log",
            parts.TEST_ROWS,
            parts.TESTS_S,
            tests,
        ),
        *measured,
        Piece(
            "running the demo",
            "demo.log",
            parts.DEMO_ROWS,
            parts.DEMO_S,
            parts.demo,
            # It is what all the rest is for: it gets its time, whatever comes before it takes.
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
    """Say whose each piece is, in order: by where its middle lies in the sum of all limits."""
    ends_s = list(accumulate(piece.limit_s for piece in work))
    return {
        piece: Part(int((end_s - piece.limit_s / 2) / ends_s[-1] * of) + 1, of)
        for piece, end_s in zip(work, ends_s, strict=True)
    }
