"""The files of a study: `sim.json`, and a page that needs nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rose.cli.pages import filled_page, write_pages
from rose.cli.sim_table import (
    HEADERS,
    VALIDATION_HEADERS,
    arm_rows,
    validation_rows,
    warnings_of,
)
from rose.demo.numbers import plain


def write_study(report: Mapping[str, Any], out_dir: Path) -> None:
    """Write `sim.json` and `sim.html` into `out_dir`; see `write_pages`."""
    write_pages(plain(report), out_dir, name="sim", what="study", render=render_study)


def render_study(report: Mapping[str, Any]) -> str:
    """Return one page: no script, no style sheet, no image, no font from elsewhere.

    Raises:
        Unavailable: matplotlib or jinja2 is not installed.
    """
    return filled_page("sim", lambda: _values(report))


def _values(report: Mapping[str, Any]) -> dict[str, Any]:
    from markupsafe import Markup  # noqa: PLC0415

    from rose.cli.sim_plots import draw_arms, draw_costs  # noqa: PLC0415

    return {
        "report": report,
        "headers": HEADERS,
        "validation_headers": VALIDATION_HEADERS,
        "validation": validation_rows(report["validation"]),
        "warnings": warnings_of(report),
        "scenarios": [
            {
                "scenario": one,
                "rows": list(zip(one["arms"], _narrow(arm_rows(one)), strict=True)),
                "arms": Markup(draw_arms(one)),
                "costs": Markup(draw_costs(one) if _has_costs(one) else ""),
            }
            for one in report["scenarios"]
        ],
    }


def _narrow(rows: list[list[str]]) -> list[list[str]]:
    """Return the cells with intervals below what they are of, so that a page is wide enough."""
    return [[cell.replace(" (", "\n(") for cell in row] for row in rows]


def _has_costs(scenario: Mapping[str, Any]) -> bool:
    return any(arm["cost"] is not None for arm in scenario["arms"].values())
