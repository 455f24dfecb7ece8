"""The figures of a simulation's report.

A transport has one colour in all figures. Faults are shaded from when to when and numbered as in the table of
faults, since their names would lie across each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from farstep.observe.canvas import STATE_COLOURS, axis_style, blank_figure
from farstep.observe.sim_canvas import TIME_TITLE, Results, digits, line_of, mark_faults, rate_unit_of
from farstep.observe.sim_view import (
    STATES,
    SimulatedFault,
    SimulationResult,
    TimeUnit,
    column_names,
    counted_flows,
    distribution,
    group_names,
    sampled_peaks,
    sampled_sums,
    state_counts,
    under_way,
    window_ns,
)

ROW_PX = 150
"""Height of one of several figures above each other."""
COUNT_NAMES = {"dropped": "dropped", "trims": "trimmed", "retransmitted": "sent again"}
"""Series of counts, and what happened to the packets."""


# ---- flow times ----


def flow_time_figure(results: Results) -> go.Figure:
    """Share of all flows that took no longer than what, one line per result."""
    unit, curves = _distributions(results)
    figure = blank_figure(f"flow time ({unit.name})", "share of the flows (%)")
    for index, (name, (times, shares)) in enumerate(curves.items()):
        figure.add_trace(
            go.Scatter(
                x=digits(np.concatenate((times[:1], times))),
                y=digits(np.concatenate(([0.0], 100 * shares))),
                name=name,
                mode="lines",
                line=line_of(index, shape="hv"),
                hovertemplate="%{y:.4g} % within %{x:.4g} " + unit.name,
            )
        )
    figure.update_layout(hovermode="closest")
    figure.update_yaxes(range=[0, 103])
    _suit_range(figure, [times for times, _ in curves.values()])
    return figure


def flow_tail_figure(results: Results) -> go.Figure:
    """Share of all flows that took longer than what, on a logarithmic axis, where the slowest are seen."""
    unit, curves = _distributions(results)
    figure = blank_figure(f"flow time ({unit.name})", "share that took longer (%)")
    lowest = 100.0
    for index, (name, (times, shares)) in enumerate(curves.items()):
        longer = 100 * (1 - shares)
        shown = longer > 1e-9
        lowest = min(lowest, float(longer[shown].min(initial=100.0)))
        figure.add_trace(
            go.Scatter(
                x=digits(np.append(times[shown], times[-1:])),
                y=digits(np.append(longer[shown], longer[shown][-1:])),
                name=name,
                mode="lines",
                line=line_of(index, shape="hv"),
                hovertemplate="%{y:.3g} % took longer than %{x:.4g} " + unit.name,
            )
        )
        figure.add_trace(
            go.Scatter(
                x=digits(times[-1:]),
                y=digits(longer[shown][-1:]),
                mode="markers",
                marker={"color": line_of(index)["color"], "size": 8},
                showlegend=False,
                name=name,
                hovertemplate="the slowest: %{x:.4g} " + unit.name,
            )
        )
    decades = range(int(np.floor(np.log10(lowest))), 3)
    ticks = [10.0**decade for decade in decades]
    figure.update_yaxes(
        type="log", range=[np.log10(lowest) - 0.2, 2.1], tickvals=ticks, ticktext=[f"{t:g}" for t in ticks]
    )
    figure.update_layout(hovermode="closest", showlegend=len(curves) > 1)
    _suit_range(figure, [times for times, _ in curves.values()])
    return figure


def _distributions(results: Results) -> tuple[TimeUnit, dict[str, tuple[Any, Any]]]:
    curves = {}
    for name, result in results.items():
        flows = counted_flows(result)
        done = flows & result.finished
        if done.any():
            lasted = result.finish_ns[done] - result.start_ns[done]
            curves[name] = distribution(lasted, int(flows.sum()))
    longest = max(float(times[-1]) for times, _ in curves.values())
    unit = TimeUnit.of(longest)
    return unit, {name: (times / unit.ns, shares) for name, (times, shares) in curves.items()}


def _suit_range(figure: go.Figure, times: Sequence[Any]) -> None:
    """Makes the axis logarithmic where the slowest would squeeze all others to the left."""
    low = min(float(each[0]) for each in times)
    high = max(float(each[-1]) for each in times)
    if low > 0 and high > 8 * low:
        figure.update_xaxes(
            type="log", range=[np.log10(low * 0.95), np.log10(high * 1.05)], **_log_ticks(low, high)
        )
    else:
        margin = 0.03 * (high - low) or 0.05 * high
        figure.update_xaxes(range=[low - margin, high + margin])


def _log_ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks of a logarithmic axis, whole figures at each: 1, 2 and 5 of a decade, or 1 alone of many."""
    parts = (1, 2, 5) if high < 1e4 * low else (1,)
    ticks = [f * 10.0**d for d in range(-6, 10) for f in parts if low / 2 <= f * 10.0**d <= 2 * high]
    return {"tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}


def step_time_figure(results: Results) -> go.Figure:
    """Time of every step, one line per result."""
    times = {name: each for name, result in results.items() if len(each := result.step_times_ns())}
    unit = TimeUnit.of(max(float(each.max(initial=1)) for each in times.values()))
    figure = blank_figure("step", f"step time ({unit.name})")
    for index, (name, each) in enumerate(times.items()):
        few = len(each) <= 60
        figure.add_trace(
            go.Scatter(
                x=np.arange(len(each)).tolist(),
                y=digits(each / unit.ns),
                name=name,
                mode="lines+markers" if few else "lines",
                line=line_of(index),
                marker={"size": 5},
            )
        )
    low, high = min(each.min() for each in times.values()), max(each.max() for each in times.values())
    if low > 0 and high > 8 * low:
        figure.update_yaxes(type="log", **_log_ticks(low / unit.ns, high / unit.ns))
    else:
        figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(tickformat="d", dtick=1 if max(map(len, times.values())) <= 12 else None)
    figure.update_layout(showlegend=len(times) > 1)
    return figure


# ---- over time ----


def goodput_figure(results: Results, faults: Sequence[SimulatedFault]) -> go.Figure:
    """Payload delivered per time, all NICs together, one line per result."""
    window = window_ns(results)
    rates = {}
    for name, result in results.items():
        ends, lasted, amounts = sampled_sums(result, "goodput_bytes", window)
        rates[name] = (ends, amounts[:, 0] * 8 / lasted)
    scale, rate_unit = rate_unit_of(max(float(rate.max(initial=0)) for _, rate in rates.values()))
    unit = TimeUnit.of(window_ns(results))
    figure = blank_figure(TIME_TITLE.format(unit.name), f"delivered ({rate_unit})")
    for index, (name, (ends, rate)) in enumerate(rates.items()):
        figure.add_trace(
            go.Scatter(
                x=digits(ends / unit.ns),
                y=digits(rate / scale),
                name=name,
                mode="lines",
                line=line_of(index),
            )
        )
    figure.update_yaxes(rangemode="tozero")
    mark_faults(figure, faults, results, unit)
    return figure


def plane_figure(result: SimulationResult, faults: Sequence[SimulatedFault]) -> go.Figure:
    """What the NICs sent into each plane, one line per plane."""
    window = window_ns({"": result})
    ends, lasted, amounts = sampled_sums(result, "plane_bytes", window)
    rates = amounts * 8 / lasted[:, None]
    scale, rate_unit = rate_unit_of(float(rates.max(initial=0)))
    unit = TimeUnit.of(window)
    figure = blank_figure(TIME_TITLE.format(unit.name), f"sent into a plane ({rate_unit})")
    for index, name in enumerate(column_names(result, "plane_bytes")):
        figure.add_trace(
            go.Scatter(
                x=digits(ends / unit.ns),
                y=digits(rates[:, index] / scale),
                name=name,
                mode="lines",
                line=line_of(index, width=1.3),
            )
        )
    figure.update_yaxes(rangemode="tozero")
    mark_faults(figure, faults, {"": result}, unit)
    return figure


def under_way_figure(results: Results, faults: Sequence[SimulatedFault]) -> go.Figure:
    """Flows that had begun and were not done, over time."""
    window = window_ns(results)
    unit = TimeUnit.of(window)
    figure = blank_figure(TIME_TITLE.format(unit.name), "flows under way")
    for index, (name, result) in enumerate(results.items()):
        times, counts = under_way(result, window)
        figure.add_trace(
            go.Scatter(
                x=digits(times / unit.ns),
                y=counts.tolist(),
                name=name,
                mode="lines",
                line=line_of(index, shape="hv"),
            )
        )
    figure.update_yaxes(rangemode="tozero")
    mark_faults(figure, faults, results, unit)
    return figure


def queue_figure(results: Results, faults: Sequence[SimulatedFault]) -> go.Figure:
    """The deepest queue between each two tiers over time, one figure above the other."""
    window = window_ns(results)
    names = list(
        dict.fromkeys(n for result in results.values() for n in group_names(result, "queue_max_bytes"))
    )
    peaks = {name: sampled_peaks(result, "queue_max_bytes", window) for name, result in results.items()}
    used = [
        group
        for group in names
        if any(_column(result, peaks[name][1], group).max(initial=0) for name, result in results.items())
    ] or names[:1]
    figure, unit = _stacked(results, [f"in front of {group} (kB)" for group in used])
    for index, (name, result) in enumerate(results.items()):
        ends, depth = peaks[name]
        for row, group in enumerate(used, start=1):
            figure.add_trace(
                go.Scatter(
                    x=digits(ends / unit.ns),
                    y=digits(_column(result, depth, group) / 1000),
                    name=name,
                    legendgroup=name,
                    showlegend=row == 1,
                    mode="lines",
                    line=line_of(index, width=1.4),
                ),
                row=row,
                col=1,
            )
    mark_faults(figure, faults, results, unit, row="all", col=1)
    return figure


def _column(result: SimulationResult, values: Any, group: str) -> Any:
    names = column_names(result, "queue_max_bytes")
    return values[:, names.index(group)] if group in names else np.zeros(len(values))


def count_figure(results: Results, faults: Sequence[SimulatedFault], names: Sequence[str]) -> go.Figure:
    """Packets dropped, trimmed and sent again so far, one figure above the other."""
    window = window_ns(results)
    figure, unit = _stacked(results, [f"packets {COUNT_NAMES[name]} so far" for name in names])
    for index, (label, result) in enumerate(results.items()):
        for row, name in enumerate(names, start=1):
            ends, _, amounts = sampled_sums(result, name, window)
            figure.add_trace(
                go.Scatter(
                    x=[0.0, *digits(ends / unit.ns)],
                    y=[0.0, *np.cumsum(amounts[:, 0]).tolist()],
                    name=label,
                    legendgroup=label,
                    showlegend=row == 1,
                    mode="lines",
                    line=line_of(index),
                ),
                row=row,
                col=1,
            )
    mark_faults(figure, faults, results, unit, row="all", col=1)
    return figure


def state_figure(results: Results, faults: Sequence[SimulatedFault]) -> go.Figure:
    """How many entropy values are not in use, and why, over time; one figure per result."""
    window = window_ns(results)
    counts = {
        name: found for name, result in results.items() if (found := state_counts(result, window)) is not None
    }
    figure, unit = _stacked({name: results[name] for name in counts}, list(counts))
    for row, (times, states) in enumerate(counts.values(), start=1):
        for number, state in enumerate(STATES[1:], start=1):
            if not states[:, number].any() and not (
                row == 1 and any(c[1][:, number].any() for c in counts.values())
            ):
                continue
            figure.add_trace(
                go.Scatter(
                    x=digits(times / unit.ns),
                    y=states[:, number].tolist(),
                    name=state,
                    legendgroup=state,
                    showlegend=row == 1,
                    mode="lines",
                    stackgroup=f"states {row}",
                    line={"color": STATE_COLOURS[state], "width": 1, "shape": "hv"},
                ),
                row=row,
                col=1,
            )
    figure.update_layout(showlegend=True)
    for row in range(1, len(counts) + 1):
        figure.update_yaxes(title={"text": "EVs"}, row=row, col=1)
    mark_faults(figure, faults, results, unit, row="all", col=1)
    return figure


def _stacked(results: Results, titles: Sequence[str]) -> tuple[go.Figure, TimeUnit]:
    """Returns figures above each other with one axis of time, and its unit."""
    rows = len(titles)
    height = 110 + ROW_PX * rows
    figure = make_subplots(
        rows=rows,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=34 / height if rows > 1 else 0.0,
        subplot_titles=list(titles),
    )
    unit = TimeUnit.of(window_ns(results))
    blank = blank_figure("", "")
    figure.update_layout(blank.layout.to_plotly_json())
    figure.update_xaxes(**axis_style())
    figure.update_yaxes(**axis_style(), rangemode="tozero", nticks=5)
    figure.update_xaxes(title={"text": TIME_TITLE.format(unit.name)}, row=rows, col=1)
    figure.update_annotations(font={"size": 12}, x=0, xanchor="left")
    figure.update_layout(
        height=height,
        margin={"t": 64},
        legend={"y": 1, "yref": "container", "yanchor": "top"},
        hovermode="x unified" if rows == 1 else "x",
        showlegend=len(results) > 1,
    )
    return figure, unit
