"""The files of a comparison: `compare.json`, and a page that needs nothing else."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rose.cli.compare_table import HEADERS, load_title, scheme_rows, sweep_rows
from rose.errors import InvalidArgument, Unavailable
from rose.whole_file import write_whole


def write_comparison(report: Mapping[str, Any], out_dir: Path) -> None:
    """Write `compare.json` and `compare.html` into `out_dir`, which is made if it is not there.

    Each file appears whole or not at all. The JSON comes first: it needs no optional package.

    Raises:
        InvalidArgument: `out_dir` cannot be written.
        Unavailable: matplotlib or jinja2 is not installed, so there is no HTML.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report, ensure_ascii=False, allow_nan=False)
        write_whole(out_dir / "compare.json", f"{text}\n".encode())
        write_whole(out_dir / "compare.html", render_comparison(report).encode())
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the comparison to {out_dir}: {error.strerror or error}; "
            f"name a folder that can be written"
        ) from None


def render_comparison(report: Mapping[str, Any]) -> str:
    """Return one page: no script, no style sheet, no image, no font from elsewhere.

    Raises:
        Unavailable: matplotlib or jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined  # noqa: PLC0415
        from markupsafe import Markup  # noqa: PLC0415

        from rose.cli.compare_plots import draw_bars, draw_prices, draw_sweep  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"compare.html needs {error.name}, which is not installed; "
            f"install rose-rl[demo] (compare.json is written without it)"
        ) from None
    template = resources.files("rose.cli").joinpath("compare.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    loads = report["loads"]
    return environment.from_string(template).render(
        report=report,
        headers=HEADERS,
        loads=[
            {
                "title": load_title(at),
                "rows": list(zip(at["schemes"], scheme_rows(report, at), strict=True)),
                "bars": Markup(draw_bars(report, at)),
                "prices": Markup(draw_prices(report, at)),
            }
            for at in reversed(loads)
        ],
        sweep=Markup(draw_sweep(report) if len(loads) > 1 else ""),
        sweep_headers=("scheme", *(f"{at['load']:g}" for at in loads)),
        sweep_rows=sweep_rows(report),
    )
