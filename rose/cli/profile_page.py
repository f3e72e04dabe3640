"""The files of a profile: `profile.json`, and a page that needs nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rose.cli.pages import filled_page, write_pages
from rose.cli.profile_table import HEADERS, profile_rows, sentences


def write_profile(report: Mapping[str, Any], out_dir: Path) -> None:
    """Write `profile.json` and `profile.html` into `out_dir`; see `write_pages`."""
    write_pages(report, out_dir, name="profile", what="profile", render=render_profile)


def render_profile(report: Mapping[str, Any]) -> str:
    """Return one page: no script, no style sheet, no image, no font from elsewhere.

    Raises:
        Unavailable: matplotlib or jinja2 is not installed.
    """
    return filled_page("profile", lambda: _values(report))


def _values(report: Mapping[str, Any]) -> dict[str, Any]:
    from markupsafe import Markup  # noqa: PLC0415

    from rose.cli.profile_plots import draw_pool, draw_rows, draw_tails  # noqa: PLC0415

    return {
        "report": report,
        "sentences": sentences(report),
        "headers": HEADERS,
        "rows": profile_rows(report),
        "bars": Markup(draw_rows(report)),
        "pool": Markup(draw_pool(report)),
        "tails": Markup(draw_tails(report)),
    }
