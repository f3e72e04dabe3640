"""Run one benchmark suite: a JSON document with each row as it is measured, and a table of the
bars.

Rows and progress are printed to stderr, the table to stdout. The exit status is 1 if a benchmark
fails, or with --strict if a bar is missed; 2 for an error of the user, or for a suite that exceeds
its time limit; otherwise 0. The finished rows stay in the document, whatever ends the run.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
# Replaces this folder on the path: its files must not be importable by their bare names.
sys.path[0] = str(ROOT)

import psutil  # noqa: E402
import pytest  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.document import NOT_REACHED, UNFINISHED  # noqa: E402
from bench.rows import CONTROL, bar_of, faults, figure_of, void_reason  # noqa: E402
from bench.suites import files_of, suites  # noqa: E402
from bench.usage import EXIT_MENDABLE, Parser  # noqa: E402
from rose.whole_file import write_whole  # noqa: E402
from rose_lab.machine import commit, machine_card  # noqa: E402

LOG_WIDTH: Final = 140

# Time limits of a suite: ten times the longest on two quiet cores, so that only a benchmark
# that hangs exceeds them. With --full the engines of the frontier run for two hours.
LIMIT_S: Final = 3600.0
FULL_LIMIT_S: Final = 8 * 3600.0
_STOP_S: Final = 30.0  # for the fixtures of an interrupted benchmark to stop their processes

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser("bench", prog="bench/run.py", description=__doc__)
    parser.add_argument("--suite", required=True, help=", ".join(suites()))
    parser.add_argument("--json", required=True, type=Path, help="file of the document")
    parser.add_argument("--quick", action="store_true", help="few rounds: the figures mean little")
    parser.add_argument("--full", action="store_true", help="all rounds and all benchmarks")
    parser.add_argument("--only", help="expression of pytest -k that selects benchmarks")
    parser.add_argument("--strict", action="store_true", help="status 1 when a bar is missed")
    options = parser.parse_args(arguments)
    if options.suite not in suites():
        parser.error(f"there is no suite '{options.suite}': choose one of {', '.join(suites())}")
    if options.json.is_dir() or not options.json.absolute().parent.is_dir():
        parser.error(f"cannot write {options.json}: name a file in a folder that exists")
    return options


def measure(
    files: Sequence[str], document: Path, further: Sequence[str], *, limit_s: float
) -> int | None:
    """Run the benchmarks of `files`, which write the document.

    Returns:
        The status of pytest; None if the benchmarks had not ended after `limit_s`.
    """
    command = [
        *(sys.executable, "-m", "pytest", *files, "-v", "-s", "--no-header"),
        *("-p", "no:cacheprovider", "-o", "timeout=0", "--durations=5"),
        *(
            "-W",
            "ignore:Benchmark fixture was not used",
            "--benchmark-quiet",
            "--benchmark-disable-gc",
        ),
        f"--document={document}",
        *further,
    ]
    # Only the table goes to stdout.
    with subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr) as running:
        family = [psutil.Process(running.pid)]
        try:
            return running.wait(limit_s)
        except subprocess.TimeoutExpired:
            family += family[0].children(recursive=True)
            running.send_signal(signal.SIGINT)
            return None
        finally:
            # Here after an interrupt from the keyboard, too, which the benchmarks got as well.
            with suppress(subprocess.TimeoutExpired):
                running.wait(_STOP_S)
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def unfinished(document: dict[str, Any]) -> str:
    """Return the benchmark that ran when the run ended, and its last row."""
    names = [one["name"] for one in document.get("unmeasured", []) if one["reason"] == UNFINISHED]
    rows = [row["name"] for row in document["rows"]][-1:]
    where = names[0].rpartition("::")[2] if names else "its first import"
    return f"{where}, after the row {rows[0]}" if rows else f"{where}, before its first row"


def table_of(document: dict[str, Any]) -> Table:
    """Return the bars; all other rows were printed when they were measured."""
    machine = document["machine"]
    title = f"bars of {document['suite']} at {document['commit'] or 'no commit'}"
    caption = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    table = Table(title=title, caption=caption)
    for name in ("bar", "figure", "limit", "peer", "holds"):
        table.add_column(name, overflow="fold")
    for row in document["rows"]:
        if row["bar"] is None or row["name"].startswith(CONTROL):
            continue
        peer = row["peer"]
        table.add_row(
            row["name"],
            figure_of(row),
            bar_of(row),
            f"{peer['name']}: {peer['value']:.4g} {peer['unit']}" if peer else "",
            void_reason(row, document["rows"]) or judged(row["ok"]),
        )
    return table


def judged(ok: bool | None) -> str:
    return "void" if ok is None else "[green]yes[/]" if ok else "[red]no[/]"


def summary_of(document: dict[str, Any]) -> list[str]:
    """Return the result of the bars, and a line per reason for unmeasured rows."""
    bars = [row for row in document["rows"] if row["bar"] and not row["name"].startswith(CONTROL)]
    missed = [row["name"] for row in bars if row["ok"] is False]
    void = [row["name"] for row in bars if row["ok"] is None]
    holding = len(bars) - len(missed) - len(void)
    lines = [
        f"{holding} of {len(bars)} bars hold"
        + (f"; missed: {', '.join(missed)}" if missed else "")
        + (f"; void: {', '.join(void)}" if void else "")
    ]
    reasons: dict[str, list[str]] = {}
    for one in document.get("unmeasured", []):
        reasons.setdefault(one["reason"], []).append(one["name"].rpartition("::")[2])
    return lines + [f"unmeasured, {why}: {', '.join(names)}" for why, names in reasons.items()]


def begin(suite: str) -> dict[str, Any]:
    """Return the document before the first measurement."""
    missing = [{"name": file, "reason": NOT_REACHED} for file in files_of(suite)]
    return {
        "machine": machine_card(),
        "commit": commit(),
        "suite": suite,
        "rows": [],
        "unmeasured": missing,
    }


def verdict(
    options: argparse.Namespace, status: int | None, document: dict[str, Any], limit_s: float
) -> tuple[str, int]:
    """Return what is wrong with a run, and the exit status for that; an empty string if nothing."""
    suite = f"suite '{options.suite}'"
    if status is None:
        late = f"{suite} had not ended after its limit of {limit_s:g} s"
        return f"{late}: it was in {unfinished(document)}", EXIT_MENDABLE
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        return f"{suite} has no benchmark that '{options.only}' selects", EXIT_MENDABLE
    if status != 0:
        return f"{suite} failed", EXIT_FAILED
    return next(iter(faults(document)), ""), EXIT_FAILED


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    path = options.json.absolute()
    write_whole(path, json.dumps(begin(options.suite), indent=1).encode() + b"\n")
    further = [f"--{name}" for name in ("quick", "full") if getattr(options, name)]
    kinds = "not gpu" if options.full else "not gpu and not slow"
    chosen = ["-k", options.only] if options.only else []
    status = measure(
        files_of(options.suite),
        path,
        ["-m", kinds, *further, *chosen],
        limit_s=(limit_s := FULL_LIMIT_S if options.full else LIMIT_S),
    )
    document = json.loads(path.read_text(encoding="utf-8"))
    # A log file has no terminal width.
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH, highlight=False)
    console.print(table_of(document))
    for line in summary_of(document):
        console.print(line, markup=False)
    fault, code = verdict(options, status, document, limit_s)
    if fault:
        print(f"bench: {fault}; the rows that were measured are in {options.json}", file=sys.stderr)
        return code
    is_missed = any(row["ok"] is False for row in document["rows"])
    return EXIT_FAILED if options.strict and is_missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
