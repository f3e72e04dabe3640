"""The figures of `report.html`, as SVG that takes the colour of the text around it."""

from collections.abc import Sequence
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from rose.demo.plot_style import LIMIT, NOBODY, ROLLOUTS, SERVING, STYLE, as_svg, finite, legend
from rose.demo.record import ARMS, RunRecord, SliceTimeline

_ARM_STYLES: Final[dict[str, dict[str, Any]]] = {
    "alone": {"color": "#0072B2", "linestyle": "-"},
    "alone_again": {"color": "#56B4E9", "linestyle": "--"},
    "share_all": {"color": "#D55E00", "linestyle": "-"},
    "rose": {"color": "#009E73", "linestyle": "-"},
}


def draw_latencies(record: RunRecord) -> str:
    """Return an SVG: the distributions of TTFT and TPOT, one line for each arm."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "latencies"}):
        figure = Figure(figsize=(9.6, 3.7), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        columns = (
            ("Time to first token", "TTFT", record.slo.ttft_ms),
            ("Time per output token", "TPOT", record.slo.tpot_ms),
        )
        for axis, (title, name, slo_ms) in zip(axes, columns, strict=True):
            for arm in ARMS:
                _draw_distribution(axis, arm, finite(_column(record, arm, name)))
            axis.axvline(slo_ms, color=LIMIT, linestyle=":", linewidth=1.4)
            axis.set(title=title, xlabel=f"{name} (ms, log scale)", ylim=(0, 1.02), xscale="log")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.grid(visible=True)
        axes[0].set_ylabel("share of requests at or below")
        lines = [Line2D([], [], linewidth=1.8, **_ARM_STYLES[arm]) for arm in ARMS]
        lines.append(Line2D([], [], color=LIMIT, linestyle=":", linewidth=1.4))
        names = [*(arm.replace("_", " ") for arm in ARMS), "SLO target"]
        figure.legend(lines, names, loc="outside lower center", ncols=len(names))
        return as_svg(figure)


def draw_timeline(timeline: SliceTimeline) -> str:
    """Return an SVG: gate and arrivals above, owners of the slabs below, over the same seconds."""
    starts = [at for at, _ in timeline.gate_open] + [at for at, *_ in timeline.slabs]
    zero_s = min([*starts, *timeline.arrivals_s], default=0.0)
    ends = [at for _, at in timeline.gate_open] + [at for at, *_ in timeline.slabs]
    end_s = max([*ends, *timeline.arrivals_s], default=zero_s + 1.0) - zero_s
    with mpl.rc_context({**STYLE, "svg.hashsalt": "timeline"}):
        figure = Figure(figsize=(9.6, 4.4), layout="constrained")
        gate, slabs = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2.2))
        _draw_gate(gate, timeline, zero_s)
        _draw_slabs(slabs, timeline, zero_s, end_s)
        slabs.set(xlabel="time in the slice (s)", xlim=(0, end_s or 1.0))
        return as_svg(figure)


def _draw_distribution(axis: Any, arm: str, values: Sequence[float]) -> None:
    """Draw steps: each request is one, so that a few requests look like a few."""
    if values:
        ordered = np.sort(np.maximum(values, 1e-3))  # A log axis has no zero.
        shares = np.arange(1, len(values) + 1) / len(values)
        axis.step(
            np.concatenate([ordered[:1], ordered]),
            np.concatenate([[0.0], shares]),
            where="post",
            linewidth=1.8,
            **_ARM_STYLES[arm],
        )


def _draw_gate(axis: Any, timeline: SliceTimeline, zero_s: float) -> None:
    bands = [(start - zero_s, end - start) for start, end in timeline.gate_open]
    axis.broken_barh(bands, (0.0, 1.0), facecolors=ROLLOUTS, alpha=0.45, linewidth=0)
    arrivals_s = [at - zero_s for at in timeline.arrivals_s]
    axis.vlines(arrivals_s, 1.12, 1.62, color=SERVING, linewidth=0.9)
    axis.set(
        title="Gate and arrivals",
        ylim=(0, 1.7),
        yticks=(0.5, 1.37),
        yticklabels=("gate", "arrivals"),
    )
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    open_band = Patch(facecolor=ROLLOUTS, alpha=0.45, label="open: rollouts may run")
    arrival = Line2D([], [], color=SERVING, linewidth=0.9, label="a serving request arrives")
    legend(axis, [open_band, arrival])


def _draw_slabs(axis: Any, timeline: SliceTimeline, zero_s: float, end_s: float) -> None:
    owners = (("serving", SERVING), ("rollouts", ROLLOUTS), ("nobody", NOBODY))
    if timeline.slabs:
        at_s = [at - zero_s for at, *_ in timeline.slabs] + [end_s]
        # Each count holds until the next change, the last one until the end.
        counts = [slabs[1:] for slabs in (*timeline.slabs, timeline.slabs[-1])]
        axis.stackplot(
            at_s,
            np.array(counts, dtype=float).T,
            colors=[colour for _, colour in owners],
            alpha=0.7,
            step="post",
            linewidth=0,
        )
        axis.set_ylim(0, max(sum(count) for count in counts) or 1)
    axis.set(title="Who owns the KV memory", ylabel="slabs")
    axis.yaxis.get_major_locator().set_params(integer=True)
    patches = [Patch(facecolor=colour, alpha=0.7, label=name) for name, colour in owners]
    legend(axis, patches)


def _column(record: RunRecord, arm: str, name: str) -> list[float | None]:
    requests = [r for one in record.slices if one.arm == arm for r in one.requests]
    return [r.ttft_ms if name == "TTFT" else r.tpot_ms for r in requests]
