"""The screen of a running run, laid out for the size the terminal has at the moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from farstep.observe.events import PathState
from farstep.observe.step_times import StepTimes
from farstep.observe.timeline import RATE_WINDOW_STEPS, PathView, Timeline
from farstep.observe.units import duration_text, milliseconds_text, quantity_text, rate_text, spark_line

STATE_STYLES = {
    PathState.GOOD: "green",
    PathState.SKIP: "yellow",
    PathState.ASSUMED_BAD: "bold red",
    PathState.DENIED: "red",
}
"""Colour of each state; the name of the state always stands beside it."""

_SPARK_BIN_S = 0.5
_NOW_BINS = 4
"""Bins that "now" is the mean of: gradients come in bursts, one per step."""
_LOSS_STEPS_MAX = 5_000
"""Steps the loss curve reaches back: bounds the work for one frame."""
_HEAD_LINES = 6
_PANE_FRAME_LINES = 2
_TABLE_FRAME_LINES = 4
_HAPPENINGS_MIN = 3


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the scrolling pane."""

    t_ns: int
    step: int
    text: str
    style: str


class LiveScreen:
    """One frame. It reads the timeline and must be made while nothing adds to it."""

    def __init__(
        self, timeline: Timeline, step_times: StepTimes | None, happenings: Sequence[Happening]
    ) -> None:
        self._timeline = timeline
        self._step_times = step_times
        self._happenings = happenings
        self._ascii_only = False

    def frame(self, size: ConsoleDimensions, *, ascii_only: bool = False) -> RenderableType:
        """Returns everything that fits `size`: the head always, then paths, then what happened."""
        self._ascii_only = ascii_only
        parts: list[RenderableType] = [self._head(size.width)]
        left = size.height - _HEAD_LINES
        num_paths = len(self._timeline.paths)
        num_shown = max(0, min(num_paths, left - _TABLE_FRAME_LINES - _HAPPENINGS_MIN - _PANE_FRAME_LINES))
        if num_paths and num_shown:
            parts.append(self._paths(num_shown, size.width))
            left -= num_shown + _TABLE_FRAME_LINES + (num_shown < num_paths)
        if left > _PANE_FRAME_LINES:
            parts.append(self._pane(left - _PANE_FRAME_LINES))
        return Group(*parts)

    # ---- head: progress and figures ----

    def _head(self, width: int) -> RenderableType:
        timeline, start = self._timeline, self._timeline.start
        done = timeline.steps_done
        planned = start.steps_planned if start else None
        remaining_s = timeline.remaining_s()
        progress = Table.grid(expand=True, padding=(0, 2, 0, 0))
        progress.add_column(no_wrap=True)
        progress.add_column(ratio=1)
        progress.add_column(no_wrap=True, justify="right")
        left = "" if remaining_s is None else f"  {duration_text(remaining_s)} left"
        progress.add_row(
            Text(f"{done} of {planned} steps" if planned else f"{done} steps", style="bold"),
            ProgressBar(total=planned, completed=done, pulse=planned is None),
            Text(f"{duration_text(timeline.last_t_ns / 1e9)} run{left}"),
        )
        title = start.name if start else "waiting for the run to begin"
        facts = _facts(timeline) if width >= 100 else ""
        return Panel(
            Group(progress, Text(), self._figures(width)),
            title=Text(f" {title} ", style="bold"),
            title_align="left",
            subtitle=Text(f" {facts} ", style="dim") if facts else None,
            subtitle_align="right",
            box=self._box(),
            height=_HEAD_LINES,
        )

    def _figures(self, width: int) -> RenderableType:
        timeline, times = self._timeline, self._step_times
        rows = timeline.latest_rows(_LOSS_STEPS_MAX)
        spark_width = max(0, min(24, (width - 76) // 2))
        stride = max(1, len(rows) // max(1, spark_width))
        curve = [row.loss for row in rows[::-1][::stride][::-1]]  # the newest is always shown
        losses = spark_line(curve, spark_width, low=None, ascii_only=self._ascii_only)
        rate = timeline.tokens_per_s(RATE_WINDOW_STEPS)
        names = ["loss", "held-out loss", "tokens/s", "step P50", "P99", "P100", "resent"]
        if width < 90:
            names[1:4] = ["held out", "tok/s", "P50"]
        figures = [
            Text.assemble((f"{rows[-1].loss:.4f}", "bold"), f" {losses.strip()}") if rows else Text("-"),
            Text("-" if timeline.held_out_loss is None else f"{timeline.held_out_loss:.4f}", style="bold"),
            Text("-" if rate is None else f"{rate:,.0f}", style="bold"),
            *(
                Text("-" if times is None else milliseconds_text(time_ns), style="bold")
                for time_ns in ((times.p50_ns, times.p99_ns, times.p100_ns) if times else (0, 0, 0))
            ),
            Text(f"{timeline.retransmitted:,}", style="bold"),
        ]
        table = Table.grid(expand=True, padding=(0, 1, 0, 0))
        for index in range(len(names)):
            table.add_column(no_wrap=True, ratio=None if index == 0 else 1)
        table.add_row(*(Text(name, style="dim") for name in names))
        table.add_row(*figures)
        return table

    # ---- paths ----

    def _paths(self, num_shown: int, width: int) -> RenderableType:
        paths = sorted(self._timeline.paths.values(), key=lambda path: (path.plane, _natural(path.name)))
        if num_shown < len(paths):  # those in trouble must be seen
            paths.sort(key=lambda path: path.state is PathState.GOOD)
        shown, hidden = paths[:num_shown], paths[num_shown:]
        spark_width = max(0, width - 76)
        lines = {path.name: self._recent_rates(path, max(spark_width, _NOW_BINS)) for path in shown}
        top = max((rate for line in lines.values() for rate in line), default=0.0)
        table = Table(box=self._box(), expand=True, header_style="dim", padding=(0, 1))
        table.add_column("path", no_wrap=True)
        table.add_column("plane", justify="right")
        table.add_column("state", no_wrap=True, min_width=11)
        table.add_column("sent now", justify="right", no_wrap=True, min_width=9)
        if spark_width:
            table.add_column(f"last {spark_width * _SPARK_BIN_S:.0f} s", no_wrap=True, ratio=1)
        table.add_column("resent", justify="right")
        table.add_column("round trip", justify="right", no_wrap=True)
        for path in shown:
            now = lines[path.name][-_NOW_BINS:]
            spark = spark_line(lines[path.name], spark_width, high=top, ascii_only=self._ascii_only)
            style = STATE_STYLES[path.state]
            table.add_row(
                Text(path.name),
                str(path.plane),
                Text(path.state, style=style),
                rate_text(sum(now) / max(1, len(now))),
                *([Text(spark, style=style)] if spark_width else []),
                f"{path.retransmitted:,}",
                "-" if path.rtt_ns is None else milliseconds_text(path.rtt_ns),
            )
        if not hidden:
            return table
        num_bad = sum(path.state is not PathState.GOOD for path in hidden)
        more = f"and {len(hidden)} more paths, " + (f"{num_bad} of them not GOOD" if num_bad else "all GOOD")
        return Group(table, Text(f"  {more}", style="dim"))

    def _recent_rates(self, path: PathView, width: int) -> list[float]:
        """Rates of a path over all ranks in the latest bins, the unfinished one left out."""
        last_bin = int(self._timeline.last_t_ns / 1e9 / _SPARK_BIN_S)
        sums: dict[int, dict[int | None, list[float]]] = {}
        for t_ns, rank, sample in path.samples:
            sums.setdefault(int(t_ns / 1e9 / _SPARK_BIN_S), {}).setdefault(rank, []).append(
                sample.tx_bytes_per_s
            )
        bins = range(max(0, last_bin - width), last_bin)
        return [sum(sum(rates) / len(rates) for rates in sums.get(b, {}).values()) for b in bins]

    # ---- what happened ----

    def _pane(self, num_lines: int) -> RenderableType:
        lines = [
            Text.assemble(
                (f"{duration_text(happening.t_ns / 1e9):>8}", "dim"),
                (f"  step {happening.step:<7}", "dim"),
                (happening.text, happening.style),
                no_wrap=True,
                overflow="ellipsis",
            )
            for happening in list(self._happenings)[-num_lines:]
        ]
        body = Group(*lines) if lines else Text("nothing yet: no fault, every path good", style="dim")
        return Panel(
            body,
            title=Text(" what happened "),
            title_align="left",
            box=self._box(),
            height=num_lines + _PANE_FRAME_LINES,
        )

    def _box(self) -> box.Box:
        return box.ASCII if self._ascii_only else box.ROUNDED


def _facts(timeline: Timeline) -> str:
    start = timeline.start
    if start is None:
        return ""
    left = start.ranks - len(timeline.losses)
    words = [f"{left} of {start.ranks} ranks" if timeline.losses else f"{start.ranks} ranks"]
    if start.sites:
        words.append(f"{len(start.sites)} sites")
    if start.parameters:
        words.append(f"{quantity_text(start.parameters, '')} parameters")
    if start.text_name:
        words.append(start.text_name)
    return " · ".join(words)


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
