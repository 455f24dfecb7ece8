"""Reads the event log of a coordinator: what failed, what was done about it, and what that cost.

Such a log is written by one coordinator after another, each of which counts its own time, and a disk may have
been full in between. So moments are told by `wall`, and lines that are broken are counted and left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from farstep.observe.events import EventLogError

__all__ = ["Generation", "Heal", "Recovery", "RunRecoveries", "Sample", "is_coordinator_log"]

PROBE_LINES = 50
"""A coordinator says that it starts within so many lines, if the log is one's."""

PAUSE_S_MIN = 1.0
"""Shorter pauses of a coordinator are a busy machine's everyday."""

CAUSES = frozenset({"member_lost", "failure_report", "step_failed", "evict"})
"""Kinds that call for an urgent generation."""

OTHER_TROUBLE = frozenset(
    {
        "checkpoint_broken",
        "checkpoint_failed",
        "coordinator_paused",
        "heal_source_rejected",
        "heal_sources_disagree",
        "log_gap",
        "member_too_slow",
        "override",
        "state_differs",
        "step_skipped",
        "straggler",
        "two_histories",
    }
)
"""Kinds that are worth telling although no generation answers them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How far the run was at one moment."""

    at_s: float
    step: int
    training: int
    step_p50_ns: float | None
    step_max_ns: float | None
    loss: float | None


@dataclass(slots=True)
class Generation:
    """One membership."""

    at_s: float
    number: int
    is_urgent: bool
    reason: str
    changes: tuple[str, ...]
    seats: tuple[str, ...]
    spares: tuple[str, ...]
    took_ms: float
    """From the failure, or from the wish, to the decision, as the coordinator saw it."""
    stalls_ms: dict[str, float] = field(default_factory=dict)
    """By member: from noticing to training on."""
    trained_on_s: float | None = None
    """When the last of its members trained on."""
    rolled_forward: tuple[str, ...] = ()
    """Members that finished the step under way with the gradient they had."""


@dataclass(slots=True)
class Recovery:
    """Something failed, and the generation that answered it."""

    at_s: float
    causes: tuple[str, ...]
    """One sentence each, without repetition."""
    lost: tuple[str, ...]
    """Members that were gone."""
    generation: Generation | None
    """None if nothing was done until the log ended."""

    @property
    def standstill_ms(self) -> float | None:
        """From the failure, as far as the coordinator knew, until the last member trained on; None if none has told."""
        answer = self.generation
        if answer is None or answer.trained_on_s is None:
            return None
        return max(1e3 * (answer.trained_on_s - self.at_s), *answer.stalls_ms.values())


@dataclass(slots=True)
class Heal:
    """A member that received the state of the run."""

    member: str
    at_s: float
    done_s: float | None = None
    from_step: int | None = None
    to_step: int | None = None
    num_bytes: int | None = None
    transfer_ms: float | None = None
    num_sources: int | None = None
    is_cut_short: bool = False
    """The member was lost before it was through."""


@dataclass(slots=True)
class RunRecoveries:
    """Everything of a log that a report shows."""

    path: Path
    name: str = ""
    began_wall: str = ""
    duration_s: float = 0.0
    generations: list[Generation] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    heals: list[Heal] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    coordinator_starts_s: list[float] = field(default_factory=list)
    trouble: list[tuple[float, str, str, str]] = field(default_factory=list)
    """Moment, member, kind and details of what no generation answers."""
    num_joined: int = 0
    num_checkpoints: int = 0
    ended: str | None = None
    lost: str | None = None
    """Why nobody was left at the end of the log; None if somebody was."""
    num_lines: int = 0
    num_broken: int = 0

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RunRecoveries:
        """Folds a log.

        Raises:
            EventLogError: it cannot be read, or holds no event.
        """
        path = Path(path)
        found = cls(path)
        try:
            with path.open("rb") as file:
                found._fold(file)
        except OSError as error:
            raise EventLogError(f"cannot read event log {path}: {error.strerror or error}") from error
        if not found.num_lines:
            raise EventLogError(f"event log {path} holds no event, so there is nothing to report")
        return found

    def _fold(self, lines: Iterable[bytes]) -> None:
        began: float | None = None
        pending: list[tuple[float, dict[str, Any]]] = []
        open_heals: dict[str, Heal] = {}
        by_number: dict[int, Generation] = {}
        leaving: set[str] = set()
        for line in self._records(lines):
            wall = datetime.fromisoformat(line["wall"]).timestamp()
            if began is None:
                began, self.began_wall = wall, line["wall"]
            at_s = wall - began
            self.duration_s = max(self.duration_s, at_s)
            match line["kind"]:
                case "coordinator_start":
                    self.coordinator_starts_s.append(at_s)
                    self.name = self.name or str(line.get("run", ""))
                case "member_joined":
                    self.num_joined += line.get("wants") != "observer"
                    leaving.discard(str(line.get("member", "")))
                case "member_leaves":
                    leaving.add(str(line.get("member", "")))
                case "generation":
                    generation = _generation(at_s, line)
                    if (name := str(line.get("run_id", self.name))) != self.name:
                        self.name = name
                        by_number.clear()  # another run counts anew
                    self.lost = None
                    self.generations.append(generation)
                    by_number[generation.number] = generation
                    self._answer(pending, generation)
                    pending = []
                case "regroup":
                    _note_stall(by_number.get(_integer(line.get("generation")) or 0), at_s, line)
                case "progress":
                    self.samples.append(_sample(at_s, line))
                case "checkpoint_saved":
                    self.num_checkpoints += 1
                case "run_ended":
                    self.ended = str(line.get("reason", ""))
                case "run_dropped":
                    self.lost = str(line.get("reason", ""))
                case "member_lost" if str(line.get("member", "")) in leaving:
                    pass  # it said so before
                case "coordinator_paused" if (_number(line.get("pause_s")) or 0.0) < PAUSE_S_MIN:
                    pass
                case kind if kind in OTHER_TROUBLE:
                    self.trouble.append((at_s, str(line.get("member", "")), kind, _details(line)))
                case kind if kind in CAUSES and not _is_answered(line, by_number):
                    pending.append((at_s, line))
            self._note_heal(open_heals, at_s, line)
        self._answer(pending, None)

    def _records(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        for text in lines:
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                datetime.fromisoformat(line["wall"])
                is_whole = isinstance(line["kind"], str)
            except (ValueError, KeyError, TypeError, RecursionError):
                is_whole = False
            if is_whole:
                self.num_lines += 1
                yield line
            else:
                self.num_broken += 1

    def _answer(self, pending: list[tuple[float, dict[str, Any]]], generation: Generation | None) -> None:
        """Closes what is open: an urgent generation answers it; a planned one that follows late reports does not."""
        if generation is not None and not generation.is_urgent:
            pending = [(at_s, line) for at_s, line in pending if line["kind"] in ("member_lost", "evict")]
        elif generation is not None and not pending:
            self.recoveries.append(Recovery(generation.at_s, (generation.reason,), (), generation))
        if not pending:
            return
        lost = (
            str(line.get("member", "?")) for _, line in pending if line["kind"] in ("member_lost", "evict")
        )
        causes = (f"{line.get('member', '?')}: {_cause(line)}" for _, line in pending)
        self.recoveries.append(
            Recovery(pending[0][0], tuple(dict.fromkeys(causes)), tuple(dict.fromkeys(lost)), generation)
        )

    def _note_heal(self, open_heals: dict[str, Heal], at_s: float, line: dict[str, Any]) -> None:
        member = str(line.get("member", ""))
        match line["kind"]:
            case "heal_start":
                heal = Heal(member, at_s, from_step=_integer(line.get("at_step")))
                open_heals[member] = heal
                self.heals.append(heal)
            case "heal_state" if member in open_heals:
                heal = open_heals[member]
                heal.num_bytes = _integer(line.get("bytes"))
                heal.transfer_ms = _number(line.get("took_ms"))
                sources = line.get("sources")
                heal.num_sources = len(sources) if isinstance(sources, dict) else None
            case "heal_done" if member in open_heals:
                heal = open_heals.pop(member)
                heal.done_s, heal.to_step = at_s, _integer(line.get("step"))
            case "member_lost" if member in open_heals:
                open_heals.pop(member).is_cut_short = True


def is_coordinator_log(path: str | os.PathLike[str]) -> bool:
    """Whether a file is the event log of a coordinator; False if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            for _, line in zip(range(PROBE_LINES), file, strict=False):
                if b'"kind": "coordinator_start"' in line or b'"kind":"coordinator_start"' in line:
                    return True
    except OSError:
        return False
    return False


def _is_answered(line: dict[str, Any], by_number: dict[int, Generation]) -> bool:
    """Whether a member tells late of a failure that the next generation has answered already."""
    number = _integer(line.get("generation"))
    return number is not None and number + 1 in by_number


def _generation(at_s: float, line: dict[str, Any]) -> Generation:
    return Generation(
        at_s=at_s,
        number=_integer(line.get("number")) or 0,
        is_urgent=bool(line.get("urgent")),
        reason=str(line.get("reason", "")),
        changes=_texts(line.get("changes")),
        seats=_texts(line.get("members")),
        spares=_texts(line.get("spares")),
        took_ms=_number(line.get("took_ms")) or 0.0,
    )


def _note_stall(generation: Generation | None, at_s: float, line: dict[str, Any]) -> None:
    took_ms = _number(line.get("took_ms"))
    if generation is None or took_ms is None:
        return
    member = str(line.get("member", "?"))
    generation.stalls_ms[member] = took_ms
    generation.trained_on_s = max(generation.trained_on_s or 0.0, at_s)
    if line.get("rolled_forward"):
        generation.rolled_forward = tuple(dict.fromkeys((*generation.rolled_forward, member)))


def _sample(at_s: float, line: dict[str, Any]) -> Sample:
    return Sample(
        at_s=at_s,
        step=_integer(line.get("step")) or 0,
        training=_integer(line.get("training")) or 0,
        step_p50_ns=_number(line.get("step_p50_ns")),
        step_max_ns=_number(line.get("step_max_ns")),
        loss=_number(line.get("loss")),
    )


def _cause(line: dict[str, Any]) -> str:
    return str(line.get("cause") or line.get("reason") or line["kind"].replace("_", " "))


def _details(line: dict[str, Any]) -> str:
    hidden = {"id", "t_ns", "wall", "rank", "kind", "member", "member_id", "run_id"}
    return ", ".join(f"{key} {value}" for key, value in line.items() if key not in hidden)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
