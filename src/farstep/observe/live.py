"""What a run looks like while it runs: one screen on a terminal, plain lines anywhere else.

A display is a listener of an event log and knows nothing but the records. On a terminal it takes the
alternate screen, so it may be resized, and what was on the terminal before is back when it ends; the
caller prints the summary then. Programs that write to the same terminal meanwhile must be redirected.

Use it as a context manager: leaving it, by an exception or Ctrl-C too, restores the terminal.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from farstep.observe.events import (
    Eval,
    FaultEvent,
    MembersChanged,
    PathSample,
    PathState,
    PathStateChange,
    RankLost,
    Record,
    RunEnd,
    RunStart,
)
from farstep.observe.live_screen import Happening, LiveScreen
from farstep.observe.step_times import StepTimes
from farstep.observe.timeline import RATE_WINDOW_STEPS, Timeline, fault_title
from farstep.observe.units import duration_text

HAPPENINGS_KEPT = 200
"""Lines of the scrolling pane that are kept: more than any terminal is high."""
SAMPLES_KEPT = 512
"""Samples kept per path, over all ranks: enough for the widest spark-line."""


class LiveDisplay:
    """Shows a run as it goes.

    Args:
        console: where to; standard output if omitted.
        plain: lines instead of a screen; chosen by whether the console is a terminal if omitted.
        plain_every_steps: with plain lines, one for every so many steps.
        refresh_per_s: how often the screen is drawn.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        plain: bool | None = None,
        plain_every_steps: int = 10,
        refresh_per_s: float = 8.0,
    ) -> None:
        if plain_every_steps < 1:
            raise ValueError(f"plain_every_steps must be at least 1, not {plain_every_steps}")
        self.console = console or Console()
        is_screen = self.console.is_terminal and not self.console.is_dumb_terminal
        self.is_plain = not is_screen if plain is None else plain
        self.timeline = Timeline(recent_samples=SAMPLES_KEPT)
        self._plain_every_steps = plain_every_steps
        self._happenings: deque[Happening] = deque(maxlen=HAPPENINGS_KEPT)
        self._lock = threading.Lock()
        self._steps_told = 0
        self._step_times: StepTimes | None = None
        self._live: Live | None = None
        if not self.is_plain:
            self._live = Live(
                console=self.console,
                screen=True,
                refresh_per_second=refresh_per_s,
                get_renderable=self._screen,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Gives the terminal back; calling it again does nothing."""
        if self._live is not None:
            self._live.stop()

    def on_record(self, record: Record) -> None:
        """Takes in one record; give this method to `EventLog` as a listener."""
        with self._lock:
            before = self._path_states(record)
            self.timeline.add(record)
            happenings = self._new_happenings(record, before)
            self._happenings.extend(happenings)
            if self.is_plain:
                self._print_plain(record, happenings)

    def _path_states(self, record: Record) -> PathState | None:
        event = record.event
        if isinstance(event, PathSample | PathStateChange) and event.path in self.timeline.paths:
            return self.timeline.paths[event.path].state
        return None

    def _new_happenings(self, record: Record, before: PathState | None) -> list[Happening]:
        event, timeline = record.event, self.timeline
        step = timeline.steps_done  # the number of the one that is running
        t_ns = timeline.time_ns(record)
        match event:
            case FaultEvent():
                title = fault_title(event.fault, event.target, event.value)
                is_applied = event.action == "applied"
                text, style = ("fault", "bold red") if is_applied else ("fault over", "bold green")
                return [
                    Happening(t_ns, step if event.step is None else event.step, f"{text}: {title}", style)
                ]
            case PathStateChange() | PathSample():
                after = timeline.paths[event.path].state
                if after is (before or PathState.GOOD):
                    return []
                cause = f" ({event.cause})" if isinstance(event, PathStateChange) and event.cause else ""
                text = f"{event.path}: {before or PathState.GOOD} → {after}{cause}"
                return [Happening(t_ns, step, text, "green" if after is PathState.GOOD else "yellow")]
            case Eval():
                return [Happening(t_ns, event.step, f"held-out loss {event.loss:.4f}", "cyan")]
            case RankLost():
                at_step = step if event.step is None else event.step
                return [Happening(t_ns, at_step, timeline.losses[-1].sentence, "bold red")]
            case MembersChanged() if timeline.members[event.generation].told is event:  # the first to tell
                members = timeline.members[event.generation]
                why = "; ".join(event.changes) or event.reason
                text = f"training goes on with {members.size_text} ({why})"
                return [Happening(t_ns, event.step, text, "bold green")]
            case RunEnd():
                text = f"run {event.status}" + (f": {event.reason}" if event.reason else "")
                return [Happening(t_ns, event.steps or step, text, "bold")]
        return []

    def _screen(self) -> RenderableType:
        with self._lock:
            self._refresh_step_times()
            return LiveScreen(self.timeline, self._step_times, self._happenings).frame(
                self.console.size, ascii_only=self.console.options.ascii_only
            )

    def _refresh_step_times(self) -> None:
        # Sorting all steps again for every frame would be felt in long runs: one in a thousand is enough.
        num_steps = len(self.timeline.steps)
        known = self._step_times.num_steps if self._step_times else 0
        if num_steps - known > num_steps // 1000:
            self._step_times = StepTimes.of(self.timeline.rows)

    # ---- plain lines ----

    def _print_plain(self, record: Record, happenings: list[Happening]) -> None:
        event, planned = record.event, self._steps_planned()
        if isinstance(event, RunStart):
            self._print(f"{event.name}: {event.ranks} ranks, {planned} steps")
        for happening in happenings:
            self._print(f"[{duration_text(happening.t_ns / 1e9)}] step {happening.step}: {happening.text}")
        # A step is complete once a rank reports the next one, or the run ends.
        done = self.timeline.steps_done
        num_complete = done if isinstance(event, RunEnd) else done - 1
        if num_complete <= self._steps_told:
            return
        is_due = num_complete % self._plain_every_steps == 0 or num_complete == 1 or isinstance(event, RunEnd)
        self._steps_told = num_complete
        if is_due and num_complete - 1 in self.timeline.steps:
            self._print(self._plain_step(num_complete))

    def _steps_planned(self) -> str:
        start = self.timeline.start
        return str(start.steps_planned) if start and start.steps_planned else "?"

    def _plain_step(self, num_complete: int) -> str:
        timeline = self.timeline
        self._refresh_step_times()
        row = timeline.steps[num_complete - 1]
        words = [f"{num_complete}/{self._steps_planned()} steps", f"loss {row.loss:.4f}"]
        if timeline.held_out_loss is not None:
            words.append(f"held out {timeline.held_out_loss:.4f}")
        rate = timeline.tokens_per_s(RATE_WINDOW_STEPS)
        if rate is not None:
            words.append(f"{rate:,.0f} tokens/s")
        if times := self._step_times:
            percentiles = (times.p50_ns, times.p99_ns, times.p100_ns)
            words.append("step P50/P99/P100 " + "/".join(f"{time / 1e6:.0f}" for time in percentiles) + " ms")
        words.append(f"{timeline.retransmitted} resent")
        remaining_s = timeline.remaining_s()
        if remaining_s is not None:
            words.append(f"{duration_text(remaining_s)} left")
        return f"[{duration_text(row.end_ns / 1e9)}] " + "  ".join(words)

    def _print(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True)
