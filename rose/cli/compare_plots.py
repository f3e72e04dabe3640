"""The figures of a comparison: what rollouts get, and what serving pays for it."""

from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from rose.cli.compare_schemes import Kind
from rose.demo.plot_style import (
    DEDICATED,
    LIMIT,
    NOBODY,
    ROLLOUTS,
    SERVING,
    STYLE,
    WARNING,
    as_svg,
)

# The kind is the colour, and the scheme within it the marker and the dashes: no two schemes are
# told apart by colour alone.
_COLOURS: Final = {
    Kind.ROSE: ROLLOUTS,
    Kind.PUBLISHED: WARNING,
    Kind.BOUND: SERVING,
    Kind.ABLATION: NOBODY,
}
_KINDS: Final = {
    Kind.ROSE: "rose",
    Kind.PUBLISHED: "other schemes",
    Kind.BOUND: "bounds",
    Kind.ABLATION: "rose with a part taken out",
}
_MARKERS: Final = "osD^vPX*<>"
_DASHES: Final = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))


def draw_prices(report: Mapping[str, Any], at: Mapping[str, Any]) -> str:
    """Return an SVG: what rollouts get at one load, over both latencies at P99."""
    styles = scheme_styles(report)
    with mpl.rc_context({**STYLE, "svg.hashsalt": "prices"}):
        figure = Figure(figsize=(9.6, 4.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        columns = (
            ("First token", "ttft_ms_p99", "TTFT P99", report["slo"]["ttft_ms"]),
            ("Later tokens", "tpot_ms_p99", "TPOT P99", report["slo"]["tpot_ms"]),
        )
        for axis, (title, key, name, slo_ms) in zip(axes, columns, strict=True):
            for scheme, row in at["schemes"].items():
                if row[key] is not None and row["harvest"] is not None:
                    axis.plot([row[key]], [row["harvest"]], **_point(styles[scheme]))
            if slo_ms:
                axis.axvline(slo_ms, color=LIMIT, linestyle=":", linewidth=1.6)
            axis.set(title=title, xlabel=f"{name} (ms, log scale)", xscale="log")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.yaxis.set_major_formatter(PercentFormatter(1.0))
            axis.grid(visible=True)
        axes[0].set_ylabel("rollouts get, of a device")
        entries = [_entry(report, one, styles, joined=False) for one in at["schemes"]]
        entries.append(
            Line2D([], [], color=LIMIT, linestyle=":", linewidth=1.6, label="SLO target")
        )
        figure.legend(handles=entries, loc="outside lower center", ncols=5)
        return as_svg(figure)


def draw_sweep(report: Mapping[str, Any]) -> str:
    """Return an SVG: what rollouts get of the device, over the load, a line for each scheme."""
    styles = scheme_styles(report)
    loads = [at["load"] for at in report["loads"]]
    with mpl.rc_context({**STYLE, "svg.hashsalt": "sweep"}):
        figure = Figure(figsize=(9.6, 5.0), layout="constrained")
        axis: Any = figure.subplots()
        idle = [1.0 - (at["busy_share_alone"] or 0.0) for at in report["loads"]]
        axis.fill_between(loads, idle, color=DEDICATED, alpha=0.2, linewidth=0)
        drawn = []
        for scheme in report["schemes"]:
            rows = [at["schemes"].get(scheme) for at in report["loads"]]
            values = [None if row is None else row["harvest"] for row in rows]
            if any(value for value in values):
                axis.plot(loads, [_or_nan(value) for value in values], **styles[scheme])
                drawn.append(scheme)
        axis.set(
            title="Harvest over load", xlabel="load", ylabel="rollouts get, of a device", ylim=0.0
        )
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.grid(visible=True)
        entries = [_entry(report, one, styles, joined=True) for one in drawn]
        band = mpl.patches.Patch(facecolor=DEDICATED, alpha=0.2, label="idle when serving is alone")
        figure.legend(handles=[*entries, band], loc="outside right upper")
        return as_svg(figure)


def scheme_styles(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the line of each scheme; the same in every figure of a report."""
    styles: dict[str, dict[str, Any]] = {}
    counts = dict.fromkeys(Kind, 0)
    for name in report["schemes"]:
        kind = _kind(report, name)
        number = counts[kind]
        counts[kind] += 1
        styles[name] = {
            "color": _COLOURS[kind],
            "marker": _MARKERS[number % len(_MARKERS)],
            "linestyle": _DASHES[number % len(_DASHES)],
            "linewidth": 1.8,
            "markersize": 7,
            "markerfacecolor": "none" if kind is Kind.BOUND else _COLOURS[kind],
        }
    return styles


def _kind(report: Mapping[str, Any], name: str) -> Kind:
    return Kind(report["schemes"][name]["kind"])


def _point(style: Mapping[str, Any]) -> dict[str, Any]:
    return {**style, "linestyle": "none", "markersize": 9, "clip_on": False}


def _entry(
    report: Mapping[str, Any], name: str, styles: Mapping[str, dict[str, Any]], *, joined: bool
) -> Line2D:
    style = styles[name] if joined else _point(styles[name])
    return Line2D([], [], label=report["schemes"][name]["label"], **style)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
