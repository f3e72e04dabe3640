"""Prove rose's device half on this machine: build, tests, device rows, demo, sanitizer.

Everything is written to one folder: gpu.json, and a log for each kind of work. With --part K/N a
part of it is done, and continues the existing gpu.json. Status 0 if all of the part ran, 1 if a
test failed or a row is unmeasured, 2 for a mistake of the user or a machine without a GPU. A missed
bar is reported, and is no failure.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from rich.console import Console

from bench.gpu import parts
from bench.gpu.card import EXIT_NO_GPU
from bench.gpu.children import LABORATORY, ROOT, Deadline, environment, python, shorten
from bench.gpu.merge import NAME, NOT_RUN, Document, Mismatch, merged, read, write
from bench.gpu.parts import Findings, Suite
from bench.gpu.pieces import Part, Piece, pieces, read_part, split
from bench.gpu.table import table_of
from bench.rows import faults
from bench.usage import EXIT_MENDABLE, Parser

sys.path.append(str(LABORATORY))  # nothing is installed here
from rose_lab.machine import commit, machine_card

# Nine minutes, minus the time to stop a child and to write.
TOTAL_S: Final = 525.0
CARD_S: Final = 30.0
LOG_WIDTH: Final = 160

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

# The only files that are written. A machine may refuse to return others.
LOGS: Final = ("build.log", "tests.log", "tests.jsonl", "suites.log", "demo.log", "sanitizer.log")

# In order of importance: the last ones are skipped when time runs out.
SUITES: Final = (
    Suite("bench.gpu.suite_copy", is_first=True, needs_build=False),
    Suite("bench.gpu.suite_codec", is_first=True),
    Suite("bench.gpu.suite_gate", is_first=True),
    Suite("bench.gpu.suite_pause_memop"),
    Suite("bench.gpu.suite_pause_kernel"),
    Suite("bench.gpu.suite_parked"),
    Suite("bench.gpu.suite_end_to_end", limit_s=190.0),
    Suite("bench.gpu.suite_abort"),
    Suite("bench.gpu.suite_two_processes", limit_s=60.0),
    Suite("bench.gpu.suite_persistent"),
    Suite("bench.gpu.suite_mps", limit_s=60.0),
    Suite("bench.gpu.suite_codec_large", limit_s=60.0),
    Suite("bench.gpu.suite_pause_host"),
    Suite("bench.gpu.suite_memory"),
    Suite("bench.gpu.suite_leases"),
    Suite("bench.gpu.suite_attention"),
    Suite("bench.gpu.suite_triton", limit_s=60.0),  # it compiles for a part of that time
)


def parse(arguments: Sequence[str]) -> tuple[Path, Part]:
    """Return the output folder, and the part to do."""
    parser = Parser("gpu", prog="make gpu", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="folder of the results")
    parser.add_argument(
        "--part", type=read_part, default=Part(1, 1), metavar="K/N", help="part of all work"
    )
    options = parser.parse_args(arguments)
    out: Path = options.out
    if not str(out).strip() or (out.exists() and not out.is_dir()):
        parser.error(f"cannot write into '{out}': name a folder, as in OUT=gpu-results")
    # The children run in the root of the checkout.
    return out.absolute(), options.part


def shadowed(names: Sequence[str] = ("bench", "rose", "tests")) -> str | None:
    """Return why children would import another package than one of this checkout, or None."""
    for name in names:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if [str(Path(place).resolve()) for place in places] != [str(ROOT / name)]:
            where = ", ".join(places) or "nowhere"
            return f"'{name}' must come from {ROOT}, and is found in: {where}; mend PYTHONPATH"
    return None


def card() -> dict[str, object] | str:
    """Return the description of the GPU, or the reason why there is none.

    A child process asks the driver, because the query may hang.
    """
    try:
        done = subprocess.run(
            python("-m", "bench.gpu.card"),
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=CARD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the driver did not answer within {CARD_S:.0f} s"
    if done.returncode == EXIT_NO_GPU:
        return done.stdout.strip()
    if done.returncode != 0:
        return f"the driver cannot be asked: {(done.stderr.splitlines() or ['?'])[-1]}"
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


class Run:
    """One run: the pieces of its part in order, and the growing document.

    The document is written after every piece, so an interrupted run leaves its results.
    """

    def __init__(
        self,
        out: Path,
        part: Part,
        work: Mapping[Piece, Part],
        *,
        machine: dict[str, object],
        deadline: Deadline,
    ) -> None:
        self.out = out
        self.deadline = deadline
        self.found = Findings()
        self._part = part
        self._pieces = [piece for piece, whose in work.items() if whose == part]
        self._waiting = dict(work)
        self._earlier: dict[str, Document] = {}
        self._machine = machine
        self._commit = commit()

    def open_folder(self) -> None:
        """Continue the existing document; without one, or for all the work, begin a new one.

        Raises:
            Mismatch: it is from another commit or machine; nothing has been changed.
            OSError: the folder cannot be written.
        """
        path = self.out / NAME
        if self._part.of > 1 and path.exists():
            self._earlier = {str(path): read(path)}
            self.document()
            return
        self.out.mkdir(parents=True, exist_ok=True)
        for name in (NAME, parts.DEMO_REPORT, *LOGS):
            (self.out / name).unlink(missing_ok=True)

    def document(self) -> Document:
        waiting = [
            {"name": row, "reason": f"{NOT_RUN}{whose}"}
            for piece, whose in self._waiting.items()
            for row in piece.rows
        ]
        this: Document = {
            "machine": self._machine,
            "commit": self._commit,
            "suite": "gpu",
            "rows": self.found.rows,
            "unmeasured": [*self.found.unmeasured, *waiting],
        }
        return merged(self._earlier | {"this run": this})

    def _begin(self, what: str, log: str) -> None:
        print(f"gpu: {what}", file=sys.stderr, flush=True)
        with (self.out / log).open("a", encoding="utf-8") as file:
            file.write(f"\n==== {self._part}, {what}\n")

    def _end(self, piece: Piece, found: Findings) -> None:
        self.found.extend(found)
        del self._waiting[piece]
        for name in LOGS:
            shorten(self.out / name)
        write(self.out / NAME, self.document())

    def _build_deadline(self) -> Deadline:
        """Return a deadline after `BUILD_S`; or later, if there are first pieces and they fit."""
        kept_s = [one.limit_s if one.is_first else one.reserved_s for one in self._pieces]
        has_first = any(piece.is_first for piece in self._pieces)
        planned_s = self.deadline.at_most(parts.BUILD_S)
        spare_s = self.deadline.left_s() - sum(kept_s) if has_first else 0.0
        return self.deadline.less(self.deadline.left_s() - max(planned_s, spare_s))

    def all_pieces(self) -> None:
        write(self.out / NAME, self.document())
        self._begin("building", "build.log")
        why = parts.build(self.out, self._build_deadline())
        for number, piece in enumerate(self._pieces, 1):
            if why is not None and piece.needs_build:
                self._end(piece, parts.skip_all(piece.rows, why))
                continue
            self._begin(piece.what, piece.log)
            reserved_s = sum(later.reserved_s for later in self._pieces[number:])
            self._end(piece, piece.run(self.out, self.deadline.less(reserved_s)))


def main(
    arguments: Sequence[str],
    *,
    suites: Sequence[Suite] = SUITES,
    test_files: Sequence[str] | None = None,
    total_s: float = TOTAL_S,
) -> int:
    deadline = Deadline(total_s)
    out, part = parse(arguments)
    if (why := shadowed()) is not None:
        print(f"gpu: {why}", file=sys.stderr)
        return EXIT_MENDABLE
    gpu = card()
    if isinstance(gpu, str):
        print(f"gpu: no GPU: {gpu}", file=sys.stderr)
        return EXIT_MENDABLE
    _stay_awake()
    work = pieces(suites, parts.files_of_tests() if test_files is None else test_files)
    run = Run(out, part, split(work, part.of), machine=machine_card() | gpu, deadline=deadline)
    try:
        run.open_folder()
    except Mismatch as why:
        print(f"gpu: {why}; name another folder", file=sys.stderr)
        return EXIT_MENDABLE
    except OSError as error:
        print(f"gpu: cannot write into {out}: {error.strerror}", file=sys.stderr)
        return EXIT_MENDABLE
    run.all_pieces()
    # A log file has no terminal width.
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    document = run.document()
    console.print(table_of(document, run.found.tests or parts.not_passed(out)))
    wrong = faults(document)
    for one in wrong:
        print(f"gpu: {one}", file=sys.stderr)
    return 0 if run.found.is_complete and not wrong else EXIT_FAILED


def _stay_awake() -> None:
    """Keep a device open until the end; otherwise it may sleep and wake between two children."""
    with suppress(OSError):
        os.open("/dev/nvidia0", os.O_RDONLY | os.O_CLOEXEC)


def _terminate(_signal: int, _frame: object) -> NoReturn:
    # As an exception, so that the child is stopped on the way out.
    sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
