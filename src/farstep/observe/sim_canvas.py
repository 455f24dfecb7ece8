"""What the figures of a simulation have in common: one look per result, faults by number, times with a unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from farstep.observe.canvas import DASHES, PALETTE, shade
from farstep.observe.sim_view import SimulatedFault, SimulationResult, TimeUnit, fault_marks, window_ns

Results = Mapping[str, SimulationResult]

TIME_TITLE = "simulated time ({})"


def line_of(index: int, **more: Any) -> dict[str, Any]:
    """Returns colour and dash of the result of that number."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "dash": DASHES[index // len(PALETTE) % len(DASHES)],
        "width": 1.8,
        **more,
    }


def mark_faults(
    figure: go.Figure,
    faults: Sequence[SimulatedFault],
    results: Results,
    unit: TimeUnit,
    *,
    span: tuple[float, float] | None = None,
    **where: Any,
) -> None:
    """Shades the faults and gives them the numbers they have in the table of faults.

    Args:
        figure: figure to shade.
        faults: all faults of the result, in their order.
        results: what the figure shows.
        unit: unit of its time.
        span: from when to when it shows, in ns; None: the window of the results, to which its axis is set.
        where: `row` and `col` of the subplots.
    """
    low, high = span or (0.0, window_ns(results))
    for start, end, number in fault_marks(faults, high - low):
        if start > high or (end or start) < low:
            continue
        shade(
            figure,
            max(low, start) / unit.ns,
            (start if end is None else min(end, high)) / unit.ns,
            number,
            **where,
        )
    if span is None:
        figure.update_xaxes(range=[low / unit.ns, high / unit.ns])


def rate_unit_of(highest_gbps: float) -> tuple[float, str]:
    """Returns the unit in which a rate has few digits: Gb/s in it, and its name."""
    return (
        (1000.0, "Tb/s") if highest_gbps >= 2000 else (1.0, "Gb/s") if highest_gbps >= 2 else (1e-3, "Mb/s")
    )


def digits(values: Any) -> list[float]:
    """Five digits: as many as a figure can show, and a page a third as long."""
    return [float(f"{value:.5g}") for value in np.asarray(values, np.float64).tolist()]
