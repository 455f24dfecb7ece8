"""Figures, lines and names of a simulation as its report words them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from farstep.observe.page import table
from farstep.observe.sim_view import SimulationResult, load_text, time_text
from farstep.observe.units import quantity_text

__all__ = ["ends_html", "figure_text", "typeset"]


def figure_text(value: Any, kind: str) -> str:
    """Renders a figure by its kind, such as `bytes`; `-` if it is not known."""
    if value is None:
        return "-"
    match kind:
        case "time":
            return time_text(float(value))
        case "count":
            return f"{int(value):,}"
        case "rate":
            return quantity_text(float(value) * 1e9, "b/s")
        case "bytes":
            return quantity_text(float(value), "B")
        case "share":
            return load_text(float(value))
        case "ratio":
            return f"{float(value):.4g}"
    raise ValueError(f"no kind of figure is called {kind!r}")


def typeset(line: str) -> str:
    """Writes what a terminal was spared: micro signs and large units. Names stay as fault scripts take them."""
    line = re.sub(r"\b(\d{4,}) B\b", lambda found: quantity_text(int(found[1]), "B"), line)
    return re.sub(r"(?<=\d) us\b", " µs", line)


def ends_html(result: SimulationResult) -> str:
    """The first and last links of the slowest flow, which all its packets take one of."""
    task = result.worst_flow
    if task is None:
        return ""
    links = result.links
    load = links.utilisation(result.duration_ns)
    chosen = np.concatenate(
        (
            np.flatnonzero(links.source == result.tasks.source[task])[:16],
            np.flatnonzero(links.target == result.tasks.target[task])[:16],
        )
    )
    known = [
        (title, column, kind)
        for title, column, kind in (
            ("drops", links.drops, "count"),
            ("trims", links.trims, "count"),
            ("longest queue", links.max_queue_bytes, "bytes"),
        )
        if column is not None
    ]
    rows = [
        (
            typeset(links.name(link)),
            load_text(load[link]),
            *(figure_text(int(column[link]), kind) for _, column, kind in known),
        )
        for link in chosen.tolist()
    ]
    content = table(("link", "load", *(title for title, _, _ in known)), rows)
    return f"<details><summary>its first and last links</summary>{content}</details>"
