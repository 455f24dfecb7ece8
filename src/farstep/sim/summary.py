"""Results as people read them: figures by name, and one table for one or several results."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from farstep.fabric.errors import ConfigError
from farstep.fabric.expected import expect
from farstep.sim.result import Quantiles, SimResult

__all__ = ["duration", "metrics_of", "rate", "render", "share"]

OF_PACKETS = (
    "packets",
    "dropped",
    "trimmed",
    "declared lost",
    "retransmitted",
    "  of packets",
    "  arrived twice",
)
"""Rows that say nothing of a simulation without packets."""


def metrics_of(result: SimResult) -> dict[str, Any]:
    """The figures of a result by name; what cannot be said of it is None."""
    worst = result.worst_link
    load, queues = result.links.utilisation(result.duration_ns), result.links.max_queue_bytes
    figures: dict[str, Any] = {
        "flows": result.tasks.num_flows,
        "unfinished_tasks": int((~result.finished).sum()),
        "duration_ns": result.duration_ns,
        **_quantile_figures("flow_time", result.flow_time),
        **_quantile_figures("step_time", result.step_time),
        "steps": len(result.step_times_ns()),
        "goodput_gbps": result.goodput_gbps,
        "jain": result.jain(),
        "victim_ratio": result.victim_ratio,
        "packets": int(result.packets.sum()),
        "dropped": int(result.dropped.sum()),
        "trims": _total(result, "trims"),
        "declared_lost": int(result.declared_lost.sum()),
        "spurious": _total(result, "spurious"),
        "retransmitted": int(result.retransmitted.sum()),
        "retransmission_ratio": result.retransmission_ratio,
        "plane_balance": result.plane_balance,
        "max_queue_bytes": None if queues is None else int(queues.max(initial=0)),
        "worst_link": None if worst is None else result.links.name(worst),
        "worst_link_utilisation": None if worst is None else float(load[worst]),
    }
    return figures


def _total(result: SimResult, name: str) -> int | None:
    return None if name in result.meta.get("unmeasured", ()) else int(getattr(result, name).sum())


def _quantile_figures(name: str, found: Quantiles | None) -> dict[str, float | None]:
    return {
        f"{name}_{part}_ns": getattr(found, f"{part}_ns") if found else None
        for part in ("p50", "p99", "p100")
    }


def duration(time_ns: float | None) -> str:
    """Renders a time with the unit that suits it, such as `201.3 us`."""
    if time_ns is None:
        return "-"
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time_ns >= scale:
            return f"{time_ns / scale:.4g} {unit}"
    return f"{time_ns:.0f} ns"


def rate(gbps: float | None) -> str:
    """Renders a rate with the unit that suits it, such as `98.4 Gb/s`."""
    if gbps is None:
        return "-"
    return f"{gbps / 1000:.4g} Tb/s" if gbps >= 1000 else f"{gbps:.4g} Gb/s"


def share(value: float | None, digits: int = 2) -> str:
    """Renders a part of a whole as a percentage, such as `12.34 %`."""
    return "-" if value is None else f"{value:.{digits}%}".replace("%", " %")


def _rows(result: SimResult) -> dict[str, str]:
    figures = metrics_of(result)
    times = {
        f"{label} {part.upper()}": duration(figures[f"{name}_{part}_ns"])
        for name, label in (("flow_time", "flow time"), ("step_time", "step time"))
        for part in ("p50", "p99", "p100")
    }
    queue_bytes: int | None = figures["max_queue_bytes"]
    balance, victim, jain = figures["plane_balance"], figures["victim_ratio"], figures["jain"]
    rows = {
        "tasks unfinished": str(figures["unfinished_tasks"] or "-"),
        **times,
        "duration": duration(figures["duration_ns"]),
        "goodput": rate(figures["goodput_gbps"]),
        "fairness (Jain)": "-" if jain is None else f"{jain:.4f}",
        "victim's share": share(victim, 1),
        "packets": f"{figures['packets']:,}",
        "dropped": f"{figures['dropped']:,}",
        "trimmed": _count(figures["trims"]),
        "declared lost": f"{figures['declared_lost']:,}",
        "retransmitted": f"{figures['retransmitted']:,}",
        "  of packets": share(figures["retransmission_ratio"]),
        "  arrived twice": _count(figures["spurious"]),
        "plane balance": "-" if balance is None else f"{balance:.3f}",
        "longest queue": "-" if queue_bytes is None else f"{queue_bytes / 1000:,.0f} kB",
        "worst link": share(figures["worst_link_utilisation"], 1),
    }
    if figures["steps"] == 1:  # all quantiles of one step are that step
        rows["step time P50"] = rows["step time P99"] = "-"
    if not figures["packets"]:
        for name in OF_PACKETS:
            rows[name] = "-"
    return rows


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def render(results: Mapping[str, SimResult], *, width: int = 110) -> str:
    """Renders results side by side, one column each; rows that say nothing anywhere are left out.

    Args:
        results: by the name to show, such as the transport.
        width: columns of the terminal.
    """
    expect("results", results, Mapping, "a table of results by name")
    for result in results.values():
        expect("results", result, SimResult, "a table of results by name")
    if not results:
        raise ConfigError("results = {}: there is nothing to show")
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in results:
        table.add_column(name, justify="right", no_wrap=True)
    columns = [_rows(result) for result in results.values()]
    for label in columns[0]:
        values = [column[label] for column in columns]
        if any(value != "-" for value in values):
            table.add_row(label, *values)
    console = Console(width=width, file=(text := io.StringIO()), color_system=None)
    console.print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    for name, result in results.items():
        worst = result.worst_link
        if worst is not None:
            of = f" of {name}" if len(results) > 1 else ""
            lines.append(f"worst link{of}: {result.links.name(worst)}")
    return "\n".join(line for line in lines if line)
