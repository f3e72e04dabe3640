"""The figures of `sim.html`: how long each arm rolls out, what it uses, and what that costs."""

from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from rose.demo.plot_style import DEDICATED, LIMIT, NOBODY, ROLLOUTS, SERVING, STYLE, WARNING, as_svg

_ROW_INCHES: Final = 0.34
_TICKS: Final = 6
_LINES: Final = {
    "dedicated": DEDICATED,
    "trainer": NOBODY,
    "borrowed": ROLLOUTS,
    "opportunity": WARNING,
}


def draw_arms(scenario: Mapping[str, Any]) -> str:
    """Return an SVG: time of each batch by arm beside the bound, and trajectories used per hour."""
    arms = list(scenario["arms"])
    places = range(len(arms))
    with mpl.rc_context({**STYLE, "svg.hashsalt": "arms"}):
        figure = Figure(figsize=(9.6, 1.5 + _ROW_INCHES * len(arms)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for place, arm in zip(places, arms, strict=True):
            times = [s for run in _runs(scenario, arm) for s in run["rollout_s"]]
            colour = ROLLOUTS if arm == scenario["subject"] else SERVING
            left.plot(times, [place] * len(times), "o", color=colour, alpha=0.35, markersize=4)
            mean = scenario["arms"][arm]["rollout_s"]
            if mean is not None:
                left.plot([mean], [place], "|", color=colour, markersize=14, markeredgewidth=2.5)
            bound = scenario["arms"][arm]["bound_s"]
            if bound:
                left.plot([bound], [place], "|", color=LIMIT, markersize=14, markeredgewidth=1.5)
            rates = [run["throughput_per_hour"] for run in _runs(scenario, arm)]
            right.barh(place, sum(rates) / len(rates), color=colour, height=0.6)
            right.plot(rates, [place] * len(rates), "o", color=NOBODY, markersize=3)
        left.set(title="Time of a batch", xlabel="s; bar: mean; thin bar: no schedule is faster")
        left.set_yticks(list(places), arms)
        left.invert_yaxis()
        left.set_xlim(left=0)
        right.set(title="Learned from", xlabel="trajectories per hour")
        for axis in (left, right):
            axis.grid(visible=True, axis="x")
            axis.xaxis.set_major_locator(MaxNLocator(_TICKS))
        return as_svg(figure)


def draw_costs(scenario: Mapping[str, Any]) -> str:
    """Return an SVG: dollars of a thousand trajectories by arm, line by line."""
    arms = [arm for arm, row in scenario["arms"].items() if row["cost"] is not None]
    with mpl.rc_context({**STYLE, "svg.hashsalt": "costs"}):
        figure = Figure(figsize=(9.6, 1.5 + _ROW_INCHES * len(arms)), layout="constrained")
        axis = figure.subplots()
        for place, arm in enumerate(arms):
            cost = scenario["arms"][arm]["cost"]
            total = sum(cost[line] for line in _LINES)
            left = 0.0
            for line, colour in _LINES.items():
                share = cost[line] / total if total else 0.0
                width = 1000 * (cost["per_trajectory"] or 0.0) * share
                axis.barh(place, width, left=left, color=colour, height=0.6)
                left += width
        axis.set(title="What a thousand trajectories cost", xlabel="$")
        axis.set_yticks(range(len(arms)), arms)
        axis.invert_yaxis()
        axis.grid(visible=True, axis="x")
        entries = [Patch(color=colour, label=line) for line, colour in _LINES.items()]
        figure.legend(handles=entries, loc="outside lower center", ncols=len(entries))
        return as_svg(figure)


def _runs(scenario: Mapping[str, Any], arm: str) -> list[Mapping[str, Any]]:
    return [run for run in scenario["runs"] if run["arm"] == arm]
