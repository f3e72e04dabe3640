"""The page of `rose delta inspect`: tables and figures that need nothing else."""

from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from rose.checkpoints.inspection import Inspection
from rose.cli.delta_plots import draw_codecs, draw_density, draw_exponents, draw_steps
from rose.cli.delta_report import (
    GIGABITS_PER_S,
    codecs,
    kinds,
    summary,
    tensor_row,
    uncompared,
)

_TENSORS_OPEN = 24
"""A table of more tensors than this starts folded."""


def render_page(inspection: Inspection, old: Path, new: Path) -> bytes:
    """Return the page: no script, no style sheet, no image, no font from elsewhere."""
    template = resources.files("rose.cli").joinpath("delta.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    changing = {dtype: one for dtype, one in inspection.counts.items() if one.changed}
    page = environment.from_string(template).render(
        old=str(old),
        new=str(new),
        summary=summary(inspection),
        uncompared=uncompared(inspection),
        rates=GIGABITS_PER_S,
        codecs=codecs(inspection),
        kinds=kinds(inspection),
        tensors=[(*tensor_row(one), one.kind, one.dtype) for one in inspection.tensors],
        tensors_open=_TENSORS_OPEN,
        codec_plot=Markup(draw_codecs(inspection) if inspection.changed else ""),
        density_plot=Markup(draw_density(inspection)),
        dtypes=[
            (
                dtype,
                Markup(draw_steps(dtype, one)),
                Markup(draw_exponents(dtype, one) if one.has_exponents else ""),
            )
            for dtype, one in changing.items()
        ],
    )
    return page.encode(errors="replace")
