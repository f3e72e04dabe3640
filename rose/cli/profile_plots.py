"""The figures of `profile.html`: pool and tails over time, and what each pair of targets gives."""

from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from rose.demo.plot_style import DEDICATED, LIMIT, NOBODY, ROLLOUTS, SERVING, STYLE, WARNING, as_svg

_MINUTES_FROM_S: Final = 300.0
_HOURS_FROM_S: Final = 3 * 3600.0
# No two targets are told apart by colour alone.
_LINES: Final = (
    (ROLLOUTS, "-"),
    (WARNING, "--"),
    (LIMIT, ":"),
    (DEDICATED, "-."),
    (NOBODY, (0, (5, 1, 1, 1))),
)


def draw_pool(report: Mapping[str, Any]) -> str:
    """Return an SVG: what serving holds of the pool, and what would have been lent beside it."""
    series, kv_gib = report["series"], report["kv_gib"]
    unit_s, unit = _time_unit(report)
    times = _floats(series["at_s"]) / unit_s
    with mpl.rc_context({**STYLE, "svg.hashsalt": "pool"}):
        figure = Figure(figsize=(9.6, 4.4), layout="constrained")
        axis: Any = figure.subplots()
        used = _floats(series["used_gib"])
        axis.fill_between(times, used, step="post", color=SERVING, alpha=0.35, linewidth=0)
        axis.step(times, used, where="post", color=SERVING, linewidth=1.4)
        reserve_gib = report["reserve_gib"]
        axis.axhspan(kv_gib - reserve_gib, kv_gib, color=NOBODY, alpha=0.25, linewidth=0)
        entries: list[Any] = [
            mpl.patches.Patch(facecolor=SERVING, alpha=0.35, label="serving holds"),
            mpl.patches.Patch(facecolor=NOBODY, alpha=0.25, label="serving's reserve"),
        ]
        for number, row in enumerate(report["rows"]):
            colour, dashes = _LINES[number % len(_LINES)]
            lent = np.array(row["lent"], dtype=np.float64).reshape(-1, 2)
            axis.step(
                lent[:, 0] / unit_s,
                lent[:, 1],
                where="post",
                color=colour,
                linestyle=dashes,
                linewidth=max(1.2, 3.2 - 0.7 * number),  # so that none hides another
            )
            entries.append(
                Line2D([], [], color=colour, linestyle=dashes, label=f"lent at {_targets(row)}")
            )
        axis.set(title="KV pool", xlabel=f"time ({unit})", ylabel="GiB", ylim=(0, kv_gib))
        axis.grid(visible=True)
        figure.legend(handles=entries, loc="outside lower center", ncols=3)
        return as_svg(figure)


def draw_tails(report: Mapping[str, Any]) -> str:
    """Return an SVG: both latencies at P99 over time, with the targets that are asked about."""
    series = report["series"]
    unit_s, unit = _time_unit(report)
    times = _floats(series["at_s"]) / unit_s
    with mpl.rc_context({**STYLE, "svg.hashsalt": "tails"}):
        figure = Figure(figsize=(9.6, 3.6), layout="constrained")
        axes = figure.subplots(1, 2)
        columns = (("First token", "ttft_ms"), ("Later tokens", "tpot_ms"))
        for axis, (title, key) in zip(axes, columns, strict=True):
            values = _floats(series[f"{key}_p99"])
            axis.plot(times, values, color=SERVING, linewidth=1.4)
            for number, row in enumerate(report["rows"]):
                colour, dashes = _LINES[number % len(_LINES)]
                axis.axhline(row[key], color=colour, linestyle=dashes, linewidth=1.4)
            axis.set(title=title, xlabel=f"time ({unit})", ylabel="P99, ms (log)", yscale="log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.grid(visible=True)
        entries = [Line2D([], [], color=SERVING, label="serving, P99 of 15 s")]
        for number, row in enumerate(report["rows"]):
            colour, dashes = _LINES[number % len(_LINES)]
            name = f"targets {_targets(row)}"
            entries.append(Line2D([], [], color=colour, linestyle=dashes, label=name))
        figure.legend(handles=entries, loc="outside lower center", ncols=4)
        return as_svg(figure)


def draw_rows(report: Mapping[str, Any]) -> str:
    """Return an SVG: for each pair of targets the share of compute, and of the pool."""
    rows = report["rows"]
    places = np.arange(len(rows))
    with mpl.rc_context({**STYLE, "svg.hashsalt": "rows"}):
        figure = Figure(figsize=(9.6, 1.2 + 0.42 * max(len(rows), 1)), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        columns = (
            (axes[0], "Compute that rollouts could get", [row["compute_share"] for row in rows]),
            (axes[1], "KV pool on loan, mean of the time",
             [row["lent_gib_mean"] / report["kv_gib"] for row in rows]),
        )  # fmt: skip
        for axis, title, shares in columns:
            for place, share in zip(places, shares, strict=True):
                if share is None:
                    axis.text(0.01, place, "not known", va="center", fontsize=9)
                    continue
                axis.barh(place, share, color=ROLLOUTS, height=0.62)
                axis.text(share + 0.01, place, f"{share:.0%}", va="center", fontsize=9)
            axis.set(title=title, xlim=(0, 1.12))
            axis.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
            axis.xaxis.set_major_formatter(PercentFormatter(1.0))
            axis.tick_params(axis="y", length=0)
            axis.grid(visible=True, axis="x")
        axes[0].set_yticks(list(places), [_targets(row) for row in rows])
        axes[0].invert_yaxis()
        return as_svg(figure)


def _targets(row: Mapping[str, Any]) -> str:
    return f"{row['ttft_ms']:g}/{row['tpot_ms']:g} ms"


def _time_unit(report: Mapping[str, Any]) -> tuple[float, str]:
    if report["measured_s"] > _HOURS_FROM_S:
        return 3600.0, "hours"
    return (60.0, "minutes") if report["measured_s"] > _MINUTES_FROM_S else (1.0, "s")


def _floats(values: list[float | None]) -> npt.NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
