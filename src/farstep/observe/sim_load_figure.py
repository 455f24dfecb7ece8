"""The heat map of what the links carried."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from farstep.observe.canvas import blank_figure
from farstep.observe.sim_canvas import Results
from farstep.observe.sim_view import LoadProfile, load_text

LOAD_SCALE = (
    (0.0, "rgba(59, 130, 196, 0.10)"),
    (0.55, "rgba(59, 130, 196, 0.95)"),
    (0.8, "#e0b400"),
    (1.0, "#d1542b"),
)
"""From idle, which lets the paper through, to full."""


def load_figure(results: Results) -> go.Figure:
    """Load of all links: tiers as rows, planes side by side, links from busiest to idlest."""
    profiles = {name: LoadProfile.of(result) for name, result in results.items()}
    height = 70 + sum(70 + 26 * len(profile.groups) for profile in profiles.values())
    figure = make_subplots(
        rows=len(profiles),
        cols=1,
        subplot_titles=list(profiles) if len(profiles) > 1 else None,
        vertical_spacing=56 / height if len(profiles) > 1 else 0.0,
        row_heights=[len(profile.groups) for profile in profiles.values()],
    )
    figure.update_layout(blank_figure("", "").layout.to_plotly_json())
    highest = max((float(np.nanmax(profile.load)) for profile in profiles.values()), default=0.0)
    for row, profile in enumerate(profiles.values(), start=1):
        figure.add_trace(_load_map(profile), row=row, col=1)
        width = profile.cells + _gap(profile)
        figure.update_xaxes(
            tickvals=[index * width + (profile.cells - 1) / 2 for index in range(len(profile.planes))],
            ticktext=_plane_ticks(profile),
            ticks="",
            showgrid=False,
            row=row,
            col=1,
        )
        figure.update_yaxes(autorange="reversed", showgrid=False, ticks="", row=row, col=1)
    figure.update_xaxes(linecolor="rgba(0,0,0,0)", zeroline=False)
    figure.update_yaxes(linecolor="rgba(0,0,0,0)", automargin=True)
    figure.update_annotations(font={"size": 12}, x=0, xanchor="left")
    figure.update_layout(
        height=height,
        hovermode="closest",
        margin={"t": 30, "b": 70},
        coloraxis={
            "colorscale": LOAD_SCALE,
            "cmin": 0,
            "cmax": max(0.01, highest) * 100,
            "colorbar": {
                "orientation": "h",
                "ticksuffix": " %",
                "thickness": 10,
                "y": 0,
                "yref": "container",
                "yanchor": "bottom",
                "x": 0.5,
                "outlinewidth": 0,
            },
        },
    )
    return figure


def _gap(profile: LoadProfile) -> int:
    return max(1, profile.cells // 12)


def _plane_ticks(profile: LoadProfile) -> list[str]:
    if len(profile.planes) == 1:
        return [""]
    every = -(-len(profile.planes) // 16)
    stem = "plane " if len(profile.planes) <= 4 else ""
    names = [f"{stem}{plane}" if plane >= 0 else "between planes" for plane in profile.planes]
    return [name if index % every == 0 else "" for index, name in enumerate(names)]


def _load_map(profile: LoadProfile) -> go.Heatmap:
    gap, cells, planes = _gap(profile), profile.cells, len(profile.planes)
    rows = len(profile.groups)
    load = profile.load.reshape(rows, planes, cells)
    padded = np.full((rows, planes, cells + gap), np.nan)
    padded[:, :, :cells] = 100 * load
    words = [
        [
            (
                f"{group}, plane {plane}: {profile.links[row, column]:,} links, "
                f"{load_text(profile.mean[row, column])} on average"
                if profile.links[row, column]
                else ""
            )
            for column, plane in enumerate(profile.planes)
        ]
        for row, group in enumerate(profile.groups)
    ]
    return go.Heatmap(
        z=[[None if np.isnan(v) else round(float(v), 2) for v in line] for line in padded.reshape(rows, -1)],
        y=list(profile.groups),
        text=[
            [words[row][column] for column in range(planes) for _ in range(cells + gap)]
            for row in range(rows)
        ],
        hovertemplate="%{z:.3g} %<br>%{text}<extra></extra>",
        hoverongaps=False,
        coloraxis="coloraxis",
        ygap=3,
    )
