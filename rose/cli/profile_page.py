"""The files of a profile: `profile.json`, and a page that needs nothing else."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rose.cli.profile_table import HEADERS, profile_rows, sentences
from rose.errors import InvalidArgument, Unavailable
from rose.whole_file import write_whole


def write_profile(report: Mapping[str, Any], out_dir: Path) -> None:
    """Write `profile.json` and `profile.html` into `out_dir`, which is made if it is not there.

    Each file appears whole or not at all. The JSON comes first: it needs no optional package.

    Raises:
        InvalidArgument: `out_dir` cannot be written.
        Unavailable: matplotlib or jinja2 is not installed, so there is no HTML.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report, ensure_ascii=False, allow_nan=False)
        write_whole(out_dir / "profile.json", f"{text}\n".encode())
        write_whole(out_dir / "profile.html", render_profile(report).encode(errors="replace"))
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the profile to {out_dir}: {error.strerror or error}; "
            f"name a folder that can be written"
        ) from None


def render_profile(report: Mapping[str, Any]) -> str:
    """Return one page: no script, no style sheet, no image, no font from elsewhere.

    Raises:
        Unavailable: matplotlib or jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined  # noqa: PLC0415
        from markupsafe import Markup  # noqa: PLC0415

        from rose.cli.profile_plots import draw_pool, draw_rows, draw_tails  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            f"profile.html needs {error.name}, which is not installed; "
            f"install rose-rl[demo] (profile.json is written without it)"
        ) from None
    template = resources.files("rose.cli").joinpath("profile.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(
        report=report,
        sentences=sentences(report),
        headers=HEADERS,
        rows=profile_rows(report),
        bars=Markup(draw_rows(report)),
        pool=Markup(draw_pool(report)),
        tails=Markup(draw_tails(report)),
    )
