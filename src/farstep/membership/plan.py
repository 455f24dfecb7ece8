"""Which generation should come next, given who is there. Pure: the same roster gives the same plan.

Urgent changes (a seat is empty because somebody is gone, or a step failed) come first and alone; joins,
leaves and drains wait for a moment without them. A seat keeps its number when a spare takes it over, so that
batches, reduction order and ranks stay what they were; without a spare the seats close up in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from farstep.membership.records import (
    CHANGES_MAX,
    TEXT_CHARACTERS_MAX,
    Generation,
    MemberInfo,
    MembershipConfig,
    Wants,
    natural_key,
)

__all__ = ["Blocked", "Person", "Plan", "Standing", "first_generation_members", "plan_next"]


class Standing(StrEnum):
    """How a member stands to the run."""

    HERE = "here"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Person:
    """A member as the planner sees it."""

    info: MemberInfo
    wants: Wants = "seat"
    standing: Standing = Standing.HERE
    is_ready: bool = False
    cause: str = ""
    """Why it is leaving or gone."""
    order: int = 0
    """Who came earlier has the lower one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next generation, without number and ballot."""

    seats: tuple[MemberInfo, ...]
    spares: tuple[MemberInfo, ...]
    is_urgent: bool
    reason: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    """A change is needed and cannot be made; the text says what for."""

    text: str


@dataclass(slots=True)
class _Draft:
    seats: list[MemberInfo | None]
    spares: list[MemberInfo]
    changes: list[str] = field(default_factory=list)
    is_urgent: bool = False


def plan_next(
    base: Generation,
    people: Mapping[str, Person],
    config: MembershipConfig,
    *,
    retry: str | None = None,
) -> Plan | Blocked | None:
    """Plans the generation after `base`.

    Args:
        base: latest generation.
        people: everybody known, by identity; members of `base` that are missing here count as gone.
        config: group counts and rules.
        retry: why the same members need a new generation although all are there.

    Returns:
        None if everything can stay as it is.
    """
    urgent = _replace(base, people, Standing.GONE)
    if urgent.is_urgent:
        return _close(base, urgent, config)
    if retry is not None:
        return _plan(base.seats, tuple(urgent.spares), True, [retry, *urgent.changes])
    return _plan_quietly(base, people, config)


def first_generation_members(
    people: Sequence[Person], config: MembershipConfig
) -> tuple[tuple[MemberInfo, ...], tuple[MemberInfo, ...]]:
    """Returns seats and spares of generation 1, in the natural order of their names."""
    by_name = sorted(people, key=lambda person: natural_key(person.info.name))
    wanting = [person.info for person in by_name if person.wants == "seat"]
    spares = [person.info for person in by_name if person.wants == "spare"]
    num_extra = max(0, len(wanting) - config.expected_groups)
    num_spares = max(min(num_extra, config.spares - len(spares)), len(wanting) - config.max_groups, 0)
    num_seats = len(wanting) - num_spares
    return tuple(wanting[:num_seats]), (*wanting[num_seats:], *spares)


def _plan_quietly(
    base: Generation, people: Mapping[str, Person], config: MembershipConfig
) -> Plan | Blocked | None:
    draft = _replace(base, people, Standing.LEAVING)
    blocked = None
    if None in draft.seats and (
        config.fixed_seats or sum(seat is not None for seat in draft.seats) < config.min_groups
    ):
        leavers = ", ".join(
            member.name for member, seat in zip(base.seats, draft.seats, strict=True) if seat is None
        )
        blocked = Blocked(
            f"{leavers} cannot leave before somebody has taken over: "
            + ("the number of seats is fixed" if config.fixed_seats else f"min_groups is {config.min_groups}")
        )
        draft = _Draft(list(base.seats), list(base.spares))
    closed = _Draft([seat for seat in draft.seats if seat is not None], draft.spares, draft.changes)
    _admit(closed, people, config)
    seats = tuple(seat for seat in closed.seats if seat is not None)
    spares = tuple(closed.spares)
    if seats == base.seats and spares == base.spares:
        return blocked
    return _plan(seats, spares, False, closed.changes)


def _replace(base: Generation, people: Mapping[str, Person], leaving: Standing) -> _Draft:
    """Empties the seats of those that stand as `leaving` says, and fills them as far as somebody is ready."""
    draft = _Draft([], [])
    vacant: list[tuple[int, MemberInfo]] = []
    for seat, member in enumerate(base.seats):
        person = people.get(member.member_id)
        standing = person.standing if person else Standing.GONE
        if standing is not leaving:
            draft.seats.append(member)
            continue
        draft.seats.append(None)
        vacant.append((seat, member))
        cause = person.cause if person else "unknown"
        if leaving is Standing.GONE:
            draft.is_urgent = True
            draft.changes.append(f"{member.name} (seat {seat}) is gone: {cause}")
        else:
            draft.changes.append(f"{member.name} (seat {seat}) leaves: {cause}")
    for member in base.spares:
        person = people.get(member.member_id)
        standing = person.standing if person else Standing.GONE
        if standing is Standing.GONE or standing is leaving:
            verb = "is gone" if standing is Standing.GONE else "leaves"
            draft.changes.append(f"{member.name} (spare) {verb}: {person.cause if person else 'unknown'}")
        else:
            draft.spares.append(member)
    for seat, member in vacant:
        _fill(draft, seat, member, base, people)
    return draft


def _fill(draft: _Draft, seat: int, gone: MemberInfo, base: Generation, people: Mapping[str, Person]) -> None:
    """Gives an empty seat to a spare that is ready, best of the same site, or to somebody who has healed."""
    names = {member.name for member in (*draft.seats, *draft.spares) if member is not None}
    candidates = [
        (person.info.member_id not in base, person.info.site != gone.site, person.order, person.info)
        for person in people.values()
        if person.is_ready
        and person.standing is Standing.HERE
        and person.wants != "observer"
        and base.seat_of(person.info.member_id) is None
        and (person.info in draft.spares or person.info.name not in names)
        and person.info not in draft.seats
    ]
    if not candidates:
        return
    was_stranger, _, _, info = min(candidates, key=lambda candidate: candidate[:3])
    draft.seats[seat] = info
    if not was_stranger:
        draft.spares.remove(info)
    draft.changes.append(f"{info.name} takes over seat {seat} of {gone.name}")


def _close(base: Generation, draft: _Draft, config: MembershipConfig) -> Plan | Blocked:
    seats = tuple(seat for seat in draft.seats if seat is not None)
    empty = ", ".join(
        f"{number} ({member.name})"
        for number, (member, seat) in enumerate(zip(base.seats, draft.seats, strict=True))
        if seat is None
    )
    if empty and config.fixed_seats:
        return Blocked(f"the number of seats is fixed and nobody is ready to take over seat {empty}")
    if len(seats) < config.min_groups:
        return Blocked(
            f"{len(seats)} of the {config.min_groups} replica groups that min_groups asks for are left "
            f"and nobody is ready to take over seat {empty}"
        )
    return _plan(seats, tuple(draft.spares), True, draft.changes)


def _admit(draft: _Draft, people: Mapping[str, Person], config: MembershipConfig) -> None:
    """Takes in those that are ready, and makes spares of seats beyond `max_groups`."""
    while len(draft.seats) > config.max_groups:
        surplus = draft.seats.pop()
        assert surplus is not None
        draft.spares.append(surplus)
        draft.changes.append(f"{surplus.name} becomes a spare: max_groups is {config.max_groups}")
    present = [*(seat for seat in draft.seats if seat is not None), *draft.spares]
    names = {member.name for member in present}
    for person in sorted(people.values(), key=lambda person: person.order):
        info = person.info
        if (
            not person.is_ready
            or person.standing is not Standing.HERE
            or person.wants == "observer"
            or info.name in names
        ):
            continue
        names.add(info.name)
        num_seats = len(draft.seats)
        is_wanted = num_seats < config.expected_groups or len(draft.spares) >= config.spares
        if person.wants == "seat" and num_seats < config.max_groups and is_wanted:
            draft.seats.append(info)
            draft.changes.append(f"{info.name} joins as seat {num_seats}")
        else:
            draft.spares.append(info)
            draft.changes.append(f"{info.name} joins as a spare")


def _plan(
    seats: tuple[MemberInfo, ...], spares: tuple[MemberInfo, ...], is_urgent: bool, changes: Sequence[str]
) -> Plan:
    listed = tuple(change[:TEXT_CHARACTERS_MAX] for change in changes)
    if len(listed) > CHANGES_MAX:
        listed = (*listed[: CHANGES_MAX - 1], f"and {len(listed) - CHANGES_MAX + 1} more")
    reason = "; ".join(changes)
    return Plan(seats, spares, is_urgent, reason[:TEXT_CHARACTERS_MAX], listed)
