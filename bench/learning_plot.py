"""The figure of the learning runs: held-out reward against steps of the trainer."""

from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.learning import ARMS, Learning, mean_within
from rose_lab.plot_style import DEDICATED, ROLLOUTS, STYLE, WARNING, as_svg

COLOURS: Final = dict(zip(ARMS, (DEDICATED, ROLLOUTS, WARNING), strict=True))
# Curves of the same seeds coincide if no token differs; then each line shows beneath the next.
WIDTHS: Final = dict(zip(ARMS, (6.0, 3.5, 1.2), strict=True))


def draw_learning(learning: Learning) -> str:
    """Return an SVG with the mean curve of each arm, and its 95 % interval over seeds as a band."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "learning"}):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axis = figure.subplots()
        for arm, colour in COLOURS.items():
            curves = learning.each(arm, lambda run: run["curve"])
            points = [mean_within(rewards) for rewards in zip(*curves, strict=True)]
            last = learning.of(arm)[0]["steps"]
            steps = [last * at / (len(points) - 1) for at in range(len(points))]
            means = [mean for mean, _ in points]
            axis.plot(steps, means, color=colour, linewidth=WIDTHS[arm], label=arm)
            lows, highs = zip(*(interval for _, interval in points), strict=True)
            axis.fill_between(steps, lows, highs, color=colour, alpha=0.2, linewidth=0)
        axis.set(xlabel="steps of the trainer", ylabel="held-out reward", ylim=(0, 1))
        axis.legend(loc="lower right")
        axis.grid(visible=True)
        return as_svg(figure)
