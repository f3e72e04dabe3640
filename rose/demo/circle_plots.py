"""The figure of the circle: everything on one time."""

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

from rose.demo.circle_summary import start_s
from rose.demo.plot_style import (
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
from rose.demo.record import WORKERS, CircleRecord, RunRecord, TurnRecord

_COLOURS: Final = dict(zip(WORKERS, (ROLLOUTS, DEDICATED), strict=True))
_NAMES: Final = dict(zip(WORKERS, ("borrowed", "dedicated"), strict=True))
_ARRIVAL_BINS: Final = 160
_BINS: Final = 600
_PUBLISHED_Y: Final = 2.0
_COMMIT_Y: Final = {"borrowed": 1.0, "dedicated": 0.0}


def draw_circle(record: RunRecord, circle: CircleRecord) -> str:
    """Return an SVG: arrivals, turns by worker and versions over the same seconds."""
    zero_s, end_s = start_s(circle), _end_s(circle)
    with mpl.rc_context({**STYLE, "svg.hashsalt": "circle"}):
        figure = Figure(figsize=(9.6, 7.2), layout="constrained")
        axes = figure.subplots(4, 1, sharex=True, height_ratios=(0.75, 1.5, 1.5, 1.1))
        _draw_arrivals(axes[0], record, zero_s, end_s)
        for axis, worker in zip(axes[1:3], WORKERS, strict=True):
            spans = circle.spans if worker == "borrowed" else ()
            turns = [turn for turn in circle.turns if turn.worker == worker and _is_drawable(turn)]
            _draw_turns(axis, worker, turns, spans, zero_s)
        _draw_versions(axes[3], circle, zero_s)
        for axis in axes:
            for at_s in finite([at for at, _ in circle.incidents]):
                axis.axvline(at_s - zero_s, color=WARNING, linewidth=1.0, linestyle="--")
        axes[3].set(xlabel="time in the circle (s)", xlim=(0, (end_s - zero_s) or 1.0))
        return as_svg(figure)


def running_turns(
    turns: Sequence[TurnRecord], bins: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return how many turns ran on average in each of `bins` equal parts of their time.

    Args:
        turns: at least one that has a length.
        bins: >= 1.

    Returns:
        (bins + 1,) edges in seconds, and (bins,) means: their area is the time of all turns.
    """
    change: Counter[float] = Counter()
    for turn in turns:
        change[turn.start_s] += 1
        change[turn.end_s] -= 1
    times = np.array(sorted(change))
    running = np.cumsum([change[at] for at in times.tolist()])
    # The time of all turns up to each change is linear in between, so its differences are exact.
    held = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(times))])
    edges = np.linspace(times[0], times[-1], bins + 1)
    return edges, np.diff(np.interp(edges, times, held)) / np.diff(edges)


def _end_s(circle: CircleRecord) -> float:
    ends = [to_s for _, to_s in circle.spans] + [turn.end_s for turn in circle.turns]
    ends += [version.published_s for version in circle.versions]
    ends += [commit.at_s for version in circle.versions for commit in version.commits]
    ends += [at_s for at_s, _ in circle.incidents]
    return max(finite(ends), default=start_s(circle))


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
    arrivals = Patch(facecolor=SERVING, alpha=0.7, label="requests that arrive")
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
    entries = [Patch(facecolor=colour, alpha=0.7, label="turns that run")]
    entries.append(Patch(facecolor=WARNING, label="resumed from elsewhere"))
    if worker == "borrowed":
        axis.broken_barh(bands, (0, top), facecolors=colour, alpha=0.18, linewidth=0, zorder=0)
        entries.append(Patch(facecolor=colour, alpha=0.18, label="has memory"))
    axis.set_title(f"Turns, {_NAMES[worker]}")
    legend(axis, entries)


def _draw_versions(axis: Any, circle: CircleRecord, zero_s: float) -> None:
    """Draw a line from each publication down to each worker that took it."""
    published = [version.published_s - zero_s for version in circle.versions]
    axis.plot(published, [_PUBLISHED_Y] * len(published), ".", color=LIMIT, markersize=7)
    for worker, y in _COMMIT_Y.items():
        for is_match, mark in ((True, "o"), (False, "X")):
            pairs = [
                (version.published_s - zero_s, commit.at_s - zero_s)
                for version in circle.versions
                for commit in version.commits
                if (commit.worker, commit.is_match) == (worker, is_match)
            ]
            colour = _COLOURS[worker] if is_match else WARNING
            # A gap after each pair, so that one path holds all lines.
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
    taken = Line2D([], [], color=NOBODY, marker="o", markersize=4, label="taken, digest equal")
    undone = Line2D([], [], color=WARNING, marker="X", markersize=4, label="digest differs, undone")
    legend(axis, [taken, undone])
