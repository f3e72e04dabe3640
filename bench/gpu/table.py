"""The table of `make gpu`: every row, unmeasured rows with reasons, and failed tests."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from rich.table import Table
from rich.text import Text

from bench.rows import void_reason

COLUMNS: Final = ("name", "value", "unit", "bar", "peer", "ok")


def table_of(document: Mapping[str, Any], tests: Sequence[tuple[str, str, str]]) -> Table:
    """Return the table of a document and of the tests that did not pass."""
    machine = document["machine"]
    table = Table(
        title=f"{document['suite']} at {document['commit'] or 'no commit'}",
        caption=Text(
            f"{machine.get('gpu', 'unknown GPU')}, driver {machine.get('driver', '?')}, "
            f"CUDA {machine.get('cuda', '?')}, torch {machine['torch']}, {machine['cpu']}"
        ),
    )
    for name in COLUMNS:
        side: Literal["left", "right"] = "right" if name == "value" else "left"
        table.add_column(name, justify=side, overflow="fold")
    for row in document["rows"]:
        table.add_row(*_cells(row, document["rows"]))
    for one in document.get("unmeasured", ()):
        table.add_row(
            one["name"], "", "", "", Text(one["reason"]), Text("not measured", style="yellow")
        )
    for test, outcome, why in tests:
        style = "red" if outcome == "failed" else "yellow"
        table.add_row(Text(test), "", "", "", Text(why), Text(outcome, style=style))
    return table


def _cells(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str | Text]:
    peer, bar = row["peer"], row["bar"] or {}
    return [
        row["name"],
        f"{row['value']:.4g}",
        row["unit"],
        ", ".join(f"{side.replace('_', ' ')} {value:.4g}" for side, value in bar.items()),
        Text(f"{peer['name']}: {peer['value']:.4g} {peer['unit']}" if peer else ""),
        _verdict(row, rows),
    ]


def _verdict(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Text:
    if (void := void_reason(row, rows)) is not None:
        return Text(void)
    if row["ok"] is None:
        return Text()
    return Text("yes", style="green") if row["ok"] else Text("no", style="red")
