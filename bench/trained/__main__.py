"""Make the versions if they are missing, print the density of their steps, and write the log."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.rows import rounded
from bench.trained.store import TrainedSteps, trained_steps
from rose_lab.machine import commit, machine_card

_KINDS = ("embed", "attn", "mlp", "norm", "head")


def document_of(trained: TrainedSteps) -> dict[str, Any]:
    """Return all information about the versions, as one JSON document."""
    return {
        "machine": machine_card(),
        "commit": commit(),
        "settings": trained.settings.as_json(),
        **trained.log,
    }


def table_of(document: dict[str, Any]) -> Table:
    """Return a table of the points, and of every run's steps with the mean of the last steps."""
    table = Table(title="steps of a trained model")
    for name in ("steps", "changed %", *_KINDS, "±1 ULP %", "bound i.i.d. B", "given exponent B"):
        table.add_column(name, justify="right")
    for run in document["runs"]:
        steps = run["steps"]
        for title, some in (("first", steps[:1]), ("last 5", steps[-5:])):
            table.add_row(f"lr {run['lr']:g}, {title}", *_cells(some))
    for name, point in document["points"].items():
        table.add_row(f"point {name}", *_cells([point]))
    return table


def _cells(steps: list[dict[str, Any]]) -> list[str]:
    def mean(*path: str) -> float:
        return sum(_at(step, *path) for step in steps) / len(steps)

    return [
        f"{100 * mean('density'):.3f}",
        *(f"{100 * mean('density_by_kind', kind):.2f}" for kind in _KINDS),
        f"{100 * mean('ulp', '1'):.1f}",
        f"{mean('iid_entropy_bytes'):.3f}",
        f"{mean('class_entropy_bytes'):.3f}",
    ]


def _at(step: Any, *path: str) -> float:
    for name in path:
        step = step[name]
    return float(step)


def _rounded(value: Any) -> Any:
    """Round every number to six digits: more are noise."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return rounded(value) if isinstance(value, float) else value


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.trained", description=__doc__)
    parser.add_argument("--json", type=Path, help="where the log goes")
    options = parser.parse_args(arguments)
    document = document_of(trained_steps())
    if options.json is not None:
        options.json.write_text(json.dumps(_rounded(document)) + "\n", encoding="utf-8")
    Console(width=140).print(table_of(document))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
