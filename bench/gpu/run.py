"""Prove rose's device half on this machine: build, tests, device rows, demo, sanitizer.

Everything goes into one folder: gpu.json, and a log for each part. Status 0 when everything ran,
1 when a test failed or a row is unmeasured, 2 for a mistake that the user can mend, a machine
without a GPU among them. A bar that is missed is said, and is no failure.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from rich.console import Console

from bench.gpu import parts
from bench.gpu.card import EXIT_NO_GPU
from bench.gpu.children import ROOT, Deadline, environment, python, shorten
from bench.gpu.parts import Findings, Suite
from bench.gpu.table import table_of
from bench.rows import faults
from rose.cli.machine import commit, machine_card

# Nine minutes, less what it takes to stop a child and to write.
TOTAL_S: Final = 525.0
CARD_S: Final = 30.0
LOG_WIDTH: Final = 160

EXIT_FAILED: Final = 1
EXIT_MENDABLE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

# What is written, and no more. Another file would be more than a machine may be willing to return.
LOGS: Final = ("build.log", "tests.log", "tests.jsonl", "suites.log", "demo.log", "sanitizer.log")

# In the order of what they decide: the last ones go without when time runs out.
SUITES: Final = (
    Suite("bench.gpu.suite_copy"),
    Suite("bench.gpu.suite_codec"),
    Suite("bench.gpu.suite_gate"),
    Suite("bench.gpu.suite_pause_memop"),
    Suite("bench.gpu.suite_pause_kernel"),
    Suite("bench.gpu.suite_parked"),
    Suite("bench.gpu.suite_end_to_end", limit_s=150.0),
    Suite("bench.gpu.suite_abort"),
    Suite("bench.gpu.suite_confine"),
    Suite("bench.gpu.suite_two_processes", limit_s=60.0),
    Suite("bench.gpu.suite_persistent"),
    Suite("bench.gpu.suite_mps", limit_s=60.0),
    Suite("bench.gpu.suite_codec_large", limit_s=60.0),
    Suite("bench.gpu.suite_pause_host"),
    Suite("bench.gpu.suite_memory"),
    Suite("bench.gpu.suite_weights"),
    Suite("bench.gpu.suite_leases"),
    Suite("bench.gpu.suite_attention"),
    Suite("bench.gpu.suite_triton", limit_s=60.0),  # it compiles for some of that time
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_MENDABLE, f"gpu: {message}\n")


def parse(arguments: Sequence[str]) -> Path:
    """Return the folder that everything is written to."""
    parser = Parser(prog="make gpu", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="folder of the results")
    out: Path = parser.parse_args(arguments).out
    if not str(out).strip() or (out.exists() and not out.is_dir()):
        parser.error(f"cannot write into '{out}': name a folder, as in OUT=gpu-results")
    # The children run in the root of the checkout.
    return out.absolute()


def card() -> dict[str, object] | str:
    """Return what is known of the GPU, or why there is none. Asked in a child: it may hang."""
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
    """One run: its parts in order, and the document that grows with them.

    The document is written after every part, so a run that is cut off leaves what it had.
    """

    def __init__(self, out: Path, machine: dict[str, object], deadline: Deadline) -> None:
        self.out = out
        self.deadline = deadline
        self.found = Findings()
        self._machine = machine
        self._commit = commit()

    def document(self) -> dict[str, Any]:
        return {
            "machine": self._machine,
            "commit": self._commit,
            "suite": "gpu",
            "rows": self.found.rows,
            "unmeasured": self.found.unmeasured,
        }

    def add(self, found: Findings) -> None:
        self.found.extend(found)
        for name in LOGS:
            shorten(self.out / name)
        text = json.dumps(self.document(), indent=1) + "\n"
        beside = self.out / "gpu.json.part"
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.out / "gpu.json")

    def all_parts(self, suites: Sequence[Suite], test_files: Sequence[str]) -> None:
        out, deadline = self.out, self.deadline
        # The demo is what all the rest is for: it gets its time, whatever the parts before it take.
        before_demo = deadline if parts.why_no_demo() else deadline.less(parts.DEMO_S)
        say("building")
        if (why := parts.build(out, deadline)) is not None:
            names = [name for one in suites for name in one.promised]
            for rows in (parts.TEST_ROWS, names, parts.DEMO_ROWS, parts.SANITIZER_ROWS):
                self.add(parts.skip_all(rows, why))
            return
        say(f"testing, {len(test_files)} files")
        self.add(parts.tests(out, before_demo, test_files))
        for one in suites:
            say(f"measuring, {one.module}")
            self.add(parts.suite(one, out, before_demo))
        say("running the demo")
        self.add(parts.demo(out, deadline))
        say("running compute-sanitizer")
        self.add(parts.sanitizer(out, deadline))


def say(what: str) -> None:
    print(f"gpu: {what}", file=sys.stderr, flush=True)


def main(
    arguments: Sequence[str],
    *,
    suites: Sequence[Suite] = SUITES,
    test_files: Sequence[str] | None = None,
    total_s: float = TOTAL_S,
) -> int:
    deadline = Deadline(total_s)
    out = parse(arguments)
    gpu = card()
    if isinstance(gpu, str):
        print(f"gpu: no GPU: {gpu}", file=sys.stderr)
        return EXIT_MENDABLE
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in ("gpu.json", "demo.json", *LOGS):
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        print(f"gpu: cannot write into {out}: {error.strerror}", file=sys.stderr)
        return EXIT_MENDABLE
    run = Run(out, machine_card() | gpu, deadline)
    run.all_parts(suites, parts.files_of_tests() if test_files is None else test_files)
    # A log has no width of its own.
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    console.print(table_of(run.document(), run.found.tests))
    wrong = faults(run.document())
    for one in wrong:
        print(f"gpu: {one}", file=sys.stderr)
    return 0 if run.found.is_complete and not wrong else EXIT_FAILED


def _terminate(_signal: int, _frame: object) -> NoReturn:
    # As an exception, so that the child is stopped on the way out.
    sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
