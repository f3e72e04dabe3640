"""Colours, style and SVG output shared by the figures of the reports."""

import io
import math
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.figure import Figure

# Okabe and Ito's palette: distinguishable with any colour vision, on white and on black.
SERVING: Final = "#0072B2"
ROLLOUTS: Final = "#009E73"
DEDICATED: Final = "#56B4E9"
WARNING: Final = "#D55E00"
LIMIT: Final = "#CC79A7"
NOBODY: Final = "#999999"

# Placeholder that the SVG replaces by `currentColor`, the colour of the page's text.
INK: Final = "#010203"
STYLE: Final = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#808080",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


def legend(axis: Any, entries: list[Any]) -> None:
    """Put one line of entries above the axis, on the right."""
    axis.legend(
        handles=entries,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(entries),
        borderaxespad=0.2,
    )


def finite(values: Sequence[float | None]) -> list[float]:
    """Return the values that can be drawn."""
    return [value for value in values if value is not None and math.isfinite(value)]


def as_svg(figure: Figure) -> str:
    """Return a bare `<svg>` element, whose lines and texts have the page's text colour."""
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=no_metadata)
    svg = file.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")
