"""A simulation as a report looks at it: distributions, loads and counts, thinned to what a screen can show.

What is read is described by `SimulationResult`; `farstep.sim.SimResult` is one. Nothing is asked of it that
its files do not hold, so a report can be made long after the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from farstep.observe.units import quantity_text

CDF_POINTS_MAX = 800
"""Points of one distribution: a screen has about as many lines."""
BINS_MAX = 500
"""Bins of a series over time."""
LENGTHS_APART_MAX = 6.0
"""Results of which the longest lasts so many times the shortest are shown on one axis as a whole..."""
LENGTHS_SHOWN = 4.0
"""...else so many times the length of the shortest."""
PROFILE_CELLS_MAX = 256
"""Columns of the heat map of one result, planes side by side."""
TIERS_MAX = 64
"""More tiers than any network has, to tell pairs of tiers by one number."""
CHAIN_MAX = 8
"""Tasks shown of the chain that the slowest flow waited for."""
CHAIN_STEPS_MAX = 100
"""Predecessors looked at for it."""
STATES = ("GOOD", "SKIP", "ASSUMED_BAD", "DENIED")
"""States of a path by the number an engine records."""

Array = NDArray[Any]


class TaskColumns(Protocol):
    """What was simulated; see `farstep.sim.TaskTable`."""

    @property
    def source(self) -> Array: ...
    @property
    def target(self) -> Array: ...
    @property
    def size_bytes(self) -> Array: ...
    @property
    def tag(self) -> Array: ...
    @property
    def phase(self) -> Array: ...
    @property
    def phase_names(self) -> tuple[str, ...]: ...
    @property
    def job_names(self) -> tuple[str, ...]: ...
    @property
    def is_flow(self) -> NDArray[np.bool_]: ...
    @property
    def num_steps(self) -> int: ...
    def predecessors(self, task: int) -> Array: ...


class LinkColumns(Protocol):
    """What the links carried; see `farstep.sim.LinkUse`."""

    @property
    def source(self) -> Array: ...
    @property
    def target(self) -> Array: ...
    @property
    def plane(self) -> Array: ...
    @property
    def tier(self) -> Array: ...
    @property
    def target_tier(self) -> Array: ...
    @property
    def drops(self) -> Array | None: ...
    @property
    def trims(self) -> Array | None: ...
    @property
    def max_queue_bytes(self) -> Array | None: ...
    def __len__(self) -> int: ...
    def name(self, link: int) -> str: ...
    def utilisation(self, duration_ns: float) -> Array: ...


class SimulationResult(Protocol):
    """What a report reads; see `farstep.sim.SimResult`. Times are in ns, -1 for what never happened."""

    @property
    def tasks(self) -> TaskColumns: ...
    @property
    def links(self) -> LinkColumns: ...
    @property
    def start_ns(self) -> Array: ...
    @property
    def finish_ns(self) -> Array: ...
    @property
    def finished(self) -> NDArray[np.bool_]: ...
    @property
    def duration_ns(self) -> int: ...
    @property
    def worst_flow(self) -> int | None: ...
    @property
    def series(self) -> dict[str, Array]: ...
    @property
    def ev_events(self) -> dict[str, Array]: ...
    @property
    def trace(self) -> dict[str, Array]: ...
    @property
    def meta(self) -> dict[str, Any]: ...
    def metrics(self) -> dict[str, Any]: ...
    def step_times_ns(self) -> Array: ...
    def story(self) -> list[str]: ...


def labelled(
    results: Mapping[str, SimulationResult] | Sequence[SimulationResult],
) -> dict[str, SimulationResult]:
    """Gives every result a name of its own: the given one, else its transport, numbered where it repeats.

    Raises:
        ValueError: there is no result.
    """
    if isinstance(results, Mapping):
        found = {str(name): result for name, result in results.items()}
    else:
        found = {}
        for result in results:
            name = stem = str(result.meta.get("transport", "result"))
            again = 1
            while name in found:
                again += 1
                name = f"{stem} ({again})"
            found[name] = result
    if not found:
        raise ValueError("there is no result to report")
    return found


# ---- time ----


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """Unit of a time axis."""

    name: str
    ns: float

    @classmethod
    def of(cls, longest_ns: float) -> TimeUnit:
        """The unit in which a time is a figure of few digits."""
        for name, ns in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
            if longest_ns >= 2 * ns:
                return cls(name, ns)
        return cls("ns", 1.0)

    def text(self, time_ns: float) -> str:
        """A time in this unit."""
        return f"{time_ns / self.ns:,.4g} {self.name}"


def time_text(time_ns: float | None) -> str:
    """Returns a time with the unit that suits it and four digits, such as `201.3 µs`; `-` for None."""
    if time_ns is None:
        return "-"
    unit = TimeUnit.of(abs(time_ns) * 2)
    return f"{time_ns / unit.ns:.4g} {unit.name}"


def end_ns(result: SimulationResult) -> int:
    """When the last thing happened that a result tells of."""
    series = result.series.get("time_ns", np.zeros(0))
    latest = (int(column.max(initial=0)) for column in (result.start_ns, result.finish_ns, series))
    return max(*latest, int(result.meta.get("end_ns", 0)), 1)


def window_ns(results: Mapping[str, SimulationResult]) -> float:
    """Returns until when figures over time show results that differ much in length.

    What happens in a few milliseconds cannot be seen beside a second in which one transport waits for a timer. So an
    axis ends some way after the quickest result, and where a stalled one delivered its last byte.
    """
    active = {name: _active_until_ns(result) for name, result in results.items()}
    longest, shortest = max(active.values()), min(active.values())
    return longest if longest <= LENGTHS_APART_MAX * shortest else LENGTHS_SHOWN * shortest


def _active_until_ns(result: SimulationResult) -> float:
    """The end of a result, or a little after its last delivery if it did not get there."""
    end = float(end_ns(result))
    if result.finished.all():
        return end
    last = float(result.finish_ns.max(initial=0))
    if has_series(result, "goodput_bytes"):
        delivered = np.flatnonzero(result.series["goodput_bytes"])
        last = max(last, float(result.series["time_ns"][delivered[-1]]) if len(delivered) else 0.0)
    return min(end, 1.1 * last) if last > 0 else end


def _edges(start: float, window: float, end: float) -> Array:
    """Edges of bins, finer in the window than after it."""
    if window >= end:
        return np.linspace(start, end, BINS_MAX + 1)
    return np.concatenate(
        (np.linspace(start, window, BINS_MAX + 1), np.linspace(window, end, BINS_MAX // 2)[1:])
    )


# ---- flows ----


def counted_flows(result: SimulationResult) -> NDArray[np.bool_]:
    """Which tasks are flows of a step, not in the background, bool (n,)."""
    chosen: NDArray[np.bool_] = result.tasks.is_flow & (result.tasks.tag >= 0)
    return chosen


def distribution(durations: Array, total: int) -> tuple[Array, Array]:
    """Returns what share of all takes no longer than what, with extra points where the tail is.

    Args:
        durations: of those that are done.
        total: number of all, done or not.

    Returns:
        Durations in rising order and shares in 0..1, at most `CDF_POINTS_MAX`, first and last among them.
    """
    ordered = np.sort(durations)
    n = len(ordered)
    if n > CDF_POINTS_MAX:
        half = CDF_POINTS_MAX // 2
        even = np.linspace(0, n - 1, half).round()
        tail = n - np.geomspace(1, n, half).round()
        chosen = np.unique(np.concatenate((even, tail)).astype(np.int64))
    else:
        chosen = np.arange(n)
    return ordered[chosen], (chosen + 1) / max(total, 1)


def under_way(result: SimulationResult, window: float) -> tuple[Array, Array]:
    """Returns how many flows were under way from when on: times in ns and counts."""
    flows = result.tasks.is_flow & (result.start_ns >= 0)
    starts = result.start_ns[flows]
    ends = np.where(result.finished[flows], result.finish_ns[flows], end_ns(result))
    times = np.unique(np.concatenate((starts, ends)))
    if len(times) > BINS_MAX:
        times = _edges(float(times[0]), min(window, float(times[-1])), float(times[-1])).round()
    begun = np.searchsorted(np.sort(starts), times, side="right")
    done = np.searchsorted(np.sort(ends), times, side="right")
    return times, begun - done


def chain(result: SimulationResult, task: int) -> list[int]:
    """Returns the tasks that a task waited for, each the last of the next one's predecessors, and itself last.

    Tasks that took no time, which only join others, are passed over.
    """
    found, at = [task], task
    for _ in range(CHAIN_STEPS_MAX):
        before = result.tasks.predecessors(at)
        if len(found) == CHAIN_MAX or not len(before):
            break
        at = int(before[np.argmax(result.finish_ns[before])])
        if result.tasks.is_flow[at] or result.finish_ns[at] != result.start_ns[at]:
            found.append(at)
    return found[::-1]


def task_name(result: SimulationResult, task: int) -> str:
    """Returns a task in few words, such as `NIC 3 → 9, step 2`."""
    tasks = result.tasks
    where = f"NIC {tasks.source[task]}"
    if tasks.is_flow[task]:
        where += f" → {tasks.target[task]}"
    step = f", step {tasks.tag[task]}" if tasks.num_steps > 1 else ""
    phase = tasks.phase_names[tasks.phase[task]] if len(tasks.phase_names) > 1 else ""
    return f"{phase} {where}{step}".strip()


# ---- links ----


def group_name(tier: int, target_tier: int) -> str:
    """Returns what links between two tiers are called, such as `T0 → T1`."""
    return f"{_tier_name(tier)} → {_tier_name(target_tier)}"


def _tier_name(tier: int) -> str:
    return "NIC" if tier < 0 else f"T{tier}"


def link_groups(links: LinkColumns) -> dict[str, Array]:
    """Returns the numbers of the links between the same tiers by name: up, across, then down."""
    codes = links.tier.astype(np.int32) * TIERS_MAX + links.target_tier
    pairs = [divmod(int(code), TIERS_MAX) for code in np.unique(codes)]  # a NIC's tier is -1
    pairs = [(tier + 1, -1) if target == TIERS_MAX - 1 else (tier, target) for tier, target in pairs]
    pairs.sort(key=_from_nic_to_nic)
    return {
        group_name(*pair): np.flatnonzero((links.tier == pair[0]) & (links.target_tier == pair[1]))
        for pair in pairs
    }


def _from_nic_to_nic(pair: tuple[int, int]) -> tuple[int, int, int]:
    tier, target = pair
    if target > tier:
        return 0, tier, target
    return 1 + (target < tier), -tier, -target


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """Load of all links of a fabric: links between the same tiers in a row, planes side by side.

    Attributes:
        groups: name of each row.
        planes: number of each plane; below 0: links that join planes.
        cells: cells per plane; within a plane links go from the busiest to the idlest.
        load: float (groups, planes * cells), load of the busiest link of a cell in 0..1.
        links: int (groups, planes), how many links there are.
        mean: float (groups, planes), their mean load.
    """

    groups: tuple[str, ...]
    planes: tuple[int, ...]
    cells: int
    load: Array
    links: Array
    mean: Array

    @classmethod
    def of(cls, result: SimulationResult) -> LoadProfile:
        """Ranks the links of a result by what they carried in its whole duration."""
        links = result.links
        load = links.utilisation(result.duration_ns)
        groups = link_groups(links)
        planes, plane_of = np.unique(links.plane, return_inverse=True)
        sizes = {name: np.bincount(plane_of[chosen], minlength=1) for name, chosen in groups.items()}
        largest = max((int(size.max()) for size in sizes.values()), default=1)
        cells = max(1, min(largest, PROFILE_CELLS_MAX // max(1, len(planes)), 64))
        shape = (len(groups), len(planes))
        found = np.full((*shape, cells), np.nan)
        count, mean = np.zeros(shape, np.int64), np.full(shape, np.nan)
        for row, chosen in enumerate(groups.values()):
            for column in range(len(planes)):
                here = -np.sort(-load[chosen[plane_of[chosen] == column]])
                count[row, column] = len(here)
                if len(here):
                    mean[row, column] = here.mean()
                    found[row, column] = here[np.arange(cells) * len(here) // cells]
        return cls(tuple(groups), tuple(planes.tolist()), cells, found.reshape(len(groups), -1), count, mean)


# ---- series ----


def column_names(result: SimulationResult, name: str) -> list[str]:
    """Returns what the columns of a series stand for."""
    width = result.series[name].shape[1] if result.series[name].ndim > 1 else 1
    known = result.meta.get("series_columns", {}).get(name, [])
    if len(known) == width:
        return [str(label).replace("->", "→") for label in known]
    stem = "plane" if name.startswith("plane") else "column"
    return [f"{stem} {index}" for index in range(width)]


def group_names(result: SimulationResult, name: str) -> list[str]:
    """Returns what the columns of a series stand for, links between tiers from the NIC up and down again."""
    known = list(link_groups(result.links))
    names = column_names(result, name)
    return sorted(names, key=lambda group: known.index(group) if group in known else len(known))


def has_series(result: SimulationResult, name: str) -> bool:
    """Tells whether something was sampled over time, and more than once."""
    times = result.series.get("time_ns", np.zeros(0))
    return len(times) > 1 and times[-1] > 0 and len(result.series.get(name, ())) == len(times)


def sampled_sums(result: SimulationResult, name: str, window: float) -> tuple[Array, Array, Array]:
    """Returns a series of amounts per interval, intervals joined to at most `BINS_MAX` in the window.

    Returns:
        End of each interval in ns, its length in ns, and the amounts (intervals, columns).
    """
    return _joined(result, name, np.add, window)


def sampled_peaks(result: SimulationResult, name: str, window: float) -> tuple[Array, Array]:
    """Returns a series of peaks, intervals joined likewise: their ends in ns, and the peaks."""
    ends, _, peaks = _joined(result, name, np.maximum, window)
    return ends, peaks


def _joined(result: SimulationResult, name: str, how: np.ufunc, window: float) -> tuple[Array, Array, Array]:
    times = np.asarray(result.series["time_ns"], np.float64)
    values = np.asarray(result.series[name], np.float64).reshape(len(times), -1)
    lasted = np.diff(times, prepend=min(0.0, times[0]))
    times, values, lasted = times[lasted > 0], values[lasted > 0], lasted[lasted > 0]
    inside = int(np.searchsorted(times, window, side="right"))
    parts = [
        np.arange(begin, stop, max(1, -(-(stop - begin) // most)))
        for begin, stop, most in ((0, inside, BINS_MAX), (inside, len(times), BINS_MAX // 2))
    ]
    firsts = np.concatenate(parts)
    lasts = np.append(firsts[1:], len(times)) - 1
    return times[lasts], np.add.reduceat(lasted, firsts), how.reduceat(values, firsts, axis=0)


def state_counts(result: SimulationResult, window: float) -> tuple[Array, Array] | None:
    """Counts the entropy values in each state over time.

    Returns:
        Times in ns and counts (times, states), each the largest in its interval; of GOOD
        only how many fewer there are. None if no change of a state was recorded.
    """
    if has_series(result, "ev_states"):
        return sampled_peaks(result, "ev_states", window)
    events = result.ev_events
    if not len(events.get("time_ns", ())):
        return None
    return _counts_of_changes(events, window, end_ns(result))


def _counts_of_changes(events: Mapping[str, Array], window: float, end: int) -> tuple[Array, Array]:
    time, state = np.asarray(events["time_ns"], np.int64), np.asarray(events["state"], np.int64)
    keys = [np.asarray(events[name], np.int64) for name in ("source", "target", "plane", "ev")]
    keys += [np.asarray(events[name], np.int64) for name in ("connection",) if name in events]
    order = np.lexsort((time, *keys))
    is_same = np.ones(len(time) - 1, bool)
    for key in keys:
        is_same &= np.diff(key[order]) == 0
    before = np.zeros(len(time), np.int64)  # every one begins GOOD
    before[1:] = np.where(is_same, state[order][:-1], 0)
    change = np.zeros((len(time), len(STATES)), np.int64)
    rows = np.arange(len(time))
    np.add.at(change, (rows, state[order]), 1)
    np.add.at(change, (rows, before), -1)
    by_time = np.argsort(time[order], kind="stable")
    counts, times = np.cumsum(change[by_time], axis=0), time[order][by_time]
    if len(times) <= BINS_MAX:
        return np.append(times, end), np.vstack((counts, counts[-1:]))
    edges = _edges(float(times[0]), max(min(window, end), float(times[0])), end)
    firsts = np.searchsorted(times, edges[:-1])
    # What held when an interval began counts too.
    held = np.vstack((np.zeros((1, len(STATES)), np.int64), counts))
    peaks = [
        held[first : last + 1].max(axis=0)
        for first, last in zip(firsts, np.append(firsts[1:], len(times)), strict=True)
    ]
    return edges[1:], np.array(peaks)


# ---- faults ----


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """One thing that went wrong in a simulation."""

    start_ns: int
    end_ns: int | None
    text: str


def faults_of(result: SimulationResult) -> list[SimulatedFault]:
    """Returns the faults of a result in the order of their time, those that were taken back with their end."""
    found: list[SimulatedFault] = []
    lasting: dict[tuple[str, str], int] = {}
    for fault in sorted(result.meta.get("faults", []), key=lambda fault: int(fault.get("time_ns", 0))):
        kind, time_ns = str(fault.get("kind", "fault")), int(fault.get("time_ns", 0))
        text = str(fault.get("text") or kind.replace("_", " "))
        until = None if fault.get("until_ns") is None else int(fault["until_ns"])
        stem = text.removesuffix(f": {kind}")
        begun = (stem, "down" if kind == "up" else kind)
        if _takes_back(kind, fault.get("value")) and begun in lasting:
            index = lasting.pop(begun)
            found[index] = replace(found[index], end_ns=time_ns)
            continue
        if until is None:
            lasting[begun] = len(found)
        found.append(SimulatedFault(time_ns, until, _fault_text(stem, kind, fault.get("value"))))
    return found


def _fault_text(stem: str, kind: str, value: Any) -> str:
    """Says what was hit, such as `switch down · switch t1/p0/0` for `switch_down switch=t1/p0/0`, and how hard."""
    head, _, target = stem.partition(" ")
    if "=" in target:
        stem = f"{head.replace('_', ' ')} · {target.replace('=', ' ')}"
    if not isinstance(value, int | float):
        return stem
    sizes = {
        "rate": f"{load_text(value)} of its rate",
        "loss": f"{load_text(value)} lost",
        "delay": f"{time_text(value)} longer",
    }
    return f"{stem} · {sizes[kind]}" if kind in sizes else stem


def _takes_back(kind: str, value: Any) -> bool:
    """Whether an action on links brings back what held before any fault."""
    return kind == "up" or (kind == "rate" and value == 1.0) or (kind in ("loss", "delay") and value == 0.0)


def fault_marks(faults: Sequence[SimulatedFault], span_ns: float) -> Iterator[tuple[int, int | None, str]]:
    """Joins faults too near each other to be told apart; yields start, end and numbers such as `2-4`."""
    first = 0
    for index in range(len(faults)):
        follows = faults[index + 1] if index + 1 < len(faults) else None
        if follows is not None and follows.start_ns - faults[first].start_ns < 0.03 * span_ns:
            continue
        group = faults[first : index + 1]
        ends = [each.end_ns for each in group if each.end_ns is not None]
        number = f"{first + 1}" if first == index else f"{first + 1}-{index + 1}"
        yield group[0].start_ns, (max(ends) if ends else None), number
        first = index + 1


def load_text(share: float) -> str:
    """Returns a share as a percentage, such as `81.3 %`."""
    return f"{100 * share:.3g} %"


def bytes_per_flow(result: SimulationResult) -> str:
    """Returns the payload of the flows: one size, or from which to which."""
    sizes = result.tasks.size_bytes[counted_flows(result)]
    if not len(sizes):
        return "-"
    low, high = quantity_text(int(sizes.min()), "B"), quantity_text(int(sizes.max()), "B")
    return low if low == high else f"{low} to {high}"
