"""What all figures have in common: a blank figure with named axes, colours, shading, thinning.

Figures take their ink and paper from the page they are shown on, so they suit light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

POINTS_MAX = 2_000
"""Points of one line: more than a screen has columns, and few enough for a page that opens at once."""

# Told apart by people with colour-blindness too, on white and on black (after Okabe and Ito).
PALETTE = ("#3b82c4", "#e08a00", "#1fa187", "#c2679a", "#7a68c9", "#d1542b", "#5aa7d6", "#8f8a2a")
DASHES = ("solid", "dash", "dot", "dashdot")
STATE_COLOURS = {
    "GOOD": "#1fa187",
    "SKIP": "#e0b400",
    "ASSUMED_BAD": "#d1542b",
    "DENIED": "#7d3040",
}
"""Colour of every state of a path."""
FAULT_COLOUR = "rgba(209, 84, 43, 0.16)"
GREY = "#8a8f98"
GRID_COLOUR = "rgba(138, 143, 152, 0.25)"


def axis_style() -> dict[str, Any]:
    """The look of an axis."""
    return {
        "gridcolor": GRID_COLOUR,
        "linecolor": GREY,
        "ticks": "outside",
        "tickcolor": GREY,
        "zeroline": False,
        "automargin": True,
    }


def blank_figure(x_title: str, y_title: str) -> go.Figure:
    """Returns a figure without a trace, its axes named."""
    return go.Figure(
        layout={
            "template": "none",
            "height": 340,
            "margin": {"l": 64, "r": 16, "t": 30, "b": 52},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 13},
            "colorway": PALETTE,
            "hovermode": "x unified",
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
            "xaxis": {**axis_style(), "title": {"text": x_title}},
            "yaxis": {**axis_style(), "title": {"text": y_title}},
        }
    )


def shade(figure: go.Figure, start: float, end: float, title: str, **where: Any) -> None:
    """Shades a stretch of the x axis in which a fault is in effect, and names it.

    Args:
        figure: figure to shade.
        start: first x.
        end: last x.
        title: name of the fault; empty for none.
        where: `row` and `col` of a subplot, or "all".
    """
    figure.add_vrect(
        x0=start,
        x1=end,
        fillcolor=FAULT_COLOUR,
        line={"color": STATE_COLOURS["ASSUMED_BAD"], "width": 1, "dash": "dot"},
        layer="below",
        annotation={"text": title, "font": {"size": 11}},
        annotation_position="inside top left",
        **where,
    )


def thinned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """Keeps the lowest and highest point of every stretch, so that no spike is lost."""
    if len(xs) <= POINTS_MAX:
        return list(xs), list(ys)
    stride = math.ceil(2 * len(xs) / POINTS_MAX)
    kept: list[int] = []
    for start in range(0, len(xs), stride):
        stretch = range(start, min(start + stride, len(xs)))
        kept += sorted({min(stretch, key=ys.__getitem__), max(stretch, key=ys.__getitem__)})
    return [xs[i] for i in kept], [ys[i] for i in kept]
