"""The figure of `rose compare`: rollout harvest against serving's slowdown."""

import textwrap
from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from rose_lab.demo.schemes import ALONE, CONTROL
from rose_lab.plot_style import (
    DEDICATED,
    LIMIT,
    NOBODY,
    ROLLOUTS,
    SERVING,
    STYLE,
    WARNING,
    as_svg,
)

_WIDTH: Final = 3.3  # inches per panel
_TEXT_COLUMNS: Final = 42  # characters per panel
_OURS: Final = ROLLOUTS
_OTHERS: Final = (WARNING, LIMIT, DEDICATED, SERVING, "#E69F00", NOBODY, "#F0E442")
_MARKS: Final = "osD^vP*Xd"
_QUANTILES: Final = ((50, 0.9), (99, 0.35))  # (percentile, opacity)


def draw_frontier(report: Mapping[str, Any]) -> str:
    """Return an SVG with one column per load, TTFT above TPOT.

    Each arm has a mark at its P50 and a fainter mark at its P99. A line joins rose's schemes.

    Args:
        report: content of `compare.json`; panels omit arms without numbers.
    """
    loads = report["loads"]
    styles = _styles(report["schemes"])
    with mpl.rc_context({**STYLE, "svg.hashsalt": "frontier"}):
        columns = max(1, len(loads))
        figure = Figure(figsize=(_WIDTH * columns + 1.0, 6.4), layout="constrained")
        axes = figure.subplots(2, columns, sharey=True, squeeze=False)
        for column, at in enumerate(loads):
            for axis, metric in zip(axes[:, column], ("ttft", "tpot"), strict=True):
                _draw_panel(axis, at, metric, styles)
                axis.set(xlabel=f"{metric.upper()}, x alone (log scale)")
            axes[0, column].set_title(f"Load {at['load']:g}")
        figure.supylabel("rollout tokens, share of their rate alone", fontsize=10)
        lines = [
            Line2D([], [], color=colour, marker=mark, linestyle="-" if is_ours else "")
            for colour, mark, is_ours in styles.values()
        ]
        names = [_name(name, report["schemes"][name]) for name in styles]
        figure.legend(lines, names, loc="outside upper center", ncols=max(3, 2 * columns))
        figure.supxlabel(_constants(report, columns), fontsize=7)
        return as_svg(figure)


def _styles(schemes: Mapping[str, Any]) -> dict[str, tuple[str, str, bool]]:
    """Return each arm's colour and marker, and whether the arm is rose with all mechanisms."""
    styles: dict[str, tuple[str, str, bool]] = {}
    others = 0
    for name, scheme in schemes.items():
        if name in {ALONE, CONTROL}:
            continue
        is_ours = _is_dial(scheme)
        colour = _OURS if is_ours else _OTHERS[others % len(_OTHERS)]
        others += not is_ours
        styles[name] = (colour, _MARKS[len(styles) % len(_MARKS)], is_ours)
    return styles


def _is_dial(scheme: Mapping[str, Any]) -> bool:
    """Return whether an arm is rose with all of its mechanisms."""
    return scheme["slowdown"] is not None and not scheme["without"]


def _name(name: str, scheme: Mapping[str, Any]) -> str:
    if not _is_dial(scheme):
        return name.replace("_", " ")
    slowdown = scheme["slowdown"]
    return f"rose, slowdown {slowdown if isinstance(slowdown, str) else f'{slowdown:g}'}"


def _draw_panel(
    axis: Any, at: Mapping[str, Any], metric: str, styles: Mapping[str, tuple[str, str, bool]]
) -> None:
    for rank, alpha in _QUANTILES:
        ours = []
        for name, (colour, mark, is_ours) in styles.items():
            point = _point(at, name, f"{metric}_p{rank}")
            if point is None:
                continue
            axis.plot(*point, mark, color=colour, alpha=alpha, markersize=6)
            ours += [point] * is_ours
        if ours:
            slowdowns, harvests = zip(*ours, strict=True)
            axis.plot(slowdowns, harvests, color=_OURS, alpha=alpha, linewidth=1.2, zorder=0)
    axis.axvline(1.0, color=NOBODY, linestyle=":", linewidth=1.0, zorder=0)
    axis.set(xscale="log")
    axis.set_ylim(bottom=0.0)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(visible=True)


def _point(at: Mapping[str, Any], name: str, key: str) -> tuple[float, float] | None:
    """Return an arm's slowdown and harvest; None if either was not measured."""
    slowdown = at["ratios"].get(name, {}).get(key)
    harvest = at["arms"].get(name, {}).get("harvested_tokens_share")
    return None if slowdown is None or harvest is None else (slowdown, harvest)


def _constants(report: Mapping[str, Any], columns: int) -> str:
    """Return the settings of the run, wrapped to the width of the figure."""
    slo = report["slo"]
    notes = [
        "Dark marks are P50, faint ones P99. All figures are " + report["mode"],
        f"targets: TTFT {slo['ttft_ms']:g} ms, TPOT {slo['tpot_ms']:g} ms",
        *(f"{name} {_short(value)}" for name, value in report["settings"].items()),
    ]
    return "\n".join(textwrap.wrap("; ".join(notes), _TEXT_COLUMNS * columns))


def _short(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_short, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
