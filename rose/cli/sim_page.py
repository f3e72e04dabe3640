"""The files of a study: `sim.json`, and a page that needs nothing else."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rose.cli.report_numbers import plain
from rose.cli.sim_table import (
    HEADERS,
    VALIDATION_HEADERS,
    arm_rows,
    validation_rows,
    warnings_of,
)
from rose.errors import InvalidArgument, Unavailable
from rose.whole_file import write_whole


def write_study(report: Mapping[str, Any], out_dir: Path) -> None:
    """Write `sim.json` and `sim.html` into `out_dir`, which is made if it is not there.

    Each file appears whole or not at all. The JSON comes first: it needs no optional package.

    Raises:
        InvalidArgument: `out_dir` cannot be written.
        Unavailable: matplotlib or jinja2 is not installed, so there is no HTML.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(plain(report), ensure_ascii=False, allow_nan=False)
        write_whole(out_dir / "sim.json", f"{text}\n".encode())
        write_whole(out_dir / "sim.html", render_study(report).encode())
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the study to {out_dir}: {error.strerror or error}; "
            f"name a folder that can be written"
        ) from None


def render_study(report: Mapping[str, Any]) -> str:
    """Return one page: no script, no style sheet, no image, no font from elsewhere.

    Raises:
        Unavailable: matplotlib or jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined  # noqa: PLC0415
        from markupsafe import Markup  # noqa: PLC0415

        from rose.cli.sim_plots import draw_arms, draw_costs  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"sim.html needs {error.name}, which is not installed; "
            f"install rose-rl[demo] (sim.json is written without it)"
        ) from None
    template = resources.files("rose.cli").joinpath("sim.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(
        report=report,
        headers=HEADERS,
        validation_headers=VALIDATION_HEADERS,
        validation=validation_rows(report["validation"]),
        warnings=warnings_of(report),
        scenarios=[
            {
                "scenario": one,
                "rows": list(zip(one["arms"], _narrow(arm_rows(one)), strict=True)),
                "arms": Markup(draw_arms(one)),
                "costs": Markup(draw_costs(one) if _has_costs(one) else ""),
            }
            for one in report["scenarios"]
        ],
    )


def _narrow(rows: list[list[str]]) -> list[list[str]]:
    """Return the cells with intervals below what they are of, so that a page is wide enough."""
    return [[cell.replace(" (", "\n(") for cell in row] for row in rows]


def _has_costs(scenario: Mapping[str, Any]) -> bool:
    return any(arm["cost"] is not None for arm in scenario["arms"].values())
