"""The files of a comparison: `compare.json`, and a page that needs nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rose.cli.compare_table import HEADERS, load_title, scheme_rows, sweep_rows
from rose.cli.pages import filled_page, write_pages


def write_comparison(report: Mapping[str, Any], out_dir: Path) -> None:
    """Write `compare.json` and `compare.html` into `out_dir`; see `write_pages`."""
    write_pages(report, out_dir, name="compare", what="comparison", render=render_comparison)


def render_comparison(report: Mapping[str, Any]) -> str:
    """Return one page: no script, no style sheet, no image, no font from elsewhere.

    Raises:
        Unavailable: matplotlib or jinja2 is not installed.
    """
    return filled_page("compare", lambda: _values(report))


def _values(report: Mapping[str, Any]) -> dict[str, Any]:
    from markupsafe import Markup  # noqa: PLC0415

    from rose.cli.compare_plots import draw_bars, draw_prices, draw_sweep  # noqa: PLC0415

    loads = report["loads"]
    return {
        "report": report,
        "headers": HEADERS,
        "loads": [
            {
                "title": load_title(at),
                "rows": list(zip(at["schemes"], scheme_rows(report, at), strict=True)),
                "bars": Markup(draw_bars(report, at)),
                "prices": Markup(draw_prices(report, at)),
            }
            for at in reversed(loads)
        ],
        "sweep": Markup(draw_sweep(report) if len(loads) > 1 else ""),
        "sweep_headers": ("scheme", *(f"{at['load']:g}" for at in loads)),
        "sweep_rows": sweep_rows(report),
    }
