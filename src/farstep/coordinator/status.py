"""What a coordinator knows, as one record: the answer to `farstep status`, to the dashboard and to `/metrics`."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from farstep.membership.proposer import Proposer
from farstep.membership.records import MembershipConfig
from farstep.membership.roster import Attendance

__all__ = ["MemberState", "MemberStatus", "Status", "progress_fields", "status_of"]

MemberState = Literal["training", "spare", "healing", "ready", "leaving", "gone", "observer"]
"""`training`: has a seat. `spare`: votes and holds the state. `healing`: has come and holds no complete state yet.
`ready`: holds it and waits for the generation that takes it in. `leaving`: on its way out. `gone`: of this
generation, and not there. `observer`: watches."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class MemberStatus(_Record):
    """One member."""

    name: str
    member_id: str
    site: str
    host: str
    pid: int
    num_ranks: int
    state: MemberState
    seat: int | None
    """Its seat in the current generation."""
    step: int | None
    """Steps it has committed, as of its last heartbeat."""
    silent_s: float | None
    """Seconds since it was heard last; None if it is not connected."""
    rtt_ms: float | None
    cause: str
    """Why it is gone or leaving, or that its training thread is stuck."""
    figures: dict[str, float | None]
    """The newest figures it reported; names carry their units. None stands for what is not a finite number."""
    labels: dict[str, str]


class GenerationStatus(_Record):
    """The current generation."""

    number: int
    run_id: str
    seats: list[str]
    spares: list[str]
    is_urgent: bool
    reason: str
    changes: list[str]


class Status(_Record):
    """Everything at one moment."""

    run: str
    run_id: str | None
    coordinator: str
    uptime_s: float
    generation: GenerationStatus | None
    waiting: str | None
    """What the run waits for before it can go on; None if it does not."""
    ended: str | None
    """Why the run has ended; None while it goes on."""
    lost: str | None
    """What became of a run that has no member left; None once there is another."""
    step: int | None
    """Most steps that any member has committed."""
    members: list[MemberStatus]
    config: dict[str, Any]


def status_of(proposer: Proposer, now_ns: int, *, started_ns: int) -> Status:
    """Takes down what a coordinator knows.

    Args:
        proposer: its mind.
        now_ns: monotonic time.
        started_ns: when it started, on the same clock.
    """
    generation = proposer.generation
    members = [_member(proposer, item, now_ns) for item in _shown(proposer)]
    order = {member_id: n for n, member_id in enumerate(_ids(proposer))}
    members.sort(
        key=lambda member: (
            order.get(member.member_id, len(order)),
            member.state == "observer",
            member.name,
        )
    )
    steps = [proposer.final_step, *(member.step for member in members)]
    return Status(
        run=proposer.config.run,
        run_id=proposer.run_id,
        coordinator=proposer.name,
        uptime_s=round((now_ns - started_ns) / 1e9, 3),
        generation=None
        if generation is None
        else GenerationStatus(
            number=generation.number,
            run_id=generation.run_id,
            seats=[info.name for info in generation.seats],
            spares=[info.name for info in generation.spares],
            is_urgent=generation.is_urgent,
            reason=generation.reason,
            changes=list(generation.changes),
        ),
        waiting=proposer.waiting,
        ended=proposer.ended,
        lost=proposer.lost,
        step=max((step for step in steps if step is not None), default=None),
        members=members,
        config=config_fields(proposer.config),
    )


def progress_fields(proposer: Proposer) -> dict[str, Any]:
    """Returns how far the run is, for the event log: step, members, and the slowest times of those that train."""
    generation = proposer.generation
    if generation is None:
        return {}
    found = (proposer.roster.get(info.member_id) for info in generation.seats)
    training = [
        item for item in found if item is not None and item.link is not None and item.step is not None
    ]
    if not training:
        return {}
    fields: dict[str, Any] = {
        "step": max(item.step or 0 for item in training),
        "training": len(training),
        "generation": generation.number,
    }
    for key in ("step_p50_ns", "step_p99_ns", "step_max_ns", "loss"):
        values = [item.figures[key] for item in training if math.isfinite(item.figures.get(key, math.nan))]
        if values:
            fields[key] = max(values) if key != "loss" else values[0]
    return fields


def config_fields(config: MembershipConfig) -> dict[str, Any]:
    """Returns a configuration as plain values."""
    return config.model_dump(mode="json")


def _ids(proposer: Proposer) -> list[str]:
    generation = proposer.generation
    return [info.member_id for info in (*generation.seats, *generation.spares)] if generation else []


def _shown(proposer: Proposer) -> list[Attendance]:
    """Everybody of this generation, and everybody else who is connected."""
    current = set(_ids(proposer))
    return [item for item in proposer.people() if item.member_id in current or item.link is not None]


def _member(proposer: Proposer, item: Attendance, now_ns: int) -> MemberStatus:
    generation = proposer.generation
    is_inside = generation is not None and item.member_id in generation
    is_gone = proposer.roster.is_gone(item, now_ns)
    info = item.info
    return MemberStatus(
        name=info.name,
        member_id=info.member_id,
        site=info.site,
        host=info.host,
        pid=info.pid,
        num_ranks=info.num_ranks,
        state=_state(
            item,
            generation is not None and generation.seat_of(item.member_id) is not None,
            is_inside,
            # Evicted, but nothing is decided without it yet: it trains.
            is_gone
            and not (is_inside and item.evicted is not None and proposer.roster.may_live(item, now_ns)),
        ),
        seat=generation.seat_of(item.member_id) if generation else None,
        step=item.step,
        silent_s=round((now_ns - item.last_heard_ns) / 1e9, 3) if item.link is not None else None,
        rtt_ms=round(item.rtt_ns / 1e6, 3) if item.rtt_ns is not None else None,
        cause=proposer.roster.cause(item) if is_gone else (item.leaving or _trouble(item)),
        figures={key: value if math.isfinite(value) else None for key, value in item.figures.items()},
        labels=dict(info.labels),
    )


def _trouble(item: Attendance) -> str:
    return f"its training thread is stuck, since {item.stuck_ns / 1e9:.1f} s" if item.stuck_ns else ""


def _state(item: Attendance, has_seat: bool, is_inside: bool, is_gone: bool) -> MemberState:
    if is_gone:
        return "gone"
    if item.wants == "observer":
        return "observer"
    if item.leaving is not None or item.evicted is not None:
        return "leaving"
    if is_inside:
        return "training" if has_seat else "spare"
    return "healing" if item.ready_step is None else "ready"
