"""Reports as files: JSON, and one page that needs nothing else."""

import json
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rose.errors import InvalidArgument, Unavailable
from rose.whole_file import write_output


def write_pages(
    report: Mapping[str, Any],
    out_dir: Path,
    *,
    name: str,
    what: str,
    render: Callable[[Mapping[str, Any]], str],
) -> None:
    """Write `NAME.json` and `NAME.html` into `out_dir`, which is made if it is not there.

    Each file appears whole or not at all. The JSON comes first: it needs no optional package.

    Args:
        report: what strict JSON can hold.
        out_dir: where to.
        name: of the files.
        what: the sentence of an error calls it.
        render: makes the page.

    Raises:
        InvalidArgument: `out_dir` cannot be written.
        Unavailable: as `render` raises.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write the {what} to {out_dir}: {error.strerror or error}; "
            f"name a folder that can be written"
        ) from None
    text = json.dumps(report, allow_nan=False)
    write_output(out_dir / f"{name}.json", f"{text}\n".encode())
    write_output(out_dir / f"{name}.html", render(report).encode(errors="replace"))


def filled_page(name: str, values: Callable[[], Mapping[str, Any]]) -> str:
    """Return one page: no script, no style sheet, no image, no font from elsewhere.

    Args:
        name: of its template, and of its files.
        values: makes what the template shows; it may import what draws.

    Raises:
        Unavailable: matplotlib or jinja2 is not installed.
    """
    template = resources.files("rose.cli").joinpath(f"{name}.html.j2").read_text(encoding="utf-8")
    try:
        from jinja2 import Environment, StrictUndefined  # noqa: PLC0415

        shown = values()
    except ImportError as error:
        raise Unavailable(
            f"{name}.html needs {error.name}, which is not installed; "
            f"install rose-rl[demo] ({name}.json is written without it)"
        ) from None
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(**shown)
