"""The figures of `report.html`, as SVG whose axes and texts have the page's text colour."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from rose_lab.demo.record import (
    ARMS,
    WORKERS,
    RlLoopRecord,
    RunRecord,
    SliceTimeline,
    TurnRecord,
)
from rose_lab.demo.summary import start_s
from rose_lab.plot_style import (
    DEDICATED,
    LIMIT,
    NOBODY,
    ROLLOUTS,
    SERVING,
    STYLE,
    WARNING,
    as_svg,
    finite,
    legend,
)

_ARM_STYLES: Final[dict[str, dict[str, Any]]] = {
    "alone": {"color": "#0072B2", "linestyle": "-"},
    "alone_again": {"color": "#56B4E9", "linestyle": "--"},
    "share_all": {"color": "#D55E00", "linestyle": "-"},
    "rose": {"color": "#009E73", "linestyle": "-"},
}


def draw_latencies(record: RunRecord) -> str:
    """Return an SVG of the distributions of TTFT and TPOT, one line per arm."""
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
    """Return an SVG of gate and arrivals (top) and slab owners (bottom) over the same time."""
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
    """Draw a distribution function, with one step per request to show how small a sample is."""
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
        # Each count holds until the next change, and the last count until the end.
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


# ---- the RL loop --------------------------------------------------------------------------------

_COLOURS: Final = dict(zip(WORKERS, (ROLLOUTS, DEDICATED), strict=True))
_NAMES: Final = dict(zip(WORKERS, ("borrowed", "dedicated"), strict=True))
_ARRIVAL_BINS: Final = 160
_BINS: Final = 600
_PUBLISHED_Y: Final = 2.0
_COMMIT_Y: Final = {"borrowed": 1.0, "dedicated": 0.0}


def draw_rl_loop(record: RunRecord, rl_loop: RlLoopRecord) -> str:
    """Return an SVG of arrivals, turns per worker, and versions over the same time."""
    zero_s, end_s = start_s(rl_loop), _end_s(rl_loop)
    with mpl.rc_context({**STYLE, "svg.hashsalt": "rl_loop"}):
        figure = Figure(figsize=(9.6, 7.2), layout="constrained")
        axes = figure.subplots(4, 1, sharex=True, height_ratios=(0.75, 1.5, 1.5, 1.1))
        _draw_arrivals(axes[0], record, zero_s, end_s)
        for axis, worker in zip(axes[1:3], WORKERS, strict=True):
            spans = rl_loop.spans if worker == "borrowed" else ()
            turns = [turn for turn in rl_loop.turns if turn.worker == worker and _is_drawable(turn)]
            _draw_turns(axis, worker, turns, spans, zero_s)
        _draw_versions(axes[3], rl_loop, zero_s)
        for axis in axes:
            for at_s in finite([at for at, _ in rl_loop.incidents]):
                axis.axvline(at_s - zero_s, color=WARNING, linewidth=1.0, linestyle="--")
        axes[3].set(xlabel="time in the RL loop (s)", xlim=(0, (end_s - zero_s) or 1.0))
        return as_svg(figure)


def running_turns(
    turns: Sequence[TurnRecord], bins: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the mean number of running turns in each of `bins` equal time bins.

    Args:
        turns: turns, of which at least one lasts longer than 0 s.
        bins: number of bins, >= 1.

    Returns:
        (bins + 1,) float64 bin edges in seconds, and (bins,) float64 means. The area under the
        means is the total time of all turns.
    """
    change: Counter[float] = Counter()
    for turn in turns:
        change[turn.start_s] += 1
        change[turn.end_s] -= 1
    times = np.array(sorted(change))
    running = np.cumsum([change[at] for at in times.tolist()])
    # Accumulated turn time is linear between changes, so interpolation is exact.
    held = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(times))])
    edges = np.linspace(times[0], times[-1], bins + 1)
    return edges, np.diff(np.interp(edges, times, held)) / np.diff(edges)


def _end_s(rl_loop: RlLoopRecord) -> float:
    ends = [to_s for _, to_s in rl_loop.spans] + [turn.end_s for turn in rl_loop.turns]
    ends += [version.published_s for version in rl_loop.versions]
    ends += [commit.at_s for version in rl_loop.versions for commit in version.commits]
    ends += [at_s for at_s, _ in rl_loop.incidents]
    return max(finite(ends), default=start_s(rl_loop))


def _is_drawable(turn: TurnRecord) -> bool:
    return math.isfinite(turn.start_s) and turn.start_s <= turn.end_s < math.inf


def _draw_arrivals(axis: Any, record: RunRecord, zero_s: float, end_s: float) -> None:
    arrivals_s = finite([r.arrival_s for one in record.slices for r in one.requests])
    inside = [at - zero_s for at in arrivals_s if zero_s <= at <= end_s]
    if inside and end_s > zero_s:
        counts, edges = np.histogram(inside, _ARRIVAL_BINS, range=(0, end_s - zero_s))
        axis.stairs(counts / np.diff(edges), edges, color=SERVING, alpha=0.7, fill=True)
    axis.set(title="Serving", ylabel="requests/s")
    axis.set_ylim(bottom=0)
    arrivals = Patch(facecolor=SERVING, alpha=0.7, label="arriving requests")
    incident = Line2D([], [], color=WARNING, linewidth=1.0, linestyle="--", label="an incident")
    legend(axis, [arrivals, incident])


def _draw_turns(
    axis: Any,
    worker: str,
    turns: Sequence[TurnRecord],
    spans: Sequence[tuple[float, float]],
    zero_s: float,
) -> None:
    colour = _COLOURS[worker]
    bands = [(a - zero_s, b - a) for a, b in spans if math.isfinite(a) and math.isfinite(b)]
    top = 1.0
    if any(turn.start_s < turn.end_s for turn in turns):
        edges, running = running_turns(turns, _BINS)
        axis.stairs(running, edges - zero_s, color=colour, alpha=0.7, fill=True)
        resumed = [turn.start_s for turn in turns if turn.is_resumed]
        marks = edges[:-1][np.histogram(resumed, edges)[0] > 0] - zero_s
        axis.plot(marks, np.zeros(marks.size), "|", color=WARNING)
        top = float(running.max())
    axis.set(ylim=(0, top), ylabel="turns")
    entries = [Patch(facecolor=colour, alpha=0.7, label="running turns")]
    entries.append(Patch(facecolor=WARNING, label="resumed from another worker"))
    if worker == "borrowed":
        axis.broken_barh(bands, (0, top), facecolors=colour, alpha=0.18, linewidth=0, zorder=0)
        entries.append(Patch(facecolor=colour, alpha=0.18, label="has memory"))
    axis.set_title(f"Turns, {_NAMES[worker]}")
    legend(axis, entries)


def _draw_versions(axis: Any, rl_loop: RlLoopRecord, zero_s: float) -> None:
    """Draw a line from each publication down to each worker that committed it."""
    published = [version.published_s - zero_s for version in rl_loop.versions]
    axis.plot(published, [_PUBLISHED_Y] * len(published), ".", color=LIMIT, markersize=7)
    for worker, y in _COMMIT_Y.items():
        for is_match, mark in ((True, "o"), (False, "X")):
            pairs = [
                (version.published_s - zero_s, commit.at_s - zero_s)
                for version in rl_loop.versions
                for commit in version.commits
                if (commit.worker, commit.is_match) == (worker, is_match)
            ]
            colour = _COLOURS[worker] if is_match else WARNING
            # A NaN after each pair ends its line, so that one call draws the lines of all pairs.
            at_s = [at for pair in pairs for at in (*pair, math.nan)]
            axis.plot(at_s, [_PUBLISHED_Y, y, math.nan] * len(pairs), color=colour, linewidth=0.8)
            axis.plot([at for _, at in pairs], [y] * len(pairs), mark, color=colour, markersize=4)
    axis.set(
        title="Versions of the weights",
        ylim=(-0.5, 2.5),
        yticks=(_PUBLISHED_Y, *_COMMIT_Y.values()),
        yticklabels=("published", *_COMMIT_Y),
    )
    axis.tick_params(axis="y", length=0)
    taken = Line2D([], [], color=NOBODY, marker="o", markersize=4, label="committed, digest equal")
    undone = Line2D([], [], color=WARNING, marker="X", markersize=4, label="digest differs, undone")
    legend(axis, [taken, undone])
