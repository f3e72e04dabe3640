"""The plot of `rose trace describe`: the rate over time, and how long the requests are."""

import io
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from rose.traces import Trace
from rose.traces.statistics import counts_per_bin

_PROMPT, _OUTPUT, _SECONDS, _MINUTES = "#0072B2", "#D55E00", "#56B4E9", "#000000"
_STYLE: Final = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    # Hours of seconds are more vertices than the renderer takes in one path.
    "agg.path.chunksize": 20_000,
}
_HOUR_S: Final = 3600.0
# Bins of the background line: seconds, or more of them so that at most this many are drawn.
_BINS_MAX: Final = 20_000


def draw_trace(trace: Trace, format: str) -> bytes:  # noqa: A002 (the name of the field)
    """Return a PNG.

    Args:
        trace: at least one request.
        format: what the file was recognised as.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9.6, 6.4), layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        above, below = parts
        _draw_rate(above.subplots(), trace)
        axes = below.subplots(1, 2, sharey=True)
        for axis, name, tokens, colour in (
            (axes[0], "Prompt", trace.prompt_tokens, _PROMPT),
            (axes[1], "Output", trace.output_tokens, _OUTPUT),
        ):
            _draw_lengths(axis, name, tokens, colour)
        axes[0].set_ylabel("share of requests at or below")
        figure.suptitle(f"{trace.name} ({format}, {len(trace):,} requests)", x=0.01, ha="left")
        file = io.BytesIO()
        # Without the version of the drawing package, the file depends on the trace alone.
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
        return file.getvalue()


def _draw_rate(axis: Any, trace: Trace) -> None:
    unit_s, unit = (_HOUR_S, "hours") if trace.duration_s > 3 * _HOUR_S else (60.0, "minutes")
    fine_s = max(1.0, np.ceil(trace.duration_s / _BINS_MAX))
    names = {1.0: "per second", 60.0: "per minute"}
    for bin_s, colour, width in ((fine_s, _SECONDS, 0.7), (60.0, _MINUTES, 1.6)):
        counts = counts_per_bin(trace, bin_s)
        if counts.size:
            edges = np.arange(counts.size + 1) * bin_s / unit_s
            name = names.get(bin_s, f"per {bin_s:.0f} s")
            axis.stairs(
                counts / bin_s, edges, baseline=None, color=colour, linewidth=width, label=name
            )
    mean = trace.mean_rate_rps
    axis.axhline(mean, color="#808080", linestyle=":", label=f"mean: {mean:.2f} requests/s")
    axis.set(title="Rate", ylabel="requests/s", xlabel=f"time ({unit})")
    axis.set_xlim(0, trace.duration_s / unit_s or 1.0)
    axis.set_ylim(bottom=0)
    axis.grid(visible=True)
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, borderaxespad=0.2)


def _draw_lengths(axis: Any, name: str, tokens: npt.NDArray[np.int64], colour: str) -> None:
    """Draw steps, one for each request, and mark the percentiles of the table."""
    ordered = np.sort(tokens)
    shares = np.arange(1, ordered.size + 1) / ordered.size
    axis.step(
        np.concatenate([ordered[:1], ordered]),
        np.concatenate([[0.0], shares]),
        where="post",
        color=colour,
        linewidth=1.8,
    )
    for percent in (50, 90, 99):
        value = float(np.percentile(tokens, percent))
        axis.plot([value], [percent / 100], "o", color=colour, markersize=4)
        axis.annotate(
            f"p{percent}: {value:.0f}",
            (value, percent / 100),
            xytext=(-6, 2),
            textcoords="offset points",
            horizontalalignment="right",
            fontsize=9,
        )
    axis.set(title=f"{name} lengths", xlabel="tokens (log scale)", ylim=(0, 1.08), xscale="log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1,)))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(visible=True)
