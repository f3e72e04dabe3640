"""From the record of a run to what the user sees: one table, `report.json`, `report.html`."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from rose.cli.record import RunRecord
from rose.cli.report_summary import summarise
from rose.cli.whole_file import write_whole
from rose.errors import InvalidArgument, Unavailable

__all__ = ["print_table", "summarise", "write_report"]

ARM_NAMES: Final = {
    "alone": "alone",
    "alone_again": "alone again",
    "share_all": "share all",
    "rose": "rose",
}
_HEADERS: Final = (
    "req.",
    "TTFT ms\np50/p90/p99",
    "TPOT ms\np50/p90/p99",
    "x alone\nTTFT/TPOT",
    "SLO\nmet",
    "busy",
    "rollout\ntokens/s",
    "harvest",
)
_TABLE_COLUMNS: Final = 100
_NO_NUMBER: Final = "-"


def print_table(report: Mapping[str, Any], console: Console) -> None:
    """Print the arms as rows, then the verdict; it takes at most 100 columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("arm", no_wrap=True)
    for header in _HEADERS:
        table.add_column(header, justify="right", no_wrap=True)
    for row in arm_rows(report):
        table.add_row(*row)
    # A console without a terminal says 80: the table is then wider rather than cut.
    options = console.options.update_width(max(console.width, _TABLE_COLUMNS))
    console.print(Segments(console.render(table, options)), soft_wrap=True)
    verdict = report["verdict"]
    missed = any(check["ok"] is False for check in verdict["checks"])
    style = "bold red" if verdict["void"] else "bold yellow" if missed else "bold"
    console.print(Text(verdict["sentence"], style=style))


def write_report(record: RunRecord, out_dir: str | Path) -> None:
    """Write `report.json` and `report.html` into `out_dir`, which is made if it is not there.

    Each file appears whole or not at all. The JSON comes first: it needs no optional package.

    Raises:
        InvalidArgument: `out_dir` is not a directory, or cannot be written.
        Unavailable: matplotlib or jinja2 is not installed, so there is no HTML.
    """
    out_dir = Path(out_dir)
    report = summarise(record)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
        write_whole(out_dir / "report.json", f"{text}\n".encode())
        write_whole(out_dir / "report.html", render_html(record, report).encode())
    except (FileExistsError, NotADirectoryError):
        raise InvalidArgument(
            f"cannot write the report to {out_dir}, because there is a file of that name; "
            f"name a directory"
        ) from None
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the report to {out_dir}: {error.strerror or error}; "
            f"name a directory that can be written"
        ) from None


def render_html(record: RunRecord, report: Mapping[str, Any]) -> str:
    """Return one page that needs nothing else: no script, no style sheet, no image, no font.

    Raises:
        Unavailable: matplotlib or jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined  # noqa: PLC0415
        from markupsafe import Markup  # noqa: PLC0415

        from rose.cli.report_plots import draw_latencies, draw_timeline  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"report.html needs {error.name}, which is not installed; "
            f"install rose-rl[demo] (report.json is written without it)"
        ) from None
    template = resources.files("rose.cli").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(
        report=report,
        headers=["arm", *_HEADERS],
        rows=arm_rows(report),
        number=_number,
        latencies=Markup(draw_latencies(record)),
        timeline=Markup(draw_timeline(record.timeline)),
    )


def arm_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of each arm, under "arm" and `_HEADERS`."""
    ratios = report["ratios"]
    of_arm = {
        "alone_again": ratios["aa"],
        "share_all": ratios["share_all"],
        "rose": ratios["rose"],
    }
    rows = []
    for arm, name in ARM_NAMES.items():
        numbers = report["arms"][arm]
        ratio = of_arm.get(arm)
        rows.append(
            [
                name,
                str(numbers["requests"]),
                "/".join(_number(numbers[f"ttft_ms_p{p}"]) for p in (50, 90, 99)),
                "/".join(_number(numbers[f"tpot_ms_p{p}"]) for p in (50, 90, 99)),
                "" if ratio is None else f"{_fixed(ratio['ttft_p50'])}/{_fixed(ratio['tpot_p50'])}",
                _percent(numbers["slo_attainment"]),
                _percent(numbers["busy_share"]),
                _number(numbers["rollout_tokens_per_s"]),
                _percent(numbers["harvested_share"]),
            ]
        )
    return rows


def _number(value: float | None) -> str:
    """Write three digits, which is what such measurements carry; counts are written whole."""
    if value is None:
        return _NO_NUMBER
    is_whole = isinstance(value, int) or value == 0 or abs(value) >= 100
    return f"{value:.0f}" if is_whole else f"{value:#.3g}".rstrip(".")


def _fixed(value: float | None) -> str:
    return _NO_NUMBER if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return _NO_NUMBER if share is None else f"{100 * share:.0f} %"
