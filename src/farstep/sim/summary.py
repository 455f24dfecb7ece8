"""Results as people read them: figures by name, one table for one or several results, the slowest flow's story."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from farstep.sim.result import Quantiles, SimResult

__all__ = ["duration", "metrics_of", "rate", "render", "story_of"]

OF_PACKETS = ("packets", "dropped", "trimmed", "declared lost", "retransmitted", "  of packets", "  in vain")
"""Rows that say nothing of a simulation without packets."""

STORY_EVENTS_MAX = 8
"""Changes of path states told in a story; the rest is counted."""


def metrics_of(result: SimResult) -> dict[str, Any]:
    """The figures of a result by name; what cannot be said of it is None."""
    worst = result.worst_link
    load = result.links.utilisation(result.duration_ns)
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
        "trims": int(result.trims.sum()),
        "declared_lost": int(result.declared_lost.sum()),
        "spurious": int(result.spurious.sum()),
        "retransmitted": int(result.retransmitted.sum()),
        "retransmission_ratio": result.retransmission_ratio,
        "plane_balance": result.plane_balance,
        "max_queue_bytes": int(result.links.max_queue_bytes.max(initial=0)),
        "worst_link": None if worst is None else result.links.name(worst),
        "worst_link_utilisation": None if worst is None else float(load[worst]),
    }
    return figures


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


def _share(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}%}".replace("%", " %")


def _rows(result: SimResult) -> dict[str, str]:
    figures = metrics_of(result)
    times = {
        f"{label} {part.upper()}": duration(figures[f"{name}_{part}_ns"])
        for name, label in (("flow_time", "flow time"), ("step_time", "step time"))
        for part in ("p50", "p99", "p100")
    }
    balance, victim, jain = figures["plane_balance"], figures["victim_ratio"], figures["jain"]
    rows = {
        "tasks unfinished": str(figures["unfinished_tasks"] or "-"),
        **times,
        "duration": duration(figures["duration_ns"]),
        "goodput": rate(figures["goodput_gbps"]),
        "fairness (Jain)": "-" if jain is None else f"{jain:.4f}",
        "victim's share": _share(victim, 1),
        "packets": f"{figures['packets']:,}",
        "dropped": f"{figures['dropped']:,}",
        "trimmed": f"{figures['trims']:,}",
        "declared lost": f"{figures['declared_lost']:,}",
        "retransmitted": f"{figures['retransmitted']:,}",
        "  of packets": _share(figures["retransmission_ratio"]),
        "  in vain": f"{figures['spurious']:,}",
        "plane balance": "-" if balance is None else f"{balance:.3f}",
        "longest queue": f"{figures['max_queue_bytes'] / 1000:,.0f} kB",
        "worst link": _share(figures["worst_link_utilisation"], 1),
    }
    if figures["steps"] == 1:  # all quantiles of one step are that step
        rows["step time P50"] = rows["step time P99"] = "-"
    if not figures["packets"]:
        for name in OF_PACKETS:
            rows[name] = "-"
    if not figures["max_queue_bytes"]:  # a level that knows of no queue
        rows["longest queue"] = "-"
    return rows


def render(results: Mapping[str, SimResult], *, width: int = 110) -> str:
    """Renders results side by side, one column each; rows that say nothing anywhere are left out.

    Args:
        results: by the name to show, such as the transport.
        width: columns of the terminal.
    """
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


def story_of(result: SimResult) -> list[str]:
    """What is known of the slowest flow: when, how slow, what was lost, which links and faults it met."""
    task = result.worst_flow
    if task is None:
        return ["There is no flow."]
    start = int(result.start_ns[task])
    is_done = bool(result.finished[task])
    finish = int(result.finish_ns[task]) if is_done else start + result.duration_ns
    flow_time = result.flow_time
    lines = [f"The slowest flow is {result.tasks.describe(task)}, started at {duration(start)}."]
    if is_done and flow_time is not None:
        ratio = (finish - start) / max(flow_time.p50_ns, 1.0)
        lines.append(f"It took {duration(finish - start)}, {ratio:.2f} times the median.")
    elif not is_done:
        lines.append("It was not done when the simulation ended.")
    lines.append(
        f"It sent {result.packets[task]:,} packets, {result.retransmitted[task]:,} of them again; "
        f"{result.dropped[task]:,} were dropped and {result.trims[task]:,} trimmed on the way, "
        f"{result.declared_lost[task]:,} were given up, {result.spurious[task]:,} of them in vain."
    )
    lines += _story_links(result, task)
    lines += _story_events(result, task, start, finish)
    for fault in result.meta.get("faults", []):
        at_ns = int(fault.get("time_ns", -1))
        if at_ns <= finish:
            when = "before" if at_ns < start else "during"
            lines.append(f"Fault {when} it: {fault.get('text', fault.get('kind'))} at {duration(at_ns)}.")
    return lines


def _story_links(result: SimResult, task: int) -> list[str]:
    """The links every packet of the flow shares: out of its source and into its target, one of each per plane."""
    load = result.links.utilisation(result.duration_ns)
    source, target = int(result.tasks.source[task]), int(result.tasks.target[task])
    lines = []
    for words, ends in (
        ("leaves by", np.flatnonzero(result.links.source == source)),
        ("arrives by", np.flatnonzero(result.links.target == target)),
    ):
        if not ends.size:
            continue
        worst = int(ends[np.argmax(load[ends])])
        several = f"the busiest of {len(ends)} links, " if len(ends) > 1 else ""
        lines.append(
            f"It {words} {several}{result.links.name(worst)}: {_share(float(load[worst]), 1)} used, "
            f"{result.links.drops[worst]:,} drops, {result.links.trims[worst]:,} trims."
        )
    return lines


def _story_events(result: SimResult, task: int, start_ns: int, finish_ns: int) -> list[str]:
    events = result.ev_events
    if not events or "source" not in events or not len(events["time_ns"]):
        return []
    mine = (events["source"] == result.tasks.source[task]) & (events["target"] == result.tasks.target[task])
    mine &= (events["time_ns"] >= start_ns) & (events["time_ns"] <= finish_ns)
    rows = np.flatnonzero(mine)
    lines = [
        f"Path {events['ev'][row]} (plane {events['plane'][row]}) became {_state(events['state'][row])} "
        f"at {duration(int(events['time_ns'][row]))}."
        for row in rows[:STORY_EVENTS_MAX]
    ]
    if len(rows) > STORY_EVENTS_MAX:
        lines.append(f"{len(rows) - STORY_EVENTS_MAX} more changes of its paths followed.")
    return lines


def _state(state: Any) -> str:
    names = ("GOOD", "SKIP", "ASSUMED_BAD", "DENIED")
    return str(state) if isinstance(state, str) or not 0 <= int(state) < len(names) else names[int(state)]
