"""The report of simulations: one HTML file that needs no network, with several results side by side.

It reads what `SimulationResult` describes and nothing else, so a result that was loaded from its files makes the
same report. What a result does not hold is named in the page, with how to record it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from farstep.observe.page import (
    definitions,
    figure_html,
    page_html,
    require_plotly,
    section,
    table,
    verdict_box,
    write_page,
)
from farstep.observe.sim_view import (
    SimulatedFault,
    SimulationResult,
    bytes_per_flow,
    chain,
    column_names,
    counted_flows,
    end_ns,
    faults_of,
    has_series,
    labelled,
    link_groups,
    state_counts,
    task_name,
    time_text,
    window_ns,
)
from farstep.observe.sim_words import ends_html, figure_text, typeset
from farstep.observe.toml_text import toml_text

__all__ = ["sim_report_html", "write_sim_report"]

DETAILS_MAX = 4
"""Results that get figures of their own, such as those of planes and of the slowest flow."""
UNFINISHED_MAX = 3
"""Tasks of a result that are not done and told with what they wait for."""
JOBS_NAMED_MAX = 4
"""Jobs named in the title."""
NAMES_MAX = 4
"""Results named beside it."""
PHASES_MAX = 16
"""Phases listed."""
FAULTS_MAX = 200
"""Faults listed."""
SCENARIO_CHARACTERS_MAX = 200_000
"""Of a scenario's text."""

Results = Mapping[str, SimulationResult]


def write_sim_report(
    results: Mapping[str, SimulationResult] | Sequence[SimulationResult], path: str | os.PathLike[str]
) -> Path:
    """Writes the report of one simulation, or of several to compare.

    Args:
        results: results by the name to show; in a sequence they are called by their transports.
        path: file to write; an existing one is replaced.

    Returns:
        The path of the report.

    Raises:
        ValueError: there is no result.
        ModuleNotFoundError: plotly is not installed; the message says how to install it.
        OSError: the report cannot be written.
    """
    return write_page(sim_report_html(results), Path(path))


def sim_report_html(results: Mapping[str, SimulationResult] | Sequence[SimulationResult]) -> str:
    """Returns the whole page.

    Raises:
        ValueError: there is no result.
        ModuleNotFoundError: plotly is not installed; the message says how to install it.
    """
    require_plotly("sim")
    named = labelled(results)
    first = next(iter(named.values()))
    return page_html(
        title=_title(first),
        subtitle=_subtitle(named),
        verdict=_verdict(named),
        facts=definitions(_facts(first)),
        sections=_sections(named),
        footer="Made by farstep from the results of the simulation.",
    )


# ---- the top of the page ----


def _title(result: SimulationResult) -> str:
    if result.meta.get("name"):
        return str(result.meta["name"])
    jobs = list(dict.fromkeys(result.tasks.job_names))
    words = ", ".join(jobs) if len(jobs) <= JOBS_NAMED_MAX else f"{len(jobs)} jobs"
    return f"{words[:1].upper()}{words[1:]}"


def _subtitle(results: Results) -> str:
    first = next(iter(results.values()))
    words = [str(first.meta["description"])] if first.meta.get("description") else []
    if isinstance(fabric := first.meta.get("fabric"), str):
        words.append(fabric)
    words.append(" against ".join(results) if len(results) <= NAMES_MAX else f"{len(results)} results")
    return " · ".join(words)


def _verdict(results: Results) -> str:
    notes = []
    tails = {}
    num_open = 0
    what = "step" if all(result.tasks.num_steps > 1 for result in results.values()) else "flow"
    measure = f"{what}_time_p100_ns"
    for name, result in results.items():
        figures = result.metrics()
        missing = int(figures["unfinished_tasks"])
        num_open += missing
        if missing:
            notes.append(f"{name}: {missing:,} tasks were not done when the simulation ended.")
            notes += [f"{name}: {line}." for line in list(result.meta.get("unfinished", []))[:UNFINISHED_MAX]]
        elif figures[measure] is not None:
            tails[name] = float(figures[measure])
    is_one = len(results) == 1
    sentence = "Everything is done." if is_one else "Everything is done, with every transport."
    if num_open:
        sentence = f"{num_open:,} tasks are not done."
    if len(tails) == 1 and is_one:
        notes.append(f"The slowest {what} took {time_text(next(iter(tails.values())))}.")
    elif len(tails) > 1:
        best = min(tails, key=lambda name: tails[name])
        others = ", ".join(
            f"{name} {time_text(tail)} ({tail / tails[best]:.2f} times)"
            for name, tail in tails.items()
            if name != best
        )
        notes.append(f"Slowest {what}: {best} {time_text(tails[best])}; {others}.")
    return verdict_box(not num_open, sentence, notes)


def _facts(result: SimulationResult) -> list[tuple[str, str]]:
    tasks, links, meta = result.tasks, result.links, result.meta
    flows = int(np.count_nonzero(tasks.is_flow))
    num_nics = int(np.unique(links.source[links.tier < 0]).size)
    found = [
        ("NICs", f"{num_nics:,}"),
        ("planes", f"{np.unique(links.plane).size:,}"),
        ("directed links", f"{len(links):,}"),
        ("flows", f"{flows:,}"),
        ("bytes per flow", bytes_per_flow(result)),
        ("steps", f"{tasks.num_steps:,}" if tasks.num_steps > 1 else None),
        ("level", meta.get("level")),
        ("seed", meta.get("seed")),
    ]
    return [(name, str(value)) for name, value in found if value is not None]


# ---- sections ----


def _sections(results: Results) -> Iterator[str]:
    faults = _common_faults(results)
    yield _comparison(results)
    yield from _flow_times(results)
    if any(fault_list := [faults_of(result) for result in results.values()]):
        yield _faults(max(fault_list, key=len))
    yield from _throughput(results, faults)
    yield from _loads(results)
    yield from _queues(results, faults)
    yield from _counts(results, faults)
    yield from _states(results, faults)
    yield from _stories(results)
    yield _repeat(results)


def _common_faults(results: Results) -> list[SimulatedFault]:
    """Faults of the same scenario are the same; the longest list is shown."""
    return max((faults_of(result) for result in results.values()), key=len)


Row = tuple[str, str, str]

COMPARED: tuple[Row, ...] = (
    ("flow time P50", "flow_time_p50_ns", "time"),
    ("flow time P99", "flow_time_p99_ns", "time"),
    ("flow time P100", "flow_time_p100_ns", "time"),
    ("step time P50", "step_time_p50_ns", "time"),
    ("step time P99", "step_time_p99_ns", "time"),
    ("step time P100", "step_time_p100_ns", "time"),
    ("whole duration", "duration_ns", "time"),
    ("tasks not done", "unfinished_tasks", "count"),
    ("goodput of all NICs", "goodput_gbps", "rate"),
    ("fairness of the flows (Jain)", "jain", "ratio"),
    ("victim's share of its line", "victim_ratio", "share"),
    ("packets sent", "packets", "count"),
    ("packets dropped by the network", "dropped", "count"),
    ("packets trimmed", "trims", "count"),
    ("packets given up by senders", "declared_lost", "count"),
    ("packets sent again", "retransmitted", "count"),
    ("packets that arrived twice", "spurious", "count"),
    ("most against least loaded plane", "plane_balance", "ratio"),
    ("longest queue", "max_queue_bytes", "bytes"),
    ("load of the worst link", "worst_link_utilisation", "share"),
)
"""What is compared: what it is called, its name among the metrics, what kind of figure it is."""
OF_PACKETS = {
    "packets",
    "dropped",
    "trims",
    "declared_lost",
    "retransmitted",
    "spurious",
    "max_queue_bytes",
}
"""Metrics of which a simulation without packets knows nothing."""


def _comparison(results: Results) -> str:
    columns = [result.metrics() for result in results.values()]
    rows = []
    for label, key, kind in COMPARED:
        texts = [
            "-" if _is_unknown(key, column) else figure_text(column.get(key), kind) for column in columns
        ]
        is_silent = all(text == "-" for text in texts)
        has_one_step = key.startswith("step_time") and all(column.get("steps", 0) < 2 for column in columns)
        is_complete = key == "unfinished_tasks" and all(text == "0" for text in texts)
        if not (is_silent or has_one_step or is_complete):
            rows.append((label, *texts))
    rows += _times_taken(results)
    title = "In figures" if len(results) == 1 else "Side by side"
    note = (
        "P50, P99 and P100 are what half, 99 in 100 and all of the flows do not exceed. P100 is the slowest."
    )
    return section(title, table(("", *results), rows), note)


def _is_unknown(key: str, figures: Mapping[str, Any]) -> bool:
    """Whether a figure is none of this level of simulation; rates have no queues, and perhaps no packets."""
    return (key in OF_PACKETS and not figures.get("packets")) or (
        key == "max_queue_bytes" and not figures[key]
    )


def _times_taken(results: Results) -> list[tuple[str, ...]]:
    walls = [result.meta.get("wall_s") for result in results.values()]
    if not any(isinstance(wall, int | float) for wall in walls):
        return []
    texts = [time_text(wall * 1e9) if isinstance(wall, int | float) else "-" for wall in walls]
    return [("simulated within", *texts)]


def _flow_times(results: Results) -> Iterator[str]:
    from farstep.observe import sim_figures

    done = {
        name: result for name, result in results.items() if (counted_flows(result) & result.finished).any()
    }
    if not done:
        yield section("Flow times", "", "No flow was done.")
        return
    note = "Each line is one transport; a step of a line is a flow."
    if any(not result.finished[counted_flows(result)].all() for result in done.values()):
        note += " A line that ends below 100 % has flows that were not done."
    yield section("Flow times", figure_html(sim_figures.flow_time_figure(done)), note)
    if max(int(counted_flows(result).sum()) for result in done.values()) >= 20:
        yield section(
            None,
            figure_html(sim_figures.flow_tail_figure(done)),
            "The same from the other end: the further a line reaches to the right, the slower its slowest flows.",
        )
    stepped = {name: result for name, result in done.items() if len(result.step_times_ns()) > 2}
    if stepped:
        note = "A step ends with its last task, and lasts from the end of the step before it."
        note += "".join(f" {name} completed too few steps." for name in done if name not in stepped)
        yield section("Step times", figure_html(sim_figures.step_time_figure(stepped)), note)
    if any(len(np.unique(result.tasks.phase[result.tasks.is_flow])) > 1 for result in done.values()):
        yield _phases(done)


def _phases(results: Results) -> str:
    rows = []
    for name, result in results.items():
        lasted = result.finish_ns - result.start_ns
        for number, phase in list(enumerate(result.tasks.phase_names))[:PHASES_MAX]:
            chosen = result.tasks.is_flow & result.finished & (result.tasks.phase == number)
            if chosen.any():
                times = np.percentile(lasted[chosen], (50, 99, 100))
                label = f"{name}: {phase}" if len(results) > 1 else phase
                rows.append((label, f"{int(chosen.sum()):,}", *(time_text(float(time)) for time in times)))
    return section(
        "Flow times by phase", table(("phase", "flows done", "P50", "P99", "P100"), rows), "Of all steps."
    )


def _faults(faults: Sequence[SimulatedFault]) -> str:
    rows = [
        (
            f"{number}. {fault.text}",
            time_text(fault.start_ns),
            "" if fault.end_ns is None else time_text(fault.end_ns),
        )
        for number, fault in enumerate(faults[:FAULTS_MAX], start=1)
    ]
    rest = len(faults) - len(rows)
    note = "By these numbers they are marked in the figures."
    note += f" {rest:,} more are left out of this list." if rest > 0 else ""
    return section("Faults", table(("fault", "from", "until"), rows), note)


HOW_TO_SAMPLE = "Set sample_interval_us in [run] of the scenario to record it."


def _not_recorded(title: str, what: str, how: str = HOW_TO_SAMPLE) -> str:
    return section(title, "", f"Not recorded: {what}. {how}")


def _with_series(results: Results, name: str) -> dict[str, SimulationResult]:
    return {label: result for label, result in results.items() if has_series(result, name)}


def _window_note(results: Results) -> str:
    """Says where the axis of time ends before the results do."""
    window, end = window_ns(results), max(end_ns(result) for result in results.values())
    if window >= 0.99 * end:
        return ""
    return f" The axis ends at {time_text(window)} of {time_text(end)}; double-click for all of it."


def _without(results: Results, having: Results) -> str:
    missing = [name for name in results if name not in having]
    return f" Not recorded by {', '.join(missing)}." if missing else ""


def _throughput(results: Results, faults: Sequence[SimulatedFault]) -> Iterator[str]:
    from farstep.observe import sim_figures

    having = _with_series(results, "goodput_bytes")
    if having:
        note = (
            "Payload that reached its receivers, summed over all NICs."
            + _without(results, having)
            + _window_note(having)
        )
        yield section("Throughput", figure_html(sim_figures.goodput_figure(having, faults)), note)
    else:
        figure = sim_figures.under_way_figure(results, faults)
        note = f"Flows that had begun and were not done. Throughput was not recorded. {HOW_TO_SAMPLE}"
        note += _window_note(results)
        yield section("Flows under way", figure_html(figure), note)
    several = {
        name: result
        for name, result in _with_series(results, "plane_bytes").items()
        if len(column_names(result, "plane_bytes")) > 1
    }
    for name, result in list(several.items())[:DETAILS_MAX]:
        yield section(
            None,
            figure_html(sim_figures.plane_figure(result, faults_of(result))),
            f"{name}, plane by plane: what the NICs sent, headers counted.",
        )


def _loads(results: Results) -> Iterator[str]:
    from farstep.observe import sim_load_figure

    having = {name: result for name, result in results.items() if result.metrics()["worst_link"] is not None}
    if not having:
        yield _not_recorded("Load of the links", "what the links carried", "The engine did not count it.")
        return
    note = (
        "Of what a link can carry in the whole duration. A row holds the links between two tiers; in each plane "
        "they go from the busiest to the idlest, so an even colour is an even load. A cell of several links has the "
        "colour of its busiest. Busiest of all: "
    )
    note += "; ".join(
        f"{typeset(result.metrics()['worst_link'])}" + (f" ({name})" if len(results) > 1 else "")
        for name, result in having.items()
    )
    note += "."
    shown = dict(list(having.items())[: 2 * DETAILS_MAX])
    yield section("Load of the links", figure_html(sim_load_figure.load_figure(shown)), note)


def _queues(results: Results, faults: Sequence[SimulatedFault]) -> Iterator[str]:
    from farstep.observe import sim_figures

    having = _with_series(results, "queue_max_bytes")
    if having:
        note = (
            "The deepest queue anywhere between these tiers, in each interval."
            + _without(results, having)
            + _window_note(having)
        )
        yield section("Queues", figure_html(sim_figures.queue_figure(having, faults)), note)
    elif not any(_knows_queues(result) for result in results.values()):
        yield _not_recorded("Queues", "how deep queues were", "Only the packet level has queues.")
    else:
        yield _deepest_queues(results)


def _knows_queues(result: SimulationResult) -> bool:
    return result.links.max_queue_bytes is not None and bool(result.links.max_queue_bytes.any())


def _deepest_queues(results: Results) -> str:
    grouped = [
        (depth, {} if depth is None else link_groups(result.links))
        for result in results.values()
        for depth in (result.links.max_queue_bytes,)
    ]
    rows = [
        (
            group,
            *(
                figure_text(
                    int(depth[chosen[group]].max()) if depth is not None and group in chosen else None,
                    "bytes",
                )
                for depth, chosen in grouped
            ),
        )
        for group in dict.fromkeys(name for _, groups in grouped for name in groups)
    ]
    note = f"The deepest of the whole simulation. Their course was not recorded. {HOW_TO_SAMPLE}"
    return section("Queues", table(("in front of links", *results), rows), note)


def _counts(results: Results, faults: Sequence[SimulatedFault]) -> Iterator[str]:
    from farstep.observe import sim_figures

    names = [
        name
        for name in sim_figures.COUNT_NAMES
        if any(result.series[name].any() for result in _with_series(results, name).values())
    ]
    having = {
        label: result
        for label, result in results.items()
        if names and all(has_series(result, name) for name in names)
    }
    if having:
        note = "Counted from the beginning." + _without(results, having) + _window_note(having)
        yield section(
            "Losses and repetitions", figure_html(sim_figures.count_figure(having, faults, names)), note
        )


def _states(results: Results, faults: Sequence[SimulatedFault]) -> Iterator[str]:
    from farstep.observe import sim_figures

    having = {
        name: result
        for name, result in results.items()
        if state_counts(result, window_ns(results)) is not None
    }
    if not having:
        yield section(
            "States of the paths",
            "",
            "No path changed its state, or the transport keeps no book on paths.",
        )
        return
    note = (
        "Entropy values (EVs) of all connections that are not GOOD: skipped once after a mark, or assumed bad "
        "after a loss and replaced until a probe comes back." + _window_note(having)
    )
    yield section("States of the paths", figure_html(sim_figures.state_figure(having, faults)), note)


def _stories(results: Results) -> Iterator[str]:
    from farstep.observe import sim_story_figure, sim_trace_figure

    for index, (name, result) in enumerate(results.items()):
        title = "The slowest flow" if len(results) == 1 else f"The slowest flow with {name}"
        told = [*result.story(), *_wait(result)]
        lines = "".join(f"<li>{escape(typeset(line))}</li>" for line in told)
        content = f"<ul>{lines}</ul>"
        if index < DETAILS_MAX:
            figure = sim_story_figure.worst_flow_figure(result, faults_of(result))
            content += "" if figure is None else figure_html(figure)
            content += sim_trace_figure.packets_html(result, faults_of(result))
            content += ends_html(result)
        yield section(title, content)


def _wait(result: SimulationResult) -> list[str]:
    """What the slowest flow had to wait for before it could start."""
    task = result.worst_flow
    waited_for = chain(result, task)[:-1] if task is not None else []
    if task is None or not waited_for:
        return []
    last = waited_for[-1]
    pause = int(result.start_ns[task]) - int(result.finish_ns[last])
    after = f", {time_text(pause)} before it started" if pause else ", when it started"
    count = "" if len(waited_for) == 1 else " The blue bars are the chain of what that waited for itself."
    return [
        f"It waited for {task_name(result, last)}, done at {time_text(result.finish_ns[last])}{after}.{count}"
    ]


def _repeat(results: Results) -> str:
    first = next(iter(results.values()))
    pairs = [(name, str(value)) for name, value in dict(first.meta.get("versions", {})).items()]
    content = definitions(pairs) if pairs else ""
    if command := first.meta.get("command"):
        content += f"<pre>{escape(str(command))}</pre>"
    scenario = first.meta.get("scenario")
    if scenario:
        text = scenario if isinstance(scenario, str) else toml_text(_without_empty(scenario))
        content += _details("scenario", text, is_open=True)
    else:
        content += (
            '<p class="note">There was no scenario file; the settings below are those of the program.</p>'
        )
    for name, result in results.items():
        told = {"scenario", "versions", "faults", "series_columns", "command", "worst_flow"}
        rest = {key: value for key, value in result.meta.items() if key not in told}
        content += _details(f"settings: {name}", json.dumps(rest, indent=2, ensure_ascii=False, default=str))
    return section("To repeat this simulation", content)


def _without_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out tables and lists with nothing in them, also inside of sections."""
    inner = {
        key: _without_empty(value) if isinstance(value, Mapping) else value for key, value in table.items()
    }
    return {key: value for key, value in inner.items() if value not in ({}, [], ())}


def _details(summary: str, text: str, *, is_open: bool = False) -> str:
    cut = text[:SCENARIO_CHARACTERS_MAX]
    left = f"\n... and {len(text) - len(cut):,} characters more" if len(text) > len(cut) else ""
    attribute = " open" if is_open else ""
    return (
        f"<details{attribute}><summary>{escape(summary)}</summary><pre>{escape(cut + left)}</pre></details>"
    )
