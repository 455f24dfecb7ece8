"""A run as columns: what its records say about steps, paths and faults, folded one record at a time.

The display, the summary and the report all read a `Timeline`, so they cannot disagree. A timeline may
be looked at at any moment; what the log does not say (yet, or because the run was killed) is absent or
None, never guessed.

Times in a timeline count from the `run_start` event, when training begins; what the log says before it is left
out. In a log without one they count from the beginning of the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

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
    Step,
)
from farstep.observe.units import duration_text

RATE_WINDOW_STEPS = 10
"""Steps over which the current rate of tokens is averaged: short enough to show a fault."""


@dataclass(slots=True)
class StepRow:
    """One step over all ranks that reported it."""

    step: int
    end_ns: int
    """When the last rank finished it."""
    step_time_ns: int
    """The slowest rank's, since in lockstep that is everyone's."""
    allreduce_ns: int
    tokens: int
    loss_sum: float
    num_reports: int
    ranks: set[int | None] = field(default_factory=set)

    @property
    def loss(self) -> float:
        """Mean training loss over the ranks, nats per token."""
        return self.loss_sum / self.num_reports

    @property
    def start_ns(self) -> int:
        """When it began."""
        return max(0, self.end_ns - self.step_time_ns)


@dataclass(slots=True)
class PathView:
    """One path over all ranks."""

    name: str
    plane: int
    samples: list[tuple[int, int | None, PathSample]] = field(default_factory=list)
    """Time in ns, rank and sample, in the order of the log."""
    latest: dict[int | None, PathSample] = field(default_factory=dict)
    """Last sample of each rank."""
    states: dict[tuple[int | None, str | None, int | None], PathState] = field(default_factory=dict)
    """State of each entropy value (by rank, peer and value) as last reported by a change."""
    changes: list[tuple[int, PathState]] = field(default_factory=list)
    """Time in ns and state of the path as a whole, from then on."""
    bytes_sent: float = 0.0
    retransmitted: int = 0
    lost: int = 0

    @property
    def state(self) -> PathState:
        """The worst state that any rank sees."""
        return max(
            (sample.state for sample in self.latest.values()), key=_badness, default=self._changed_state()
        )

    def _changed_state(self) -> PathState:
        return self.changes[-1][1] if self.changes else PathState.GOOD

    @property
    def rtt_ns(self) -> int | None:
        """Largest round-trip time that a rank sees at present."""
        return max((s.rtt_ns for s in self.latest.values() if s.rtt_ns is not None), default=None)


@dataclass(slots=True)
class Fault:
    """One entry of the fault script, from when it took effect until it was taken back."""

    fault_id: int
    kind: str
    target: str
    start_ns: int
    end_ns: int | None = None
    """None while it lasts, and if the log ends before it was taken back."""
    start_step: int | None = None
    value: float | None = None

    @property
    def title(self) -> str:
        """Kind, target and size in words."""
        return fault_title(self.kind, self.target, self.value)

    @property
    def when(self) -> str:
        """From when until when in the run, as a clock shows it."""
        until = "…" if self.end_ns is None else duration_text(self.end_ns / 1e9)
        return f"{duration_text(self.start_ns / 1e9)} to {until}"


@dataclass(frozen=True, slots=True)
class Loss:
    """A rank that the run went on without."""

    rank: int | None
    group: str
    cause: str
    t_ns: int
    step: int | None

    @property
    def sentence(self) -> str:
        """Who, and what became of it."""
        who = self.group if self.rank is None else f"rank {self.rank} ({self.group})"
        return f"{who} {self.cause}"


@dataclass(slots=True)
class Members:
    """A change of who trains together, as all ranks told it."""

    t_ns: int
    """When the first of them had made its first step."""
    told: MembersChanged
    stalled_ns: int
    """The longest that a rank stood still for it."""

    @property
    def size_text(self) -> str:
        """How many replica groups there are, in words."""
        num = len(self.told.groups)
        return "1 replica group" if num == 1 else f"{num} replica groups"


def fault_title(kind: str, target: str, value: float | None) -> str:
    """Says kind, target and size of a fault in words."""
    words = [kind.replace("_", " "), target.replace("=", " ")]
    if value is not None:
        words.append(f"{value:g}")
    return " · ".join(word for word in words if word)


_ORDER = list(PathState)


def _badness(state: PathState) -> int:
    return _ORDER.index(state)


class Timeline:
    """Everything the records of a run say so far.

    Args:
        recent_samples: samples kept per path; None keeps all, as a report needs.
    """

    def __init__(self, *, recent_samples: int | None = None) -> None:
        self.start: RunStart | None = None
        self.started_wall: str | None = None
        self.startup_ns = 0
        """From the beginning of the log to that of training."""
        self._recent_samples = recent_samples
        self._clear()

    def _clear(self) -> None:
        self.end: RunEnd | None = None
        self.last_t_ns = 0
        self.steps: dict[int, StepRow] = {}
        """By step number, in the order first reported; a step run again replaces its first attempt."""
        self.evals: list[tuple[int, int, float]] = []
        """Time in ns, step and held-out loss."""
        self.paths: dict[str, PathView] = {}
        self.faults: list[Fault] = []
        self.losses: list[Loss] = []
        self.members: dict[int, Members] = {}
        """Changes of the membership, by its number."""
        self._previous_sample_ns: dict[tuple[str, int | None], int] = {}

    @classmethod
    def of(cls, records: Iterable[Record]) -> Timeline:
        """Folds a whole log."""
        timeline = cls()
        for record in records:
            timeline.add(record)
        return timeline

    def time_ns(self, record: Record) -> int:
        """Returns when a record's event happened, counted from the beginning of training."""
        return max(0, record.t_ns - self.startup_ns)

    def add(self, record: Record) -> None:
        """Takes in the next record of the log."""
        t_ns = self.time_ns(record)
        match record.event:
            case RunStart() as event:
                self._clear()
                self.start = event
                self.startup_ns = record.t_ns
                self.started_wall = record.wall
                t_ns = 0
            case Step() as event:
                self._add_step(t_ns, record.rank, event)
            case Eval() as event:
                self._add_eval(t_ns, event)
            case PathSample() as event:
                self._add_sample(t_ns, record.rank, event)
            case PathStateChange() as event:
                self._add_change(t_ns, record.rank, event)
            case FaultEvent() as event:
                self._add_fault(t_ns, event)
            case RankLost() as event:
                self._add_loss(t_ns, record.rank, event)
            case MembersChanged() as event:
                known = self.members.setdefault(event.generation, Members(t_ns, event, 0))
                known.stalled_ns = max(known.stalled_ns, event.stalled_ns)
            case RunEnd() as event:
                self.end = event
            case _:
                pass
        self.last_t_ns = max(self.last_t_ns, t_ns)

    def _add_step(self, t_ns: int, rank: int | None, event: Step) -> None:
        row = self.steps.get(event.step)
        if row is None or rank in row.ranks:
            self.steps[event.step] = StepRow(
                event.step, t_ns, event.step_time_ns, event.allreduce_ns, event.tokens, event.loss, 1, {rank}
            )
            return
        row.end_ns = max(row.end_ns, t_ns)
        row.step_time_ns = max(row.step_time_ns, event.step_time_ns)
        row.allreduce_ns = max(row.allreduce_ns, event.allreduce_ns)
        row.tokens += event.tokens
        row.loss_sum += event.loss
        row.num_reports += 1
        row.ranks.add(rank)

    def _add_eval(self, t_ns: int, event: Eval) -> None:
        if self.evals and self.evals[-1][1] == event.step:  # every rank may report the same measurement
            return
        self.evals.append((t_ns, event.step, event.loss))

    def _path(self, name: str, plane: int) -> PathView:
        return self.paths.setdefault(name, PathView(name, plane))

    def _add_sample(self, t_ns: int, rank: int | None, event: PathSample) -> None:
        path = self._path(event.path, event.plane)
        before_ns = self._previous_sample_ns.get((event.path, rank), 0)
        self._previous_sample_ns[event.path, rank] = t_ns
        interval_s = max(0, t_ns - before_ns) / 1e9
        path.samples.append((t_ns, rank, event))
        if self._recent_samples is not None and len(path.samples) > 2 * self._recent_samples:
            del path.samples[: -self._recent_samples]
        path.latest[rank] = event
        path.bytes_sent += event.tx_bytes_per_s * interval_s
        path.retransmitted += event.retransmitted
        path.lost += event.lost
        self._note_state(path, t_ns, path.state)

    def _add_change(self, t_ns: int, rank: int | None, event: PathStateChange) -> None:
        path = self._path(event.path, event.plane)
        path.states[rank, event.peer, event.entropy_value] = event.new
        worst = max(path.states.values(), key=_badness)
        if event.entropy_value is None and rank in path.latest:
            path.latest[rank] = path.latest[rank].model_copy(update={"state": event.new})
        self._note_state(path, t_ns, worst if not path.latest else path.state)

    @staticmethod
    def _note_state(path: PathView, t_ns: int, state: PathState) -> None:
        if not path.changes or path.changes[-1][1] is not state:
            path.changes.append((t_ns, state))

    def _add_fault(self, t_ns: int, event: FaultEvent) -> None:
        if event.action == "applied":
            self.faults.append(
                Fault(event.fault_id, event.fault, event.target, t_ns, None, event.step, event.value)
            )
            return
        for fault in reversed(self.faults):
            if fault.fault_id == event.fault_id and fault.end_ns is None:
                fault.end_ns = t_ns
                return

    def _add_loss(self, t_ns: int, rank: int | None, event: RankLost) -> None:
        self.losses.append(Loss(rank, event.group, event.cause, t_ns, event.step))
        for path in self.paths.values():  # how it saw them is of no interest any more
            if len(path.latest) > 1:
                path.latest.pop(rank, None)

    # ---- what follows is derived from the columns ----

    def answer_to(self, loss: Loss) -> Members | None:
        """Returns the first membership without a rank that was lost; None if there was none before the log ends."""
        numbers = sorted(self.members)
        return next((self.members[n] for n in numbers if loss.group not in self.members[n].told.groups), None)

    @property
    def rows(self) -> list[StepRow]:
        """The steps in the order of their numbers."""
        return sorted(self.steps.values(), key=lambda row: row.step)

    def latest_rows(self, count: int) -> list[StepRow]:
        """Returns at most `count` of the steps last begun to be reported, oldest first."""
        return list(islice(reversed(self.steps.values()), count))[::-1]

    @property
    def duration_s(self) -> float:
        """Seconds from the beginning of training to the last record."""
        return self.last_t_ns / 1e9

    @property
    def steps_done(self) -> int:
        """How many steps have been committed; steps are numbered from 0."""
        return max(self.steps, default=-1) + 1

    @property
    def is_complete(self) -> bool:
        """Whether the log says how the run ended."""
        return self.end is not None

    @property
    def retransmitted(self) -> int:
        """Packets sent again over all paths and ranks."""
        return sum(path.retransmitted for path in self.paths.values())

    @property
    def final_loss(self) -> float | None:
        """Training loss of the last step; None without a step."""
        if self.end is not None and self.end.final_loss is not None:
            return self.end.final_loss
        return max(self.steps.values(), key=lambda row: row.step).loss if self.steps else None

    @property
    def held_out_loss(self) -> float | None:
        """Held-out loss as last measured; None without a measurement."""
        if self.end is not None and self.end.held_out_loss is not None:
            return self.end.held_out_loss
        return self.evals[-1][2] if self.evals else None

    def tokens_per_s(self, last_steps: int | None = None) -> float | None:
        """Tokens per second of wall time.

        Args:
            last_steps: how many of the latest steps to average over; None for the whole run.

        Returns:
            The rate, or None before the first step is through.
        """
        rows = self.latest_rows(len(self.steps) if last_steps is None else last_steps)
        if not rows:
            return None
        elapsed_ns = max(row.end_ns for row in rows) - min(row.start_ns for row in rows)
        return sum(row.tokens for row in rows) / (elapsed_ns / 1e9) if elapsed_ns > 0 else None

    def remaining_s(self) -> float | None:
        """Estimated seconds until the last planned step; None if the plan is not known or not begun."""
        planned = self.start.steps_planned if self.start else None
        if planned is None or not self.steps or self.end is not None:
            return None
        rows = self.latest_rows(5 * RATE_WINDOW_STEPS)
        elapsed_ns = rows[-1].end_ns - rows[0].start_ns
        return max(0, planned - self.steps_done) * elapsed_ns / 1e9 / len(rows)

    def path_rates(self, name: str, bin_s: float, *, until_s: float | None = None) -> list[float]:
        """Bytes per second sent over one path, summed over ranks, in bins of equal length from t = 0.

        A sample's rate holds from its rank's sample before to the sample itself. Samples that speak for
        the whole run are left out if ranks report for themselves. Only bins that the samples fill are given.
        """
        path = self.paths[name]
        ranks_apart = {rank for _, rank, _ in path.samples} - {None}
        samples = [s for s in path.samples if s[1] is not None] if ranks_apart else path.samples
        end_s = max((t_ns for t_ns, _, _ in samples), default=0) / 1e9
        num_bins = math.floor((end_s if until_s is None else min(end_s, until_s)) / bin_s + 1e-6)
        sent_bytes = [0.0] * num_bins
        before_s: dict[int | None, float] = {}
        for t_ns, rank, sample in samples:
            stop_s = t_ns / 1e9
            start_s = before_s.get(rank, max(0.0, stop_s - bin_s))
            before_s[rank] = stop_s
            index = int(start_s / bin_s)
            while index < num_bins and index * bin_s < stop_s:
                overlap_s = min(stop_s, (index + 1) * bin_s) - max(start_s, index * bin_s)
                sent_bytes[index] += sample.tx_bytes_per_s * max(0.0, overlap_s)
                index += 1
        return [total / bin_s for total in sent_bytes]
