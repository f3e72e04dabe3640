"""The page of `rose delta inspect`: tables and figures that need nothing else."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from rose.checkpoints.change_counts import ChangeCounts
from rose.checkpoints.inspection import DENSE, GAP, KINDS, STRAT, Inspection, TensorChange
from rose.checkpoints.tensors import STORED_DTYPES
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
            (*row, Markup(draw_exponents(dtype, one) if one.has_exponents else ""))
            for row, (dtype, one) in zip(steps(inspection), changing.items(), strict=True)
        ],
    )
    return page.encode(errors="replace")


_KIND_COLOURS: Final = dict(
    zip(KINDS, (DEDICATED, SERVING, ROLLOUTS, LIMIT, WARNING, NOBODY), strict=True)
)
_BOUND_LINES: Final = {"iid": (SERVING, ":"), "class": (WARNING, "--")}
_WIDTH: Final = 9.6
_NEGLIGIBLE: Final = 1e-5


def draw_codecs(inspection: Inspection) -> str:
    """Return an SVG: bytes for each change under each codec, and the bounds of entropy."""
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


def draw_exponents(dtype: str, counts: ChangeCounts) -> str:
    """Return an SVG: the old exponents of all and of what changes, and how likely each changes."""
    first, last = _drawn_exponents(counts)
    all_, changed = counts.of_all[first:last], counts.of_changed[first:last]
    edges = np.arange(first, last + 1) - bias_of(dtype) - 0.5
    with mpl.rc_context({**STYLE, "svg.hashsalt": f"exponents {dtype}"}):
        figure = Figure(figsize=(_WIDTH, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.2, 1))
        for values, colour in ((all_, NOBODY), (changed, ROLLOUTS)):
            shares = 100 * values / max(int(values.sum()), 1)
            above.stairs(shares, edges, fill=True, color=colour, alpha=0.35)
            above.stairs(shares, edges, color=colour, linewidth=1.6)
        zeros = 100 * int(counts.of_all[0]) / counts.elements
        aside = f" ({zeros:.2g} % are zeros or subnormal)" if zeros >= 0.01 else ""
        above.set(title=f"Old exponents of {dtype}{aside}", ylabel="share (%)")
        above.set_ylim(bottom=0)
        entries = ((NOBODY, "all elements"), (ROLLOUTS, "elements that change"))
        legend(above, [Patch(facecolor=colour, alpha=0.6, label=name) for colour, name in entries])
        density = np.divide(changed, all_, out=np.zeros(len(all_)), where=all_ > 0)
        middles = edges[:-1] + 0.5
        drawn = density > 0
        below.plot(middles[drawn], 100 * density[drawn], "o-", color=SERVING, markersize=3.5)
        below.set(
            title="How likely an element changes",
            xlabel="old exponent: elements from 2^x up to 2^(x+1)",
            ylabel="changes (%, log scale)",
            yscale="log",
        )
        there = density[drawn]
        is_wide = there.size > 0 and there.max() > 50 * there.min()
        below.yaxis.set_major_locator(LogLocator(subs=(1,) if is_wide else (1, 2, 5)))
        below.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        below.yaxis.set_minor_formatter(NullFormatter())
        below.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=16))
        for axis in (above, below):
            axis.grid(visible=True)
        return as_svg(figure)


def draw_density(inspection: Inspection) -> str:
    """Return an SVG: density by kind, and by layer where there are layers."""
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


def _drawn_exponents(counts: ChangeCounts) -> tuple[int, int]:
    """Return the range that holds nearly everything; exponent 0, of zeros, is far from the rest."""
    is_there = np.zeros(len(counts.of_all), np.bool_)
    for values in (counts.of_all, counts.of_changed):
        is_there |= values > _NEGLIGIBLE * values.sum()
    is_there[0] &= not is_there[1:].any()
    there = np.flatnonzero(is_there)
    return int(there[0]), int(there[-1]) + 1


def bias_of(dtype: str) -> int:
    """Return what is taken from an exponent of a dtype that has one to make a power of two."""
    exponent = STORED_DTYPES[dtype].exponent
    bits = 0 if exponent is None else exponent[1]
    return (1 << bits >> 1) - (0 if dtype.endswith("FNUZ") else 1)
