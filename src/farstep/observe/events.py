"""The event log of a run: what may be written into it, how it is written and how it is read.

A log is a file of JSON lines. Every line is one object with four fixed keys, followed by the fields
of its kind:

    {"t_ns": 1204000000, "wall": "2026-03-01T12:00:01.204000+00:00", "rank": 0, "kind": "step", ...}

`t_ns` counts nanoseconds of the monotonic clock since the log was opened; `wall` is for people and is never
used for arithmetic; `rank` is null where a record speaks for the whole run. One process writes a log,
from as many threads as it likes, a whole line at a time, so a killed run leaves at most one broken
line, the last.

What is not here: any judgement about a run. `farstep.observe.timeline` folds records into columns.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError


class EventLogError(Exception):
    """The log cannot be opened, written or read; the message names the file and says why."""


class PathState(StrEnum):
    """State of an entropy value or of a path made of several, in the order of its life cycle."""

    GOOD = "GOOD"
    SKIP = "SKIP"
    ASSUMED_BAD = "ASSUMED_BAD"
    DENIED = "DENIED"


class Event(BaseModel):
    """Base of every kind of event. Field names carry their units."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    kind: ClassVar[str]


class RunStart(Event):
    """First event of a run: what is about to happen, with everything needed to repeat it."""

    kind: ClassVar[str] = "run_start"

    name: str = "farstep run"
    config: dict[str, Any] = Field(default_factory=dict)
    """The whole configuration, as the run uses it."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Version of every program and library that matters, by name."""
    ranks: NonNegativeInt = 1
    replicas: NonNegativeInt = 1
    sites: dict[str, list[int]] = Field(default_factory=dict)
    """Ranks at each site, by site name."""
    steps_planned: NonNegativeInt | None = None
    first_step: NonNegativeInt = 0
    """Step with which it goes on: 0, unless it was resumed from a checkpoint."""
    parameters: NonNegativeInt | None = None
    tokens_per_step: NonNegativeInt | None = None
    """Tokens of one step over all ranks."""
    text_name: str | None = None
    text_bytes: NonNegativeInt | None = None
    text_sha256: str | None = None


class Step(Event):
    """One optimizer step, committed by one rank, or by all of them if the record's rank is null."""

    kind: ClassVar[str] = "step"

    step: NonNegativeInt
    """Number of the step, counted from 0."""
    loss: float
    """Mean training loss of the step, nats per token."""
    tokens: NonNegativeInt
    """Tokens this record speaks for: those of its rank, or all of them if the rank is null."""
    step_time_ns: NonNegativeInt
    allreduce_ns: NonNegativeInt = 0
    """Part of the step time spent waiting for gradients."""


class PathSample(Event):
    """What went over one path since the sample before, as one rank's engine saw it."""

    kind: ClassVar[str] = "path_sample"

    path: str
    """Name of the path, unique in a run, the same for every rank that uses it."""
    plane: NonNegativeInt = 0
    state: PathState = PathState.GOOD
    tx_bytes_per_s: float = Field(default=0.0, ge=0)
    retransmitted: NonNegativeInt = 0
    """Packets sent again since the sample before."""
    lost: NonNegativeInt = 0
    """Packets found lost since the sample before."""
    ecn_marked: NonNegativeInt = 0
    """Packets that came back with a congestion mark since the sample before."""
    rtt_ns: NonNegativeInt | None = None
    """Smoothed round-trip time."""


class PathStateChange(Event):
    """A path, or one entropy value of it, went from one state to another."""

    kind: ClassVar[str] = "path_state"

    path: str
    plane: NonNegativeInt = 0
    old: PathState
    new: PathState
    cause: str | None = None
    peer: str | None = None
    entropy_value: NonNegativeInt | None = None


class FaultEvent(Event):
    """An entry of the fault script took effect or was taken back."""

    kind: ClassVar[str] = "fault"

    action: Literal["applied", "reverted"]
    fault_id: NonNegativeInt
    """Index in the fault script; pairs the two actions of one fault."""
    fault: str
    """Kind of the fault, such as `path_down`."""
    target: str = ""
    """What it befell, such as `path 3`."""
    value: float | None = None
    """Size of the fault in the unit of its kind, where it has one."""
    step: NonNegativeInt | None = None
    """Step that was running."""


class Eval(Event):
    """A measurement of the loss on text held out from training."""

    kind: ClassVar[str] = "eval"

    step: NonNegativeInt
    """How many steps had been committed."""
    loss: float
    """Nats per token."""
    windows: NonNegativeInt | None = None
    """Pieces of text it was measured on; fewer than usual if a rank was lost meanwhile."""


class Checkpoint(Event):
    """Something became of a checkpoint."""

    kind: ClassVar[str] = "checkpoint"

    action: Literal["saved", "failed", "removed", "broken", "loaded"]
    step: NonNegativeInt | None = None
    """How many steps had been committed when it was taken."""
    path: str | None = None
    bytes: NonNegativeInt | None = None
    stall_s: float | None = None
    """How long the step waited for the copy."""
    write_s: float | None = None
    """How long it took to write, in the background."""
    cause: str | None = None
    """Why there is none, or what is wrong with it."""


class RankLost(Event):
    """A rank is no longer part of the run, which goes on without it if enough others are left."""

    kind: ClassVar[str] = "rank_lost"

    group: str
    """Name of its replica group."""
    cause: str
    """How it ended, as the rest of a sentence that begins with it: `was killed by SIGKILL`."""
    step: NonNegativeInt | None = None
    """Step that was running."""


class MembersChanged(Event):
    """A rank has made its first step with other replica groups than before."""

    kind: ClassVar[str] = "members_changed"

    generation: NonNegativeInt
    """Number of the membership, counted from 1."""
    step: NonNegativeInt
    """That first step."""
    groups: list[str]
    """Names of the replica groups that share it."""
    is_urgent: bool = False
    """Whether it broke off a step, because somebody was gone or the step had failed."""
    reason: str = ""
    changes: list[str] = Field(default_factory=list)
    """What changed, one sentence each."""
    stalled_ns: NonNegativeInt = 0
    """How long this rank stood still for it; the time that the step took again is not in it."""


class RunEnd(Event):
    """Last event of a run that ended by its own will, well or badly."""

    kind: ClassVar[str] = "run_end"

    status: Literal["finished", "interrupted", "failed"]
    reason: str | None = None
    """Why the run failed or was interrupted, in one line."""
    steps: NonNegativeInt = 0
    final_loss: float | None = None
    held_out_loss: float | None = None
    replica_hashes: dict[str, str] = Field(default_factory=dict)
    """Hash of all parameters, by name of the replica (or rank) that holds them."""

    @property
    def bit_identical(self) -> bool | None:
        """Whether all replicas hold the same bits; None if fewer than two were hashed."""
        if len(self.replica_hashes) < 2:
            return None
        return len(set(self.replica_hashes.values())) == 1


EVENT_KINDS: dict[str, type[Event]] = {
    model.kind: model
    for model in (
        RunStart,
        Step,
        PathSample,
        PathStateChange,
        FaultEvent,
        Eval,
        Checkpoint,
        RankLost,
        MembersChanged,
        RunEnd,
    )
}
"""Every kind of event by the name it has in the file."""

_ENVELOPE = ("t_ns", "wall", "rank", "kind")


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a log: an event, when it happened and whose it is."""

    t_ns: int
    """Monotonic nanoseconds since the log was opened."""
    wall: str
    """The same moment as ISO 8601 in UTC, for people."""
    rank: int | None
    """Rank the event belongs to; None for the whole run."""
    event: Event

    @property
    def t_s(self) -> float:
        """Seconds since the log was opened."""
        return self.t_ns / 1e9

    def to_json(self) -> str:
        """Returns the line without its line feed."""
        envelope = {"t_ns": self.t_ns, "wall": self.wall, "rank": self.rank, "kind": self.event.kind}
        head, body = json.dumps(envelope, separators=(",", ":")), self.event.model_dump_json()
        return head if body == "{}" else f"{head[:-1]},{body[1:]}"


def record_from_json(line: str | bytes) -> Record | None:
    """Reads one line of a log.

    Fields that this version does not know are dropped, so a log of a newer version can be read.

    Returns:
        The record, or None if its kind is unknown.

    Raises:
        ValueError: the line is no JSON object, lacks a key or holds a value out of range.
    """
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("arrays or objects are nested too deeply") from error
    if not isinstance(fields, dict):
        raise ValueError(f"a line of the log must be a JSON object, not {type(fields).__name__}")
    missing = [key for key in _ENVELOPE if key not in fields]
    if missing:
        raise ValueError(f"key {missing[0]!r} is missing")
    t_ns, rank = fields["t_ns"], fields["rank"]
    if not isinstance(t_ns, int) or isinstance(t_ns, bool) or t_ns < 0:
        raise ValueError(f"t_ns must be an integer of at least 0, not {t_ns!r}")
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool) or rank < 0):
        raise ValueError(f"rank must be null or an integer of at least 0, not {rank!r}")
    model = EVENT_KINDS.get(fields["kind"]) if isinstance(fields["kind"], str) else None
    if model is None:
        return None
    known = {key: value for key, value in fields.items() if key in model.model_fields}
    return Record(t_ns, str(fields["wall"]), rank, model.model_validate(known))


@dataclass(slots=True)
class EventFile:
    """What `read_events` found in a file."""

    path: Path
    records: list[Record] = field(default_factory=list)
    is_truncated: bool = False
    """The last line broke off, as it does when the writer is killed."""
    unknown_kinds: dict[str, int] = field(default_factory=dict)
    """How many lines of each unknown kind were left out."""

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


def read_events(path: str | os.PathLike[str]) -> EventFile:
    """Reads a whole log, also one whose writer was killed in the middle of its last line.

    Raises:
        EventLogError: the file cannot be read, or a line other than the last is broken; the message
            names the file, the line and what is wrong with it.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EventLogError(f"cannot read event log {path}: {error.strerror or error}") from error
    found = EventFile(path)
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = record_from_json(line)
        except ValueError as error:
            if number == len(lines):
                found.is_truncated = True
                break
            raise EventLogError(f"{path}, line {number}: {_in_one_line(error)}") from error
        if record is None:
            kind = str(json.loads(line)["kind"])
            found.unknown_kinds[kind] = found.unknown_kinds.get(kind, 0) + 1
        else:
            found.records.append(record)
    return found


def _in_one_line(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        return f"{name}: {first['msg']} (found {first['input']!r})"
    return str(error)


class EventLog:
    """Writes the event log of a run and tells listeners, such as a display, of every record.

    Thread-safe: records reach the file and the listeners one after another, in order of their call
    (times measured elsewhere and passed in may step back). A full or failing disk does not stop a
    training: the log warns once, remembers the failure in `failure` and goes on serving its listeners.

    Args:
        path: file to create, with its directories; None to serve listeners alone.
        listeners: called with every record, in the thread that emitted it.
        clock_ns: monotonic clock; the default is comparable between the processes of one machine.

    Raises:
        EventLogError: the file exists already or cannot be created.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        listeners: Iterable[Callable[[Record], None]] = (),
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.failure: OSError | None = None
        self._listeners = list(listeners)
        self._clock_ns = clock_ns
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._file = None
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self.path, "x", buffering=1, encoding="utf-8")  # noqa: SIM115 (closed by `close`)
            except FileExistsError as error:
                raise EventLogError(
                    f"event log {self.path} exists already; choose another directory for the run"
                ) from error
            except OSError as error:
                raise EventLogError(
                    f"cannot create event log {self.path}: {error.strerror or error}"
                ) from error
        self.start_ns = clock_ns()
        """Reading of the clock that stands for `t_ns` = 0."""

    def add_listener(self, listener: Callable[[Record], None]) -> None:
        """Calls `listener` with every record from now on."""
        with self._lock:
            self._listeners.append(listener)

    def emit(self, event: Event, *, rank: int | None = None, at_ns: int | None = None) -> Record:
        """Writes one event.

        Args:
            event: what happened.
            rank: whose it is; None for the whole run.
            at_ns: reading of the log's clock (not of `t_ns`) when it happened, if that was elsewhere
                or earlier; now if omitted. Readings from before the run began count as its beginning.

        Raises:
            EventLogError: called in a process forked from the one that opened the log.
        """
        if os.getpid() != self._pid:
            raise EventLogError(
                f"event log {self.path} belongs to process {self._pid}; send events there to be written"
            )
        now_ns = self._clock_ns()
        behind_ns = 0 if at_ns is None else max(0, now_ns - at_ns)
        t_ns = max(0, now_ns - behind_ns - self.start_ns)
        wall = datetime.fromtimestamp(time.time() - behind_ns / 1e9, UTC).isoformat(timespec="microseconds")
        record = Record(t_ns, wall, rank, event)
        with self._lock:
            self._write(record)
            for listener in self._listeners:
                listener(record)
        return record

    def _write(self, record: Record) -> None:
        if self._file is None or self.failure is not None:
            return
        try:
            self._file.write(record.to_json() + "\n")
        except OSError as error:
            self.failure = error
            warnings.warn(
                f"event log {self.path} breaks off: {error.strerror or error}", RuntimeWarning, stacklevel=3
            )

    def close(self) -> None:
        """Closes the file; calling it again does nothing."""
        with self._lock:
            if self._file is not None and not self._file.closed:
                try:
                    self._file.close()
                except OSError as error:
                    self.failure = self.failure or error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
