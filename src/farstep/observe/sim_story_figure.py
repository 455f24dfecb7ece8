"""The figure of the slowest flow: when it ran, what it waited for, and what became of its paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from farstep.observe.canvas import GREY, PALETTE, STATE_COLOURS, blank_figure
from farstep.observe.sim_canvas import TIME_TITLE, digits, mark_faults
from farstep.observe.sim_view import (
    STATES,
    SimulatedFault,
    SimulationResult,
    TimeUnit,
    chain,
    counted_flows,
    end_ns,
    task_name,
    time_text,
)

ROW_PX = 38
"""Height of a bar with its name."""
EVENTS_SHOWN_MAX = 400
"""Changes of paths drawn for the slowest flow."""


def worst_flow_figure(result: SimulationResult, faults: Sequence[SimulatedFault]) -> go.Figure | None:
    """When the slowest flow and what it waited for ran, against a flow of median length, and its paths' changes."""
    task = result.worst_flow
    if task is None:
        return None
    bars = [(task_name(result, each), *_from_to(result, each)) for each in chain(result, task)]
    start, finish = bars[-1][1], bars[-1][2]
    flows = counted_flows(result) & result.finished
    if flows.any():
        median = float(np.median(result.finish_ns[flows] - result.start_ns[flows]))
        bars.append(("a flow of median length", start, start + median))
    unit = TimeUnit.of(max(end for _, _, end in bars))
    figure = blank_figure(TIME_TITLE.format(unit.name), "")
    for index, (_, begin, end) in enumerate(bars):
        is_worst = index == len(bars) - (2 if flows.any() else 1)
        figure.add_trace(
            go.Bar(
                x=[(end - begin) / unit.ns],
                base=[begin / unit.ns],
                y=[index],
                orientation="h",
                width=0.42,
                marker={"color": PALETTE[5] if is_worst else PALETTE[0] if index < len(bars) - 1 else GREY},
                showlegend=False,
                hovertemplate=f"{time_text(begin)} to {time_text(end)}<extra></extra>",
            )
        )
    rows = [name for name, _, _ in bars]
    rows += _add_changes(figure, result, task, start, finish, unit, len(rows))
    # Names stand above their rows: beside them they would take half of a narrow screen.
    for index, name in enumerate(rows):
        figure.add_annotation(
            x=0,
            xref="paper",
            xanchor="left",
            y=index - 0.24,
            yanchor="bottom",
            text=name,
            showarrow=False,
            font={"size": 11},
        )
    figure.update_yaxes(showticklabels=False, ticks="", range=[len(rows) - 0.6, -1.3], showgrid=False)
    figure.update_layout(height=126 + ROW_PX * len(rows), hovermode="closest", barmode="overlay")
    low = min(begin for _, begin, _ in bars)
    high = max(end for _, _, end in bars)
    margin = 0.02 * (high - low)
    figure.update_xaxes(range=[(low - margin) / unit.ns, (high + margin) / unit.ns])
    mark_faults(figure, faults, {"": result}, unit, span=(low, high))
    return figure


def _from_to(result: SimulationResult, task: int) -> tuple[float, float]:
    start = float(max(0, result.start_ns[task]))
    return start, float(result.finish_ns[task]) if result.finished[task] else float(end_ns(result))


def _add_changes(
    figure: go.Figure,
    result: SimulationResult,
    task: int,
    start: float,
    finish: float,
    unit: TimeUnit,
    first_row: int,
) -> list[str]:
    """Marks the changes of the flow's paths, one row per plane; returns the names of the rows."""
    events = result.ev_events
    if not len(events.get("time_ns", ())):
        return []
    mine = (events["source"] == result.tasks.source[task]) & (events["target"] == result.tasks.target[task])
    mine &= (events["time_ns"] >= start) & (events["time_ns"] <= finish)
    chosen = np.flatnonzero(mine)[:EVENTS_SHOWN_MAX]
    planes = sorted(set(events["plane"][chosen].tolist()))
    for number, state in enumerate(STATES):
        here = chosen[events["state"][chosen] == number]
        if len(here):
            figure.add_trace(
                go.Scatter(
                    x=digits(events["time_ns"][here] / unit.ns),
                    y=[first_row + planes.index(plane) for plane in events["plane"][here].tolist()],
                    mode="markers",
                    name=f"a path became {state}",
                    marker={
                        "color": STATE_COLOURS[state],
                        "symbol": ("circle", "diamond", "x", "square")[number],
                        "size": 9,
                    },
                    customdata=events["ev"][here].tolist(),
                    hovertemplate=f"EV %{{customdata}}: {state}<extra></extra>",
                )
            )
    return [f"paths of plane {plane}" for plane in planes]
