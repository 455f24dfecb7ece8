"""What happened to the slowest flow, in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.sim.result import SimResult
from farstep.sim.summary import duration, share
from farstep.sim.trace import DELIVERED, FATES, TRIMMED

__all__ = ["story_of"]

STORY_EVENTS_MAX = 8
"""Changes of path states told in a story; the rest is counted."""
PAUSE_SHARE = 0.05
"""A pause between two departures is told if it is this part of the flow's time."""


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
    lines.append(_story_counts(result, task))
    lines += _story_links(result, task)
    lines += _story_packets(result, task)
    lines += _story_events(result, task, start, finish)
    lines += _story_faults(result, start, finish)
    return lines


def _story_counts(result: SimResult, task: int) -> str:
    """What became of the flow's packets, as far as the level knows."""
    unknown = result.meta.get("unmeasured", ())
    sent = f"It sent {result.packets[task]:,} packets, {result.retransmitted[task]:,} of them again"
    if "trims" in unknown:
        return f"{sent}; {result.dropped[task]:,} were dropped on the way."
    return (
        f"{sent}; {result.dropped[task]:,} were dropped and {result.trims[task]:,} trimmed on the way, "
        f"{result.declared_lost[task]:,} were given up, and {result.spurious[task]:,} arrived a second time."
    )


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
        counts = "".join(
            f", {column[worst]:,} {name}"
            for name, column in (("drops", result.links.drops), ("trims", result.links.trims))
            if column is not None
        )
        used = share(float(load[worst]), 1)
        lines.append(f"It {words} {several}{result.links.name(worst)}: {used} used{counts}.")
    return lines


def _story_faults(result: SimResult, start_ns: int, finish_ns: int) -> list[str]:
    """Faults that began or ended before the flow was done."""
    lines = []
    for fault in result.meta.get("faults", []):
        at_ns = int(fault.get("time_ns", -1))
        if at_ns > finish_ns:
            continue
        kind, value = str(fault.get("kind", "fault")), fault.get("value")
        what = str(fault.get("text") or kind).removesuffix(f": {kind}")
        is_over = (
            kind == "up" or (kind == "rate" and value == 1.0) or (kind in ("loss", "delay") and not value)
        )
        when = "before" if at_ns < start_ns else "during"
        verb = "ended" if is_over else "began"
        lines.append(f"Fault {when} it: {what} {verb} at {duration(at_ns)}.")
    return lines


def _story_packets(result: SimResult, task: int) -> list[str]:
    """What the packets of the flow tell, if they were followed."""
    trace = result.trace
    rows = np.flatnonzero(trace["task"] == task) if trace else np.zeros(0, np.int64)
    if not rows.size:
        return []
    packets = {name: column[rows] for name, column in trace.items()}
    is_whole = packets["fate"] == DELIVERED
    lines = []
    if is_whole.any():
        took = packets["ended_ns"][is_whole] - packets["sent_ns"][is_whole]
        low, middle, high = np.percentile(took, (0, 50, 100))
        lines.append(
            f"Its packets were under way for {duration(low)} to {duration(high)}, half of them no longer than"
            f" {duration(middle)}; {share(float(packets['is_marked'][is_whole].mean()), 1)} came marked."
        )
    lines += _told_ends(result, packets)
    lines += _told_last(packets, is_whole)
    return lines + _told_pause(packets)


def _told_ends(result: SimResult, packets: dict[str, NDArray[Any]]) -> list[str]:
    """Where packets were lost or trimmed, the worst place of each kind."""
    lines = []
    for fate in range(TRIMMED, len(FATES)):
        mine = (packets["fate"] == fate) & (packets["where"] >= 0)
        if not mine.any():
            continue
        places, counts = np.unique(packets["where"][mine], return_counts=True)
        worst = int(np.argmax(counts))
        what = "Trimmed" if fate == TRIMMED else f"Dropped ({FATES[fate]})"
        elsewhere = int(counts.sum() - counts[worst])
        more = f", {elsewhere:,} elsewhere" if elsewhere else ""
        lines.append(f"{what}: {counts[worst]:,} at {result.links.name(int(places[worst]))}{more}.")
    return lines


def _told_last(packets: dict[str, NDArray[Any]], is_whole: NDArray[np.bool_]) -> list[str]:
    """Of the packet that arrived last how often it was sent, and on what."""
    if not is_whole.any():
        return ["None of its packets arrived."]
    done = np.flatnonzero(is_whole)
    # The copy that came first counts; the flow ends with the packet whose first copy came last.
    order = done[np.argsort(packets["ended_ns"][done], kind="stable")]
    _, first = np.unique(packets["sequence"][order], return_index=True)
    last = int(order[first.max()])
    number = int(packets["sequence"][last])
    tries = np.flatnonzero((packets["sequence"] == number) & (packets["sent_ns"] <= packets["sent_ns"][last]))
    told = "; ".join(
        f"at {duration(int(packets['sent_ns'][row]))} on EV {packets['ev'][row]} of plane"
        f" {packets['plane'][row]}: {FATES[int(packets['fate'][row])]}"
        for row in tries[-STORY_EVENTS_MAX:].tolist()
    )
    times = "once" if len(tries) == 1 else f"{len(tries)} times"
    return [f"The last to arrive was packet {number:,}, sent {times}: {told}."]


def _told_pause(packets: dict[str, NDArray[Any]]) -> list[str]:
    """The longest time in which it sent nothing, if it matters."""
    sent = packets["sent_ns"]
    if len(sent) < 2:
        return []
    pauses = np.diff(sent)
    longest = int(np.argmax(pauses))
    lasted = int(sent[-1]) - int(sent[0])
    if pauses[longest] < PAUSE_SHARE * lasted or pauses[longest] < 2 * np.median(pauses):
        return []
    return [f"It sent nothing for {duration(int(pauses[longest]))} from {duration(int(sent[longest]))} on."]


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
