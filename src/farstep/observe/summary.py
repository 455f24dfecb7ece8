"""The last thing a run prints: what it did, what the faults cost, and whether all replicas agree."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from farstep.observe.step_times import ONSET_STEPS, FaultCost, StepTimes, fault_costs
from farstep.observe.timeline import Fault, Timeline
from farstep.observe.units import bytes_text, duration_text, milliseconds_text


def verdict(timeline: Timeline) -> tuple[bool | None, str]:
    """Says whether all replicas ended with the same bits.

    Returns:
        True, False, or None where the log does not tell; and the same in one sentence.
    """
    end = timeline.end
    if end is None:
        return None, "The log ends before the run did: no hash of the parameters was recorded."
    hashes = end.replica_hashes
    if end.bit_identical is None:
        return None, "Nothing to compare: fewer than two replicas recorded a hash of their parameters."
    if end.bit_identical:
        which = "replicas that were left" if timeline.losses else "replicas"
        return (
            True,
            f"All {len(hashes)} {which} hold bit-identical parameters (hash {next(iter(hashes.values()))}).",
        )
    groups: dict[str, list[str]] = {}
    for replica, value in hashes.items():
        groups.setdefault(value, []).append(replica)
    apart = "; ".join(f"{value}: {', '.join(names)}" for value, names in groups.items())
    return False, f"The replicas hold {len(groups)} different sets of parameters ({apart})."


def outcome(timeline: Timeline) -> str:
    """Says in a few words how the run ended."""
    if timeline.end is None:
        return "broken off: the log has no end"
    reason = f": {timeline.end.reason}" if timeline.end.reason else ""
    return f"{timeline.end.status}{reason}"


def facts(timeline: Timeline) -> list[tuple[str, str]]:
    """Returns the figures of a run, each with its name, those the log does not tell left out."""
    start, times = timeline.start, StepTimes.of(timeline.rows)
    planned = f" of {start.steps_planned}" if start and start.steps_planned else ""
    found: list[tuple[str, str | None]] = [
        ("run", outcome(timeline)),
        ("steps", f"{len(timeline.steps)}{planned}"),
        ("training took", duration_text(timeline.duration_s)),
        ("starting up took", duration_text(timeline.startup_ns / 1e9)),
        ("training loss", _loss(timeline.final_loss)),
        ("held-out loss", _held_out(timeline)),
        ("tokens per second", _rate(timeline.tokens_per_s())),
    ]
    if times is not None:
        found += [
            ("step time P50", milliseconds_text(times.p50_ns)),
            ("step time P99", milliseconds_text(times.p99_ns)),
            ("step time P100", f"{milliseconds_text(times.p100_ns)} (step {times.slowest_step})"),
            ("waiting for gradients P50", milliseconds_text(times.allreduce_p50_ns)),
        ]
    if timeline.paths:
        found.append(("sent in all", bytes_text(sum(path.bytes_sent for path in timeline.paths.values()))))
        found.append(("packets resent", f"{timeline.retransmitted:,}"))
    return [(name, value) for name, value in found if value is not None]


def _loss(loss: float | None) -> str | None:
    return None if loss is None else f"{loss:.4f} nats per token"


def _held_out(timeline: Timeline) -> str | None:
    text = _loss(timeline.held_out_loss)
    if text is None or not timeline.evals:
        return text
    return f"{text} (first measured {timeline.evals[0][2]:.4f})"


def _rate(tokens_per_s: float | None) -> str | None:
    return None if tokens_per_s is None else f"{tokens_per_s:,.0f} tokens/s"


def recovery_rows(timeline: Timeline) -> list[tuple[str, str, str, str, str]]:
    """Returns what became of the members of the run: when, at which step, what, what was done, and the standstill."""
    rows = []
    answers = {id(loss): timeline.answer_to(loss) for loss in timeline.losses}
    for loss in timeline.losses:
        answer = answers[id(loss)]
        done = "the run ended" if answer is None else f"training went on with {answer.size_text}"
        rows.append((loss.t_ns, loss.step, loss.sentence, done, answer))
    explained = {id(answer) for answer in answers.values()}
    for members in timeline.members.values():
        if id(members) not in explained:
            what = "; ".join(members.told.changes) or members.told.reason
            done = f"training went on with {members.size_text}"
            rows.append((members.t_ns, members.told.step, what, done, members))
    return [
        (
            duration_text(t_ns / 1e9),
            "-" if step is None else f"{step}",
            what,
            done,
            "-" if answer is None or not answer.told.is_urgent else milliseconds_text(answer.stalled_ns),
        )
        for t_ns, step, what, done, answer in sorted(rows, key=lambda row: row[0])
    ]


def summary(timeline: Timeline) -> RenderableType:
    """Returns the closing summary of a run for a terminal."""
    parts: list[RenderableType] = [_facts_table(timeline)]
    if timeline.paths:
        parts += [Text(), _paths_table(timeline)]
    if timeline.faults:
        parts += [Text(), _faults_table(timeline)]
    if timeline.losses or timeline.members:
        parts += [Text(), _recoveries_table(timeline)]
    is_identical, sentence = verdict(timeline)
    style = {True: "bold green", False: "bold red", None: "yellow"}[is_identical]
    parts += [Text(), Text(sentence, style=style)]
    return Group(*parts)


def _facts_table(timeline: Timeline) -> Table:
    title = timeline.start.name if timeline.start else "run without a beginning"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in facts(timeline):
        table.add_row(name, Text(value))
    return table


def _paths_table(timeline: Timeline) -> Table:
    table = _table("Paths")
    table.add_column("path", no_wrap=True)
    for name in ("plane", "sent", "resent", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state at the end", no_wrap=True)
    for path in timeline.paths.values():
        table.add_row(
            Text(path.name),
            str(path.plane),
            bytes_text(path.bytes_sent),
            f"{path.retransmitted:,}",
            f"{path.lost:,}",
            Text(path.state),
        )
    return table


def _table(title: str, caption: str | None = None) -> Table:
    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        box=box.SIMPLE,
        header_style="dim",
    )


def _faults_table(timeline: Timeline) -> Table:
    table = _table("Faults", COST_CAPTION)
    table.add_column("fault")
    table.add_column("cost", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("= steps", justify="right", no_wrap=True)
    table.add_column("waiting", justify="right", no_wrap=True)
    for fault, cost in zip_costs(timeline)[:FAULTS_LISTED_MAX]:
        num_steps, at_once, at_once_steps, at_once_waiting, in_all, in_all_steps, in_all_waiting = cost_texts(
            cost
        )
        table.add_row(
            Text(f"{fault.title}\n{fault.when}, {num_steps} steps"),
            "at once\nin all",
            f"{at_once}\n{in_all}",
            f"{at_once_steps}\n{in_all_steps}",
            f"{at_once_waiting}\n{in_all_waiting}",
        )
    if len(timeline.faults) > FAULTS_LISTED_MAX:
        table.add_row(f"and {len(timeline.faults) - FAULTS_LISTED_MAX} more, in the report", "", "", "", "")
    return table


def _recoveries_table(timeline: Timeline) -> Table:
    table = _table("Losses and recoveries", RECOVERY_CAPTION)
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("what happened")
    table.add_column("what was done")
    table.add_column("standstill", justify="right", no_wrap=True)
    rows = recovery_rows(timeline)
    for at, step, what, done, standstill in rows[:FAULTS_LISTED_MAX]:
        table.add_row(at, step, Text(what), done, standstill)
    if len(rows) > FAULTS_LISTED_MAX:
        table.add_row("", "", f"and {len(rows) - FAULTS_LISTED_MAX} more, in the report", "", "")
    return table


RECOVERY_CAPTION = (
    "Standstill: from when the ranks noticed until they trained on; the step that was run again comes on top. "
    "The batch stays as large as it was, dealt to those that are left."
)
"""What is shown of a recovery."""

FAULTS_LISTED_MAX = 12
"""Faults a summary lists: what still fits on a screen."""

COST_CAPTION = (
    "Cost: time beyond the median of the healthy steps around. "
    f"At once: its first {ONSET_STEPS} steps; in all: every step while it lasted. "
    "±: what as many healthy steps stray by. Waiting: the part spent waiting for gradients; "
    "the rest is computing, which other work on the machine may slow."
)
"""What the columns of a fault's cost mean."""


def zip_costs(timeline: Timeline) -> list[tuple[Fault, FaultCost | None]]:
    """Returns every fault with its cost, None where no step tells it."""
    costs = {id(cost.fault): cost for cost in fault_costs(timeline)}
    return [(fault, costs.get(id(fault))) for fault in timeline.faults]


def cost_texts(cost: FaultCost | None) -> tuple[str, str, str, str, str, str, str]:
    """Puts the cost of a fault into words.

    Returns:
        Steps in the window; cost at once, in steps, and the part of it spent waiting for gradients; the same in all.
    """
    if cost is None:
        return ("-",) * 7
    return (
        str(cost.num_steps),
        _signed_ms(cost.onset_ns),
        f"{cost.onset_steps:+.2f}",
        _signed_ms(cost.onset_waiting_ns),
        f"{_signed_ms(cost.excess_ns).removesuffix(' ms')} ±{milliseconds_text(cost.noise_ns)}",
        f"{cost.excess_steps:+.2f}",
        _signed_ms(cost.excess_waiting_ns),
    )


def _signed_ms(time_ns: int) -> str:
    return ("+" if time_ns >= 0 else "") + milliseconds_text(time_ns)
