"""The report of a run that had a coordinator: what failed, what was done, and what it cost, as one HTML file."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
from farstep.observe.recoveries import Generation, Heal, Recovery, RunRecoveries
from farstep.observe.units import bytes_text, duration_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["recovery_report_html", "write_recovery_report"]

ROWS_MAX = 500
"""Rows of a table; runs that fail more often are in the figures."""


def write_recovery_report(log_path: str | os.PathLike[str], html_path: str | os.PathLike[str]) -> Path:
    """Makes the report of a coordinator's event log.

    Args:
        log_path: the event log, `events.jsonl` of `farstep coordinator --out`.
        html_path: file to write; an existing one is replaced.

    Returns:
        The path of the report.

    Raises:
        EventLogError: the log cannot be read, or is empty.
        ModuleNotFoundError: plotly is not installed; the message says how to install it.
        OSError: the report cannot be written.
    """
    return write_page(recovery_report_html(RunRecoveries.read(log_path)), Path(html_path))


def recovery_report_html(run: RunRecoveries) -> str:
    """Returns the whole page.

    Raises:
        ModuleNotFoundError: plotly is not installed; the message says how to install it.
    """
    require_plotly("train")
    return page_html(
        title=run.name or "run without a name",
        subtitle=_subtitle(run),
        verdict=_verdict(run),
        facts=definitions(_facts(run)),
        sections=_sections(run),
        footer="Made by farstep from the event log of the coordinator.",
    )


def _subtitle(run: RunRecoveries) -> str:
    seats = max((len(generation.seats) for generation in run.generations), default=0)
    words = [f"begun {run.began_wall[:19].replace('T', ' ')} UTC", f"log of {duration_text(run.duration_s)}"]
    return " · ".join([*words, f"at most {seats} replica groups at a time"])


def _verdict(run: RunRecoveries) -> str:
    open_ones = [recovery for recovery in run.recoveries if recovery.generation is None]
    notes = []
    if run.ended is not None:
        notes.append(f"Ended: {run.ended or 'the run is finished'}.")
    elif run.samples:
        notes.append(
            f"The log ends at step {run.samples[-1].step:,}; it does not say that the run has ended."
        )
    if run.num_broken:
        notes.append(f"{run.num_broken} lines of the log are broken; everything else is shown.")
    if not run.generations:
        return verdict_box(None, "The run had no generation while this log was written.", notes)
    num = len(run.recoveries)
    if run.lost is not None:
        return verdict_box(False, f"The run was lost: it {run.lost}.", notes)
    if not num:
        return verdict_box(True, "Nothing failed.", notes)
    what = "1 failure" if num == 1 else f"{num} failures"
    if open_ones:
        return verdict_box(False, f"{what}, {len(open_ones)} of them not answered when the log ended.", notes)
    stalls = _stalls(run)
    cost = f"; the longest standstill was {_ms(max(stalls))}" if stalls else ""
    return verdict_box(
        True, f"{what}, and training went on after {'it' if num == 1 else 'each'}{cost}.", notes
    )


def _stalls(run: RunRecoveries) -> list[float]:
    stalls = (recovery.standstill_ms for recovery in run.recoveries)
    return [stall for stall in stalls if stall is not None]


def _facts(run: RunRecoveries) -> list[tuple[str, str]]:
    stalls = _stalls(run)
    facts = [
        ("generations", f"{len(run.generations):,}"),
        ("failures", f"{len(run.recoveries):,}"),
        ("members lost", f"{sum(len(recovery.lost) for recovery in run.recoveries):,}"),
        ("members joined", f"{run.num_joined:,}"),
        ("coordinator starts", f"{len(run.coordinator_starts_s):,}"),
    ]
    if stalls:
        facts += [
            ("standstill, median", _ms(statistics.median(stalls))),
            ("standstill, worst", _ms(max(stalls))),
        ]
    done = [heal for heal in run.heals if heal.done_s is not None]
    if run.heals:
        facts.append(("heals", f"{len(done):,} of {len(run.heals):,}"))
    if run.num_checkpoints:
        facts.append(("checkpoints", f"{run.num_checkpoints:,}"))
    if run.samples:
        facts.append(("steps", f"{max(sample.step for sample in run.samples):,}"))
    return facts


def _sections(run: RunRecoveries) -> Iterator[str]:
    if len(run.samples) > 1:
        yield section(
            "Steps over time",
            figure_html(_progress_figure(run)),
            "Steps committed. Lines are generations: red if somebody was gone or a step failed, blue if planned; "
            "grey: a coordinator started.",
        )
    if run.generations:
        yield section(
            "Who trained",
            figure_html(_seats_figure(run)),
            "Bars are members with a seat, light bars are spares.",
        )
    if run.recoveries:
        yield section(
            "Failures, and what was done",
            _recoveries(run.recoveries),
            "Decided: from when the coordinator noticed to the new generation. Standstill: until the last member "
            "trained on; the step that is run again comes on top.",
        )
    if run.heals:
        yield section(
            "Heals", _heals(run.heals), "State given to newcomers while the others went on training."
        )
    if run.trouble:
        head = ("at (min:s)", "group", "event", "details")
        rows = [(_at(at_s), member, kind, details) for at_s, member, kind, details in run.trouble[:ROWS_MAX]]
        yield section("What else happened", table(head, rows, texts=head[1:]))
    if run.generations:
        yield section("Generations", _generations(run.generations))


def _recoveries(recoveries: list[Recovery]) -> str:
    head = ("at (min:s)", "what failed", "what was done", "decided", "standstill")
    rows = []
    for recovery in recoveries[:ROWS_MAX]:
        answer = recovery.generation
        if answer is None:
            rows.append(
                (_at(recovery.at_s), "; ".join(recovery.causes), "nothing until the log ended", "", "")
            )
            continue
        done = f"generation {answer.number}: {'; '.join(answer.changes) or answer.reason}"
        if answer.rolled_forward:
            done += f"; step finished without a retry by {', '.join(answer.rolled_forward)}"
        stall = _ms(recovery.standstill_ms) if recovery.standstill_ms is not None else "not told"
        rows.append((_at(recovery.at_s), "; ".join(recovery.causes), done, _ms(answer.took_ms), stall))
    return table(head, rows, texts=("what failed", "what was done"))


def _heals(heals: list[Heal]) -> str:
    head = ("at (min:s)", "group", "from step", "ready at step", "state", "transfer", "sources", "in all")
    rows = []
    for heal in heals[:ROWS_MAX]:
        end = "lost before the end" if heal.is_cut_short else "not through"
        rows.append(
            (
                _at(heal.at_s),
                heal.member,
                _count(heal.from_step),
                _count(heal.to_step),
                bytes_text(heal.num_bytes) if heal.num_bytes is not None else "",
                _ms(heal.transfer_ms) if heal.transfer_ms is not None else "",
                _count(heal.num_sources),
                end if heal.done_s is None else _ms(1e3 * (heal.done_s - heal.at_s)),
            )
        )
    return table(head, rows, texts=("group",))


def _generations(generations: list[Generation]) -> str:
    head = ("at (min:s)", "number", "kind", "what changed", "seats", "spares", "decided")
    rows = [
        (
            _at(item.at_s),
            item.number,
            "urgent" if item.is_urgent else "planned",
            "; ".join(item.changes) or item.reason,
            ", ".join(item.seats),
            ", ".join(item.spares) or "none",
            _ms(item.took_ms) if item.is_urgent else "",
        )
        for item in generations[:ROWS_MAX]
    ]
    return table(head, rows, texts=("kind", "what changed", "seats", "spares"))


def _progress_figure(run: RunRecoveries) -> go.Figure:
    import plotly.graph_objects as go

    from farstep.observe.canvas import GREY, PALETTE, blank_figure, thinned

    figure = blank_figure("time since the log began (s)", "steps committed")
    times, steps = thinned([sample.at_s for sample in run.samples], [sample.step for sample in run.samples])
    figure.add_trace(
        go.Scatter(x=times, y=steps, name="steps", mode="lines", line={"color": PALETTE[0], "width": 2})
    )
    marks = [(item.at_s, PALETTE[5] if item.is_urgent else PALETTE[6], "dot") for item in run.generations]
    marks += [(at_s, GREY, "dash") for at_s in run.coordinator_starts_s]
    for at_s, colour, dash in marks[:ROWS_MAX]:
        figure.add_vline(x=at_s, line={"color": colour, "width": 1, "dash": dash}, layer="below")
    figure.update_layout(showlegend=False)
    return figure


def _seats_figure(run: RunRecoveries) -> go.Figure:
    import plotly.graph_objects as go

    from farstep.observe.canvas import PALETTE, blank_figure

    figure = blank_figure("time since the log began (s)", "")
    ends = [item.at_s for item in run.generations[1:]] + [run.duration_s]
    names = sorted({name for item in run.generations for name in (*item.seats, *item.spares)})
    for label, colour, opacity in (("seat", PALETTE[2], 1.0), ("spare", PALETTE[2], 0.35)):
        bars = [
            (name, item.at_s, end - item.at_s, item.number)
            for item, end in zip(run.generations, ends, strict=True)
            for name in (item.seats if label == "seat" else item.spares)
        ]
        if bars:
            figure.add_trace(
                go.Bar(
                    y=[bar[0] for bar in bars],
                    base=[bar[1] for bar in bars],
                    x=[bar[2] for bar in bars],
                    customdata=[[bar[3]] for bar in bars],
                    name=label,
                    orientation="h",
                    opacity=opacity,
                    marker={"color": colour, "line": {"width": 0}},
                    hovertemplate="%{y}, generation %{customdata[0]}<extra></extra>",
                )
            )
    figure.update_layout(
        barmode="overlay", hovermode="closest", height=min(1200, 120 + 26 * len(names)), bargap=0.35
    )
    figure.update_xaxes(range=[0, run.duration_s])
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1])
    return figure


def _at(at_s: float) -> str:
    return duration_text(at_s)


def _ms(value: float) -> str:
    return f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
