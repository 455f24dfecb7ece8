"""The records of membership: who is there, in which order, and which number that order has.

A **replica group** is the unit of failure. A **member** is one incarnation of a replica group: it has a
`member_id` that nobody ever had before, and a `name` that its successors share. A **generation** is a
numbered membership: its **seats** train, in this order; its **spares** hold the state and take over a seat.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

from farstep.membership.process import process_identity

__all__ = [
    "Ballot",
    "Generation",
    "MemberInfo",
    "MembershipConfig",
    "Wants",
    "name_of",
    "new_member_id",
]

MEMBERS_MAX = 1024
"""Most members of a generation, seats and spares; bounds every table and message that lists members."""

TEXT_CHARACTERS_MAX = 2000
"""Longest free text of a message (reasons, changes)."""

CHANGES_MAX = 64
"""Most sentences with which a generation says what changed; further ones are counted, not listed."""

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""What names of runs, replica groups and certificates look like."""

Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
"""Name of a replica group or of a run: letters, digits, `.`, `_` and `-`; at most 64."""

MemberId = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}/[0-9a-f]{{8}}$")]
"""Name of the replica group, a slash and eight hexadecimal digits that are new for every incarnation."""

RunId = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}/[0-9a-f]{{8,16}}$")]
"""Name of the run, a slash and a number drawn by the coordinator that formed generation 1."""

Text = Annotated[str, Field(max_length=TEXT_CHARACTERS_MAX)]

Wants = Literal["seat", "spare", "observer"]
"""What a member came for. An observer never votes nor trains: it watches, and certifies deaths on its host."""


def new_member_id(name: str) -> str:
    """Draws the identity of a new incarnation of the replica group `name`."""
    return f"{name}/{secrets.token_hex(4)}"


def name_of(member_id: str) -> str:
    """Returns the name of the replica group whose incarnation this is."""
    return member_id.rpartition("/")[0]


class Record(BaseModel):
    """Base of all records: frozen, and without room for what is not declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Ballot(NamedTuple):
    """Rank of a proposal; compared by counter, then by proposer."""

    counter: Annotated[int, Field(ge=0, le=2**53)]
    proposer: Annotated[str, Field(max_length=64)]


class MemberInfo(Record):
    """One incarnation of a replica group."""

    member_id: MemberId
    name: Name
    site: Annotated[str, Field(max_length=64)] = ""
    host: Annotated[str, Field(max_length=255)] = ""
    pid: Annotated[int, Field(ge=0, le=2**31)] = 0
    num_ranks: Annotated[int, Field(ge=1, le=2**20)] = 1
    """Ranks inside the replica group."""
    process: Annotated[str, Field(max_length=128)] = ""
    """Identity of the process on its host, by which others there can ask the kernel whether it has exited
    (:func:`farstep.membership.process.process_identity`); empty if unknown."""
    labels: Annotated[
        dict[
            Annotated[str, Field(max_length=64)],
            Annotated[str, Field(max_length=256)],
        ],
        Field(max_length=32),
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _name_matches(self) -> Self:
        if name_of(self.member_id) != self.name:
            raise ValueError(f"member_id {self.member_id!r} is not an incarnation of {self.name!r}")
        return self

    @classmethod
    def create(
        cls,
        name: str,
        *,
        site: str = "",
        num_ranks: int = 1,
        labels: Mapping[str, str] | None = None,
        member_id: str | None = None,
    ) -> MemberInfo:
        """Describes the calling process as a new incarnation of the replica group `name`.

        Args:
            name: name of the replica group, the same for all of its incarnations.
            site: failure domain, also for the choice of a spare.
            num_ranks: ranks inside the replica group.
            labels: anything else worth showing.
            member_id: identity drawn by whoever started this process (:func:`new_member_id`), so that it
                can certify its death; drawn here if None.
        """
        return cls(
            member_id=member_id or new_member_id(name),
            name=name,
            site=site,
            host=socket.gethostname(),
            pid=os.getpid(),
            num_ranks=num_ranks,
            process=process_identity(),
            labels=dict(labels or {}),
        )

    def reborn(self) -> MemberInfo:
        """Returns the next incarnation of the same replica group in the same process."""
        return self.model_copy(update={"member_id": new_member_id(self.name)})


class Generation(Record):
    """A numbered membership. Whoever holds one knows that it was decided; proposals have the same type."""

    run_id: RunId
    number: Annotated[int, Field(ge=1, le=2**53)]
    ballot: Ballot
    """Under which it was first proposed; tells apart proposals with one number."""
    previous: Annotated[str, Field(max_length=32)] = ""
    """Digest of the generation before; empty for generation 1."""
    seats: Annotated[tuple[MemberInfo, ...], Field(min_length=1, max_length=MEMBERS_MAX)]
    spares: Annotated[tuple[MemberInfo, ...], Field(max_length=MEMBERS_MAX)] = ()
    is_urgent: bool = False
    """Somebody is gone, or a step failed: the running step is to be aborted at once. Otherwise the members
    switch at a step boundary they agree on."""
    reason: Text = ""
    changes: Annotated[tuple[Text, ...], Field(max_length=CHANGES_MAX)] = ()
    """What changed, one sentence each."""

    @model_validator(mode="after")
    def _members_differ(self) -> Self:
        ids = [member.member_id for member in (*self.seats, *self.spares)]
        names = {member.name for member in (*self.seats, *self.spares)}
        if len(set(ids)) != len(ids) or len(names) != len(ids):
            raise ValueError(f"generation {self.number} names a member twice: {', '.join(ids)}")
        return self

    @cached_property
    def digest(self) -> str:
        """128-bit hash of the whole record, hexadecimal."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]

    @cached_property
    def voter_ids(self) -> frozenset[str]:
        """Identities of seats and spares: those who decide the next generation."""
        return frozenset(member.member_id for member in (*self.seats, *self.spares))

    @cached_property
    def _seat_by_id(self) -> dict[str, int]:
        return {member.member_id: seat for seat, member in enumerate(self.seats)}

    def __contains__(self, member_id: str) -> bool:
        return member_id in self.voter_ids

    def seat_of(self, member_id: str) -> int | None:
        """Returns the seat of a member, None for spares and strangers."""
        return self._seat_by_id.get(member_id)

    def member(self, member_id: str) -> MemberInfo | None:
        """Returns the seat or spare with this identity."""
        for member in (*self.seats, *self.spares):
            if member.member_id == member_id:
                return member
        return None

    def describe(self) -> str:
        """Renders one line for people."""
        seats = ", ".join(member.name for member in self.seats)
        spares = f"; spares {', '.join(member.name for member in self.spares)}" if self.spares else ""
        return f"generation {self.number}: {seats}{spares}"


class MembershipConfig(Record):
    """How a coordinator forms and changes generations. `PATCH /v1/config` changes the group counts at run time."""

    run: Name = "run"
    """Name of the run; members of other runs are refused."""
    groups: Annotated[int, Field(ge=1, le=MEMBERS_MAX)] | None = None
    """Expected number of replica groups; generation 1 is formed as soon as they are there. Default: `min_groups`."""
    min_groups: Annotated[int, Field(ge=1, le=MEMBERS_MAX)] = 1
    """With fewer seats nobody trains: all wait until somebody joins."""
    max_groups: Annotated[int, Field(ge=1, le=MEMBERS_MAX)] = MEMBERS_MAX
    """Most seats; further members become spares."""
    spares: Annotated[int, Field(ge=0, le=MEMBERS_MAX)] = 0
    """Wanted number of spares: who joins when the expected groups have seats becomes one, until there are
    so many. Members that came as spares are always taken as such."""
    fixed_seats: bool = False
    """Wait for a replacement rather than go on with fewer seats."""
    join_window_s: PositiveFloat = 10.0
    """Generation 1 waits so long, counted from its first member, for the expected groups."""
    silence_s: PositiveFloat = 1.2
    """A member that is connected but not heard for so long is given up."""
    start_silence_s: PositiveFloat = 10.0
    """The same for a member that has not reported a step yet and does not hold the state of one: imports and
    compilers keep the interpreter to themselves for seconds. A process that dies is noticed at once all the same."""
    heartbeat_s: PositiveFloat = 0.1
    """Interval of a member's heartbeats, and of its attempts to connect."""
    return_s: PositiveFloat = 0.7
    """A coordinator that has just started gives voters it has not seen so long to find it."""
    settle_s: Annotated[float, Field(ge=0)] = 0.5
    """A coordinator forms no new run before it has been up for so long: members of a run that is under way
    come back meanwhile."""

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if self.max_groups < self.min_groups:
            raise ValueError(f"max_groups = {self.max_groups} is below min_groups = {self.min_groups}")
        if self.groups is not None and self.groups < self.min_groups:
            raise ValueError(f"groups = {self.groups} is below min_groups = {self.min_groups}")
        if self.silence_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"silence_s = {self.silence_s:g} must be at least three heartbeats ({3 * self.heartbeat_s:g} s)"
            )
        return self

    @property
    def expected_groups(self) -> int:
        """Number of replica groups for which generation 1 waits."""
        return min(self.groups or self.min_groups, self.max_groups)

    @property
    def groups_to_form(self) -> int:
        """Least number of members that form generation 1.

        More than half of the expected groups, so that two coordinators started at the same time cannot
        make two runs out of one job.
        """
        return max(self.min_groups, self.expected_groups // 2 + 1)


def natural_key(name: str) -> tuple[tuple[int, str | int], ...]:
    """Sorts `a-2` before `a-10`."""
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name) if part)
