"""The figures of a report, as plotly figures that take their ink and paper from the page.

Every axis has a unit, every state and fault is named in text as well as coloured, and long runs are
thinned without losing their extremes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import plotly.graph_objects as go

from farstep.observe.canvas import DASHES, PALETTE, STATE_COLOURS, blank_figure, shade, thinned
from farstep.observe.events import PathState
from farstep.observe.step_times import StepTimes
from farstep.observe.timeline import Fault, PathView, StepRow, Timeline

BINS_MAX = 600
"""Bins of a rate over the whole run."""
STEP_BINS_MAX = 60
"""Bars of the distribution of step times; fewer where there are few steps."""
SAMPLE_BIN_S = 0.25
"""Shortest bin of a rate."""


def loss_figure(timeline: Timeline) -> go.Figure:
    """Training loss of every step and held-out loss where it was measured."""
    rows = timeline.rows
    figure = blank_figure("step", "loss (nats per token)")
    steps, losses = thinned([row.step for row in rows], [row.loss for row in rows])
    figure.add_trace(
        go.Scatter(x=steps, y=losses, name="training", mode="lines", line={"color": PALETTE[0], "width": 1.5})
    )
    if timeline.evals:
        figure.add_trace(
            go.Scatter(
                x=[step for _, step, _ in timeline.evals],
                y=[loss for _, _, loss in timeline.evals],
                name="held out",
                mode="lines+markers",
                line={"color": PALETTE[1], "width": 2},
                marker={"size": 7, "symbol": "diamond"},
            )
        )
    for fault in timeline.faults:
        window = _steps_during(fault, rows)
        if window:
            shade(figure, window[0].step - 0.5, window[-1].step + 0.5, fault.title)
    return figure


def step_distribution_figure(rows: Sequence[StepRow], times: StepTimes) -> go.Figure:
    """How often a step took how long, with P50, P99 and P100 marked.

    Axes are logarithmic where the slowest step would squeeze the others into one bar.
    """
    figure = blank_figure("step time (ms)", "number of steps")
    values = [row.step_time_ns / 1e6 for row in rows]
    is_log = max(values) > 2 * times.p50_ns / 1e6 > 0
    num_bins = min(STEP_BINS_MAX, 3 * math.isqrt(len(values)) + 5)
    edges = _bin_edges(min(values), max(values), num_bins, is_log=is_log)
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[min(len(counts), max(1, bisect_right(edges, value))) - 1] += 1
    figure.add_trace(
        go.Bar(
            x=[(low + high) / 2 for low, high in pairwise(edges)],
            width=[high - low for low, high in pairwise(edges)],
            y=counts,
            customdata=[[f"{low:,.1f} to {high:,.1f} ms"] for low, high in pairwise(edges)],
            hovertemplate="%{customdata[0]}: %{y} steps<extra></extra>",
            marker={"color": PALETTE[0], "line": {"width": 0}},
        )
    )
    # Room above the bars for the labels of the marks.
    top = max(counts)
    if is_log:
        ticks = _log_ticks(edges[0], edges[-1])
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,g}" for tick in ticks])
    if is_log and top > 30:
        figure.update_yaxes(type="log", dtick=1, range=[-0.15, 1.5 * math.log10(top) + 0.5])
    else:
        figure.update_yaxes(range=[0, 1.4 * top])
    # P100 is at the right end; its label shares the first line with that of P50 unless P50 is near.
    slowest = f"P100, step {times.slowest_step}"
    position = (times.p50_ns / 1e6 - min(values)) / ((max(values) - min(values)) or 1)
    marks = (
        (0, "P50", times.p50_ns, "solid"),
        (1, "P99", times.p99_ns, "dash"),
        (0 if position < 0.4 else 2, slowest, times.p100_ns, "dot"),
    )
    for level, name, time_ns, dash in marks:
        time_ms = time_ns / 1e6
        figure.add_shape(
            type="line",
            x0=time_ms,
            x1=time_ms,
            y0=0,
            y1=1 - 0.09 * level,  # stops below the labels of the marks before
            yref="paper",
            line={"color": PALETTE[5], "width": 1.5, "dash": dash},
        )
        is_last = name == slowest
        figure.add_annotation(
            x=math.log10(time_ms) if is_log else time_ms,
            y=1 - 0.09 * level,
            yref="paper",
            text=f"{name}: {time_ms:,.1f} ms",
            showarrow=False,
            xanchor="right" if is_last else "left",
            xshift=-5 if is_last else 5,
            yanchor="top",
        )
    figure.update_layout(showlegend=False, bargap=0, hovermode="closest")
    return figure


def _bin_edges(low: float, high: float, num_bins: int, *, is_log: bool) -> list[float]:
    """Returns the edges of bins of equal width (of equal ratio if logarithmic) that hold low and high."""
    if is_log:
        ratio = (high / max(low, 1e-3)) ** (1 / num_bins)
        return [max(low, 1e-3) * ratio**index for index in range(num_bins + 1)]
    width = (high - low) / num_bins or 1.0
    return [low + width * index for index in range(num_bins + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Returns the values 1, 1.5, 2, 3, 5, 7 times a power of ten between low and high."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [f * 10.0**d for d in decades for f in (1, 1.5, 2, 3, 5, 7) if low <= f * 10.0**d <= high]


def step_time_figure(timeline: Timeline) -> go.Figure:
    """Step time over the run, and the part of it spent waiting for gradients."""
    rows = timeline.rows
    figure = blank_figure("time since training began (s)", "step time (ms)")
    series = (
        ("step", [row.step_time_ns / 1e6 for row in rows], PALETTE[0]),
        ("waiting for gradients", [row.allreduce_ns / 1e6 for row in rows], PALETTE[1]),
    )
    for name, values, colour in series:
        times, shown = thinned([row.end_ns / 1e9 for row in rows], values)
        figure.add_trace(
            go.Scatter(x=times, y=shown, name=name, mode="lines", line={"color": colour, "width": 1.3})
        )
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(range=[0, timeline.duration_s])
    _cut_off_warm_up(figure, rows)
    _shade_faults(figure, timeline)
    for loss in timeline.losses:
        figure.add_vline(
            x=loss.t_ns / 1e9,
            line={"color": PALETTE[5], "width": 1, "dash": "dot"},
            annotation_text=loss.group,
            annotation_position="bottom right",
        )
    return figure


def _cut_off_warm_up(figure: go.Figure, rows: Sequence[StepRow]) -> None:
    """Keeps a first step that took much longer than all others from flattening them; says so."""
    rest_ms = max((row.step_time_ns for row in rows[1:]), default=0) / 1e6
    first_ms = rows[0].step_time_ns / 1e6
    if rest_ms == 0 or first_ms < 1.5 * rest_ms:
        return
    figure.update_yaxes(range=[0, 1.3 * rest_ms], autorange=False)
    figure.add_annotation(
        x=rows[0].end_ns / 1e9,
        y=1,
        yref="paper",
        text=f"↑ first step: {first_ms:,.0f} ms",
        showarrow=False,
        xanchor="left",
        xshift=6,
        yanchor="top",
    )


def path_rate_figure(timeline: Timeline, *, around: Fault | None = None) -> go.Figure:
    """Bytes per second sent over each path, over the whole run or around one fault."""
    figure = blank_figure("time since training began (s)", "sent over one path (MB/s)")
    from_s, until_s = 0.0, timeline.duration_s
    if around is not None:
        from_s, until_s = window_around(around, timeline.duration_s)
    bin_s = max(_burst_s(timeline, around), (until_s - from_s) / BINS_MAX)
    for index, path in enumerate(_ordered(timeline)):
        rates = timeline.path_rates(path.name, bin_s, until_s=until_s)
        first = int(from_s / bin_s)
        is_hit = any(_befalls(fault, path) for fault in timeline.faults)
        figure.add_trace(
            go.Scatter(
                x=[round((i + 0.5) * bin_s, 3) for i in range(first, len(rates))],
                y=[rate / 1e6 for rate in rates[first:]],
                name=path.name,
                mode="lines",
                line={
                    "color": PALETTE[index % len(PALETTE)],
                    "width": 2.8 if is_hit else 1.1,
                    "dash": DASHES[index // len(PALETTE) % len(DASHES)],
                },
            )
        )
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(range=[from_s, until_s])
    _shade_faults(figure, timeline)
    return figure


def _burst_s(timeline: Timeline, around: Fault | None) -> float:
    """Returns how long to average: over two steps, as gradients come in bursts, but well within the fault."""
    times = StepTimes.of(timeline.rows)
    wanted_s = 0.0 if times is None else 2 * times.p50_ns / 1e9
    if around is not None and around.end_ns is not None:
        wanted_s = min(wanted_s, (around.end_ns - around.start_ns) / 1e10)
    return max(SAMPLE_BIN_S, wanted_s)


def window_around(fault: Fault, duration_s: float) -> tuple[float, float]:
    """Returns the seconds from which to which a fault is looked at: half its length more on both sides."""
    start_s = fault.start_ns / 1e9
    end_s = duration_s if fault.end_ns is None else fault.end_ns / 1e9
    margin_s = max(2.0, (end_s - start_s) / 2)
    return max(0.0, start_s - margin_s), min(duration_s, end_s + margin_s)


def path_state_figure(timeline: Timeline) -> go.Figure:
    """State of every path over the run, one bar per path; the state is written into the bar where it fits."""
    paths = _ordered(timeline)
    figure = blank_figure("time since training began (s)", "")
    shown: set[PathState] = set()
    for path in paths:
        ends = [*(t_ns for t_ns, _ in path.changes[1:]), round(timeline.duration_s * 1e9)]
        for (start_ns, state), end_ns in zip(path.changes, ends, strict=True):
            is_wide = end_ns - start_ns > 0.06 * timeline.duration_s * 1e9
            figure.add_trace(
                go.Bar(
                    x=[(end_ns - start_ns) / 1e9],
                    base=[start_ns / 1e9],
                    y=[path.name],
                    orientation="h",
                    name=state.value,
                    legendgroup=state.value,
                    showlegend=state not in shown,
                    marker={"color": STATE_COLOURS[state.value], "line": {"width": 0}},
                    text=[state.value if is_wide else ""],
                    textposition="inside",
                    insidetextanchor="middle",
                    insidetextfont={"color": "#ffffff", "size": 11},
                    hovertemplate=f"{state.value} from %{{base:.3f}} s for %{{x:.3f}} s",
                )
            )
            shown.add(state)
    figure.update_yaxes(
        autorange="reversed", type="category", categoryorder="array", categoryarray=[p.name for p in paths]
    )
    figure.update_xaxes(range=[0, timeline.duration_s])
    figure.update_layout(barmode="overlay", bargap=0.3, height=130 + 28 * len(paths), hovermode="closest")
    _shade_faults(figure, timeline, is_named=False)
    return figure


def retransmission_figure(timeline: Timeline) -> go.Figure:
    """Packets sent again, by path, over the run."""
    bin_s = max(0.5, timeline.duration_s / 200)
    figure = blank_figure("time since training began (s)", f"packets resent per {bin_s:.3g} s")
    for index, path in enumerate(_ordered(timeline)):
        counts: dict[int, int] = {}
        for t_ns, _, sample in path.samples:
            if sample.retransmitted:
                counts[int(t_ns / 1e9 / bin_s)] = (
                    counts.get(int(t_ns / 1e9 / bin_s), 0) + sample.retransmitted
                )
        figure.add_trace(
            go.Bar(
                x=[(i + 0.5) * bin_s for i in sorted(counts)],
                y=[counts[i] for i in sorted(counts)],
                width=bin_s,
                name=path.name,
                marker={"color": PALETTE[index % len(PALETTE)], "line": {"width": 0}},
            )
        )
    figure.update_layout(barmode="stack", legend={"traceorder": "normal"})
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(range=[0, timeline.duration_s])
    _shade_faults(figure, timeline)
    return figure


def _shade_faults(figure: go.Figure, timeline: Timeline, *, is_named: bool = True) -> None:
    for fault in timeline.faults:
        end_s = timeline.duration_s if fault.end_ns is None else fault.end_ns / 1e9
        shade(figure, fault.start_ns / 1e9, end_s, fault.title if is_named else "")


def _steps_during(fault: Fault, rows: Iterable[StepRow]) -> list[StepRow]:
    end_ns = math.inf if fault.end_ns is None else fault.end_ns
    return [row for row in rows if row.end_ns > fault.start_ns and row.start_ns < end_ns]


def _befalls(fault: Fault, path: PathView) -> bool:
    words = fault.target.replace("=", " ").replace(",", " ").split()
    return path.name in fault.target or ("plane" in words and str(path.plane) in words)


def _ordered(timeline: Timeline) -> list[PathView]:
    return sorted(timeline.paths.values(), key=lambda path: (path.plane, len(path.name), path.name))
