"""The report of a run: one HTML file that needs no network, made from the event log alone.

It can be made from any log, also from one that breaks off because the run was killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from farstep.observe.events import EventFile, EventLogError, read_events
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
from farstep.observe.step_times import StepTimes
from farstep.observe.summary import (
    COST_CAPTION,
    RECOVERY_CAPTION,
    cost_texts,
    facts,
    recovery_rows,
    verdict,
    zip_costs,
)
from farstep.observe.timeline import Timeline
from farstep.observe.units import bytes_text, quantity_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

_FAULTS_LOOKED_AT_MAX = 4
"""Faults that get a figure of their own; the others are in the figure of the whole run."""


def write_report(log_path: str | os.PathLike[str], html_path: str | os.PathLike[str]) -> Path:
    """Makes the report of a log.

    Args:
        log_path: the event log.
        html_path: file to write; an existing one is replaced.

    Returns:
        The path of the report.

    Raises:
        EventLogError: the log cannot be read, or is empty.
        ModuleNotFoundError: plotly is not installed; the message says how to install it.
        OSError: the report cannot be written.
    """
    return write_page(report_html(read_events(log_path)), Path(html_path))


def report_html(log: EventFile) -> str:
    """Returns the whole page.

    Raises:
        EventLogError: the log is empty.
        ModuleNotFoundError: plotly is not installed; the message says how to install it.
    """
    require_plotly("train")
    if not log.records:
        raise EventLogError(f"event log {log.path} holds no event, so there is nothing to report")
    timeline = Timeline.of(log)
    return page_html(
        title=timeline.start.name if timeline.start else "run without a beginning",
        subtitle=_subtitle(timeline),
        verdict=_verdict(timeline, log),
        facts=definitions(facts(timeline)),
        sections=_sections(timeline),
        footer="Made by farstep from the event log of the run.",
    )


def _subtitle(timeline: Timeline) -> str:
    words = []
    if timeline.started_wall:
        words.append(f"begun {timeline.started_wall[:19].replace('T', ' ')} UTC")
    if start := timeline.start:
        words.append(f"{start.ranks} ranks in {start.replicas} replicas")
        if start.sites:
            sites = ", ".join(f"{name} (ranks {_ranks(ranks)})" for name, ranks in start.sites.items())
            words.append(f"sites {sites}")
        if start.parameters:
            words.append(f"{quantity_text(start.parameters, '')} parameters")
        if start.text_name and start.text_bytes:
            words.append(f"{start.text_name}, {bytes_text(start.text_bytes)}")
    return " · ".join(words)


def _ranks(ranks: Sequence[int]) -> str:
    is_run = len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]} to {ranks[-1]}" if is_run else ", ".join(map(str, ranks))


def _verdict(timeline: Timeline, log: EventFile) -> str:
    is_identical, sentence = verdict(timeline)
    notes = []
    if log.is_truncated:
        notes.append("The last line of the log broke off; everything before it is shown.")
    if log.unknown_kinds:
        names = ", ".join(f"{count} of kind {name}" for name, count in log.unknown_kinds.items())
        notes.append(f"Left out, as this version does not know them: {names}.")
    return verdict_box(is_identical, sentence, notes)


def _sections(timeline: Timeline) -> Iterator[str]:
    from farstep.observe import figures

    times = StepTimes.of(timeline.rows)
    if times is not None:
        yield _section("Loss", figures.loss_figure(timeline), "Mean over all ranks at every step.")
        yield _section(
            "Step time",
            figures.step_distribution_figure(timeline.rows, times),
            "A step is as long as its slowest rank's. Percentiles are measured values; P100 is the slowest.",
        )
        yield _section(
            None,
            figures.step_time_figure(timeline),
            "Shaded: a fault of the script is in effect. Dotted: a rank was lost.",
        )
    if timeline.losses or timeline.members:
        head = ("at (min:s)", "step", "what happened", "what was done", "standstill")
        content = table(head, recovery_rows(timeline), texts=head[2:4])
        yield section("Losses and recoveries", content, RECOVERY_CAPTION)
    if timeline.faults:
        yield _faults(timeline)
    if timeline.paths:
        for fault in timeline.faults[:_FAULTS_LOOKED_AT_MAX]:
            yield _section(
                f"Paths around “{fault.title}”",
                figures.path_rate_figure(timeline, around=fault),
                "Sum over all ranks. What a dead path carried, the others carry.",
            )
        yield _section("Paths over the whole run", figures.path_rate_figure(timeline), "Sum over all ranks.")
        yield _section(
            "State of the paths",
            figures.path_state_figure(timeline),
            "The worst state that any rank sees.",
        )
        yield _section("Retransmissions", figures.retransmission_figure(timeline), "Sum over all ranks.")
        yield _paths(timeline)
    if timeline.start is not None:
        yield _configuration(timeline)


def _section(title: str | None, figure: go.Figure, note: str) -> str:
    return section(title, figure_html(figure), note)


def _faults(timeline: Timeline) -> str:
    rows = []
    for fault, cost in zip_costs(timeline):
        num_steps, at_once, at_once_steps, at_once_waiting, in_all, in_all_steps, in_all_waiting = cost_texts(
            cost
        )
        rows.append((fault.title, "at once", at_once, at_once_steps, at_once_waiting))
        rows.append((f"{fault.when}, {num_steps} steps", "in all", in_all, in_all_steps, in_all_waiting))
    content = table(("fault, and when it was in effect (min:s)", "cost", "time", "in steps", "waiting"), rows)
    return section("Faults and their cost", content, COST_CAPTION)


def _paths(timeline: Timeline) -> str:
    head = ("path", "plane", "sent", "packets resent", "packets lost", "state at the end")
    rows = [
        (
            path.name,
            str(path.plane),
            bytes_text(path.bytes_sent),
            f"{path.retransmitted:,}",
            f"{path.lost:,}",
            path.state.value,
        )
        for path in timeline.paths.values()
    ]
    return section("Paths in figures", table(head, rows))


def _configuration(timeline: Timeline) -> str:
    start = timeline.start
    if start is None:
        return ""
    versions = definitions(list(start.versions.items())) if start.versions else ""
    text = f"<p>Text: {escape(start.text_name or 'unnamed')}"
    text += f", SHA-256 <code>{escape(start.text_sha256)}</code></p>" if start.text_sha256 else "</p>"
    config = escape(json.dumps(start.config, indent=2, ensure_ascii=False))
    hashes = timeline.end.replica_hashes if timeline.end else {}
    hash_list = definitions(list(hashes.items())) if hashes else "<p>none recorded</p>"
    content = (
        f"{text}{versions}<details open><summary>configuration</summary><pre>{config}</pre></details>"
        f"<details open><summary>hash of the parameters, by replica</summary>{hash_list}</details>"
    )
    return section("To repeat this run", content)
