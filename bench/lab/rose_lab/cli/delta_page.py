"""The self-contained HTML page of `rose delta inspect`."""

from importlib import resources
from pathlib import Path
from typing import Final

import matplotlib as mpl
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rose_lab.checkpoints.inspection import DENSE, GAP, STRAT, Inspection
from rose_lab.cli.delta_report import (
    BOUND_NAMES,
    CODEC_NAMES,
    GIGABITS_PER_S,
    codecs,
    kinds,
    steps,
    summary,
    tensor_row,
    uncompared,
)
from rose_lab.plot_style import (
    NOBODY,
    ROLLOUTS,
    SERVING,
    STYLE,
    WARNING,
    as_svg,
    legend,
)

_TENSORS_OPEN = 24
"""A table with more tensors than this starts folded."""


def render_page(inspection: Inspection, old: Path, new: Path) -> bytes:
    """Return a self-contained page: no external script, style sheet, image or font."""
    template = resources.files("rose_lab.cli").joinpath("delta.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
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
        dtypes=steps(inspection),
    )
    return page.encode(errors="replace")


_BOUND_LINES: Final = {"iid": (SERVING, ":"), "class": (WARNING, "--")}
_WIDTH: Final = 9.6


def draw_codecs(inspection: Inspection) -> str:
    """Return an SVG of bytes per change under each codec, with the entropy bounds."""
    nbytes = inspection.nbytes()
    shown = [codec for codec in nbytes if codec != DENSE]
    per_change = [nbytes[codec] / inspection.changed for codec in shown]
    with mpl.rc_context({**STYLE, "svg.hashsalt": "codecs"}):
        figure = Figure(figsize=(_WIDTH, 0.9 + 0.45 * len(shown)), layout="constrained")
        axis = figure.subplots()
        colours = [ROLLOUTS if codec in {GAP, STRAT} else NOBODY for codec in shown]
        names = [CODEC_NAMES[codec] for codec in shown]
        bars = axis.barh(names, per_change, color=colours, alpha=0.8, height=0.62)
        axis.bar_label(bars, [f"{one:.2f} B" for one in per_change], padding=4)
        lines = []
        for bound, size in inspection.bounds().items():
            colour, style = _BOUND_LINES[bound]
            value = size / inspection.changed
            axis.axvline(value, color=colour, linestyle=style, linewidth=1.6)
            label = f"{BOUND_NAMES[bound]}: {value:.2f} B"
            lines.append(Line2D([], [], color=colour, linestyle=style, label=label))
        axis.set(title="Bytes per change", xlabel="bytes per changed element")
        axis.set_xlim(0, 1.12 * max(per_change))
        axis.invert_yaxis()
        axis.tick_params(axis="y", length=0)
        legend(axis, lines)
        return as_svg(figure)
