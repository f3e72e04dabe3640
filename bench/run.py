"""Run one benchmark suite: a table for people, a JSON document for everything else.

Status 0 also when a bar is missed (1 with --strict), 1 when a benchmark fails, 2 for a mistake
that the user can mend.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

ROOT: Final = Path(__file__).resolve().parent.parent
# In the place of this folder, whose file names mean nothing to the outside.
sys.path[0] = str(ROOT)

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.rows import faults, void_reason  # noqa: E402
from bench.suites import files_of, suites  # noqa: E402
from bench.usage import Parser  # noqa: E402
from rose.cli.machine import commit, machine_card  # noqa: E402

LOG_WIDTH: Final = 140

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser("bench", prog="bench/run.py", description=__doc__)
    parser.add_argument("--suite", required=True, help=", ".join(suites()))
    parser.add_argument("--json", required=True, type=Path, help="where the document goes")
    parser.add_argument("--quick", action="store_true", help="few rounds: the figures mean little")
    parser.add_argument("--strict", action="store_true", help="status 1 when a bar is missed")
    options = parser.parse_args(arguments)
    if options.suite not in suites():
        parser.error(f"there is no suite '{options.suite}': choose one of {', '.join(suites())}")
    if options.json.is_dir() or not options.json.absolute().parent.is_dir():
        parser.error(f"cannot write {options.json}: name a file in a folder that exists")
    return options


def measure(suite: str, *, is_quick: bool) -> list[dict[str, Any]] | None:
    """Return what the benchmarks of a suite have to say, or None when one failed."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "benchmark.json"
        command = [
            *(sys.executable, "-m", "pytest", *files_of(suite), "-q", "-m", "not gpu"),
            *("-p", "no:cacheprovider", "-o", "timeout=0"),
            *("--benchmark-quiet", "--benchmark-disable-gc", f"--benchmark-json={raw}"),
            *(["--quick"] if is_quick else []),
        ]
        # The table alone goes to stdout.
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode != 0:
            return None
        benchmarks = json.loads(raw.read_text(encoding="utf-8"))["benchmarks"]
    return [benchmark["extra_info"] for benchmark in benchmarks]


def table_of(document: dict[str, Any]) -> Table:
    machine = document["machine"]
    title = f"{document['suite']} at {document['commit'] or 'no commit'}"
    caption = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    table = Table(title=title, caption=caption)
    for name in ("name", "value", "unit", "bar", "peer", "ok"):
        side: Literal["left", "right"] = "right" if name == "value" else "left"
        table.add_column(name, justify=side, overflow="fold")
    for row in document["rows"]:
        peer, bar = row["peer"], row["bar"] or {}
        table.add_row(
            row["name"],
            f"{row['value']:.4g}",
            row["unit"],
            ", ".join(f"{side.replace('_', ' ')} {value:.4g}" for side, value in bar.items()),
            f"{peer['name']}: {peer['value']:.4g} {peer['unit']}" if peer else "",
            void_reason(row, document["rows"]) or judged(row["ok"]),
        )
    return table


def judged(ok: bool | None) -> str:
    return "" if ok is None else "[green]yes[/]" if ok else "[red]no[/]"


def document_from(suite: str, said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document of what the benchmarks said."""
    document = {
        "machine": machine_card(),
        "commit": commit(),
        "suite": suite,
        "rows": [row for one in said for row in one["rows"]],
    }
    if unmeasured := [missing for one in said for missing in one["unmeasured"]]:
        document["unmeasured"] = unmeasured
    return document


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    said = measure(options.suite, is_quick=options.quick)
    if said is None:
        print(f"bench: suite '{options.suite}' failed, nothing was written", file=sys.stderr)
        return EXIT_FAILED
    document = document_from(options.suite, said)
    if wrong := faults(document):
        print(f"bench: {wrong[0]}, nothing was written", file=sys.stderr)
        return EXIT_FAILED
    options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    # A log has no width of its own.
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    console.print(table_of(document))
    for missing in document.get("unmeasured", []):
        console.print(f"{missing['name']} is unmeasured: {missing['reason']}")
    is_missed = any(row["ok"] is False for row in document["rows"])
    return EXIT_FAILED if options.strict and is_missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
