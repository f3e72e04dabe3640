"""The self-contained HTML page of `rose delta inspect`."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from rose.checkpoints.inspection import DENSE, GAP, KINDS, STRAT, Inspection, TensorChange
from rose.cli.delta_report import (
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
from rose.demo.plot_style import (
    DEDICATED,
    LIMIT,
    NOBODY,
    ROLLOUTS,
    SERVING,
    STYLE,
    WARNING,
    as_svg,
    legend,
)

_TENSORS_OPEN = 24
"""A table with more tensors starts folded."""


def render_page(inspection: Inspection, old: Path, new: Path) -> bytes:
    """Return a self-contained page: no external script, style sheet, image or font."""
    template = resources.files("rose.cli").joinpath("delta.html.j2").read_text(encoding="utf-8")
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
        density_plot=Markup(draw_density(inspection)),
        dtypes=steps(inspection),
    )
    return page.encode(errors="replace")


_KIND_COLOURS: Final = dict(
    zip(KINDS, (DEDICATED, SERVING, ROLLOUTS, LIMIT, WARNING, NOBODY), strict=True)
)
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


def draw_density(inspection: Inspection) -> str:
    """Return an SVG of the density by kind of tensor, and by layer if there are layers."""
    by_layer = {kind: _by_layer(inspection, kind) for kind in KINDS}
    layered = {kind: points for kind, points in by_layer.items() if len(points) > 1}
    with mpl.rc_context({**STYLE, "svg.hashsalt": "density"}):
        figure = Figure(figsize=(_WIDTH, 3.2), layout="constrained")
        ratios = (1, 1.9) if layered else (1,)
        axes = figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0]
        found = {kind: [t for t in inspection.tensors if t.kind == kind] for kind in KINDS}
        found = {kind: tensors for kind, tensors in found.items() if tensors}
        densities = [_density(tensors) for tensors in found.values()]
        colours = [_KIND_COLOURS[kind] for kind in found]
        bars = axes[0].barh(list(found), densities, color=colours, alpha=0.8, height=0.65)
        axes[0].bar_label(bars, [f"{one:.3g} %" for one in densities], padding=4)
        axes[0].set(title="By kind of tensor", xlabel="elements that change (%)")
        axes[0].set_xlim(0, 1.35 * max(densities) or 1.0)
        axes[0].invert_yaxis()
        axes[0].tick_params(axis="y", length=0)
        if layered:
            _draw_layers(axes[1], layered)
        return as_svg(figure)


def _draw_layers(axis: Any, layered: dict[str, list[tuple[int, float]]]) -> None:
    lines = []
    for kind, points in layered.items():
        layers, densities = zip(*points, strict=True)
        (line,) = axis.plot(
            layers, densities, "o-", color=_KIND_COLOURS[kind], markersize=3.5, label=kind
        )
        lines.append(line)
    axis.set(title="By layer", xlabel="layer", ylabel="elements that change (%)")
    axis.set_ylim(bottom=0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(visible=True)
    legend(axis, lines)


def _by_layer(inspection: Inspection, kind: str) -> list[tuple[int, float]]:
    layers: dict[int, list[TensorChange]] = {}
    for tensor in inspection.tensors:
        if tensor.kind == kind and tensor.layer is not None:
            layers.setdefault(tensor.layer, []).append(tensor)
    return [(layer, _density(layers[layer])) for layer in sorted(layers)]


def _density(tensors: Sequence[TensorChange]) -> float:
    elements = sum(tensor.elements for tensor in tensors)
    return 100 * sum(tensor.changed for tensor in tensors) / elements if elements else 0.0
