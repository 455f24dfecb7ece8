"""The packets of a flow that was followed: when each left, how it ended, and by which way it went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from farstep.observe.canvas import GREY, PALETTE, STATE_COLOURS, blank_figure
from farstep.observe.page import figure_html, table
from farstep.observe.sim_canvas import TIME_TITLE, digits, mark_faults
from farstep.observe.sim_view import SimulatedFault, SimulationResult, TimeUnit, time_text

__all__ = ["packets_html"]

PACKETS_SHOWN_MAX = 4_000
"""Packets drawn: every one that did not arrive, and as many of the others as there is room for."""
ROWS_MAX = 200
"""Packets listed: first those that did not arrive and those sent again."""
LOOKS: tuple[tuple[str, str, str], ...] = (
    ("in flight", GREY, "circle-open"),
    ("delivered", PALETTE[0], "circle"),
    ("trimmed", STATE_COLOURS["SKIP"], "diamond"),
    ("dropped: no room", STATE_COLOURS["ASSUMED_BAD"], "x"),
    ("dropped: link down", STATE_COLOURS["DENIED"], "x"),
    ("dropped: bad luck", PALETTE[3], "x"),
)
"""What each number in column `fate` stands for, its colour and its mark."""
DELIVERED = 1


def packets_html(result: SimulationResult, faults: Sequence[SimulatedFault]) -> str:
    """Figure and table of the packets of the slowest flow; empty if they were not followed."""
    task, trace = result.worst_flow, result.trace
    if task is None or not len(trace.get("task", ())):
        return ""
    rows = np.flatnonzero(trace["task"] == task)
    if not len(rows):
        return ""
    packets = {name: column[rows] for name, column in trace.items()}
    note = (
        "Its packets, one mark each: when it left, and its number on the connection. A number that comes again "
        "was sent again."
    )
    listed = _listed(result, packets)
    more = len(rows) - len(listed)
    left = (
        f'<p class="note">{more:,} more arrived at once and are left out of this list.</p>'
        if more > 0
        else ""
    )
    head = ("packet", "sent at", "EV", "plane", "under way", "what became of it", "way")
    return (
        f'<p class="note" style="margin-top:1.4rem">{note}</p>{figure_html(_figure(result, packets, faults))}'
        f"<details><summary>its packets, one by one</summary>{table(head, listed)}{left}</details>"
    )


def _figure(
    result: SimulationResult, packets: dict[str, NDArray[Any]], faults: Sequence[SimulatedFault]
) -> go.Figure:
    low, high = (
        float(packets["sent_ns"].min()),
        float(max(packets["sent_ns"].max(), packets["ended_ns"].max())),
    )
    unit = TimeUnit.of(high)
    figure = blank_figure(TIME_TITLE.format(unit.name), "packet")
    kept = _thinned(packets["fate"])
    for fate, (name, colour, symbol) in enumerate(LOOKS):
        mine = kept[packets["fate"][kept] == fate]
        if not len(mine):
            continue
        figure.add_trace(
            go.Scatter(
                x=digits(packets["sent_ns"][mine] / unit.ns),
                y=packets["sequence"][mine].tolist(),
                mode="markers",
                name=name,
                marker={"color": colour, "symbol": symbol, "size": 5 if fate == DELIVERED else 8},
                customdata=[
                    [int(packets["ev"][row]), int(packets["plane"][row]), _took(packets, row)]
                    for row in mine.tolist()
                ],
                hovertemplate="packet %{y}, EV %{customdata[0]}, plane %{customdata[1]}, %{customdata[2]}",
            )
        )
    figure.update_layout(hovermode="closest", showlegend=True)
    margin = 0.02 * (high - low)
    figure.update_xaxes(range=[(low - margin) / unit.ns, (high + margin) / unit.ns])
    mark_faults(figure, faults, {"": result}, unit, span=(low, high))
    return figure


def _thinned(fate: NDArray[Any]) -> NDArray[np.int64]:
    rows = np.arange(len(fate))
    if len(rows) <= PACKETS_SHOWN_MAX:
        return rows
    whole = rows[fate == DELIVERED]
    room = max(2, PACKETS_SHOWN_MAX - (len(rows) - len(whole)))
    return np.union1d(rows[fate != DELIVERED], whole[:: max(1, -(-len(whole) // room))])


def _took(packets: dict[str, NDArray[Any]], row: int) -> str:
    ended = int(packets["ended_ns"][row])
    return "-" if ended < 0 else time_text(ended - int(packets["sent_ns"][row]))


def _listed(result: SimulationResult, packets: dict[str, NDArray[Any]]) -> list[tuple[str, ...]]:
    """Rows of the table, in the order of sending; what went wrong comes before what did not if not all have room."""
    trouble = (packets["fate"] != DELIVERED) | packets["is_again"]
    order = np.argsort(~trouble, kind="stable")[:ROWS_MAX]
    return [_row(result, packets, row) for row in np.sort(order).tolist()]


def _row(result: SimulationResult, packets: dict[str, NDArray[Any]], row: int) -> tuple[str, ...]:
    again = " again" if packets["is_again"][row] else ""
    end = LOOKS[int(packets["fate"][row])][0] + (", marked" if packets["is_marked"][row] else "")
    if packets["where"][row] >= 0:
        end += f" before {_node(result.links.name(int(packets['where'][row])), -1)}"
    return (
        f"{packets['sequence'][row]:,}{again}",
        time_text(int(packets["sent_ns"][row])),
        str(packets["ev"][row]),
        str(packets["plane"][row]),
        _took(packets, row),
        end,
        _way(result, packets["links"][row]),
    )


def _way(result: SimulationResult, links: NDArray[Any]) -> str:
    """Nodes on the way, such as `nic/3 → t0/p1/7 → nic/5`."""
    names = [result.links.name(link) for link in links[links >= 0].tolist()]
    return " → ".join([_node(names[0], 0), *(_node(name, -1) for name in names)]) if names else "-"


def _node(name: str, end: int) -> str:
    """One end of a link by the link's name, such as `nic/3->t0/p1/7#1`."""
    return name.partition("#")[0].split("->")[end]
