"""Everybody a coordinator has heard of, and whether they are still there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from farstep.membership.messages import Hello
from farstep.membership.plan import Person, Standing
from farstep.membership.records import Generation, MemberInfo, MembershipConfig, Wants

__all__ = ["Absence", "Attendance", "Roster"]

LOST_GRACE_NS_MIN = 10_000_000
LOST_GRACE_NS_MAX = 500_000_000
LOST_GRACE_RTTS = 4
"""A connection that broke without a farewell means a dead process, or a broken path. A living member comes
back at once: its new connection needs three to four round trips. Bounds for unmeasured and absurd ones."""

DOUBT_HEARTBEATS = 3
"""Heartbeats a connected member may miss before its kernel is asked: its process may be dead all the same,
if children that it has forked keep its sockets open."""

STRANGERS_MAX = 4096
"""Most members on the roster; those that left long ago are forgotten first."""


class Absence(StrEnum):
    """Why a member is not connected."""

    UNSEEN = "not seen since this coordinator started"
    MOVED = "it closed its connection to come back and did not"
    LOST = "its connection broke"
    RUNNING = "its connection broke and did not come back although its process runs"
    LEFT = "it closed its membership"


@dataclass(slots=True)
class Attendance:
    """One member as this coordinator knows it."""

    info: MemberInfo
    order: int
    wants: Wants = "seat"
    link: int | None = None
    last_heard_ns: int = 0
    absence: Absence = Absence.UNSEEN
    absent_since_ns: int = 0
    joined_ns: int = 0
    arrived_ns: int = 0
    """When it said hello on its present line."""
    num_arrivals: int = 0
    ready_step: int | None = None
    step: int | None = None
    figures: dict[str, float] = field(default_factory=dict)
    rtt_ns: int | None = None
    stuck_ns: int | None = None
    """For how long its training thread has been stuck, as it said last."""
    event_serial: int = 0
    leaving: str | None = None
    evicted: str | None = None
    was_member: bool = False
    known_number: int = 0
    """Number of the latest generation this member is known to hold."""
    next_witness_ns: int = 0
    witness_delay_ns: int = 0
    is_reported_gone: bool = False

    @property
    def member_id(self) -> str:
        """Identity of the incarnation."""
        return self.info.member_id


class Roster:
    """Who is there, who is certified dead, who was dropped by the operator.

    Args:
        config: limits of silence.
    """

    def __init__(self, config: MembershipConfig) -> None:
        self.config = config
        self.certified: set[str] = set()
        self.dropped: set[str] = set()
        self._members: dict[str, Attendance] = {}
        self._by_link: dict[int, Attendance] = {}
        self._next_order = 0

    def __iter__(self) -> Iterator[Attendance]:
        return iter(list(self._members.values()))

    def get(self, member_id: str) -> Attendance | None:
        """Returns a member by identity."""
        return self._members.get(member_id)

    def on_link(self, link: int) -> Attendance | None:
        """Returns the member that is connected by this link."""
        return self._by_link.get(link)

    def connected(self) -> list[Attendance]:
        """Returns all members with a connection."""
        return list(self._by_link.values())

    def find(self, name: str) -> list[Attendance]:
        """Returns incarnations by name or identity, those that are connected first, newest first."""
        found = [item for item in self._members.values() if name in (item.info.name, item.member_id)]
        return sorted(found, key=lambda item: (item.link is None, -item.order))

    def enter(self, link: int, hello: Hello, now_ns: int) -> Attendance:
        """Notes that a member has said hello on this link."""
        item = self._members.get(hello.info.member_id)
        if item is None:
            item = self._add(hello.info, now_ns)
            item.joined_ns = now_ns
        item.info = hello.info
        item.wants = hello.wants
        item.link = link
        item.stuck_ns = None
        item.last_heard_ns = item.arrived_ns = now_ns
        item.num_arrivals += 1
        item.ready_step = hello.ready_step
        item.was_member = item.was_member or hello.was_member
        item.known_number = hello.generation.number if hello.generation else 0
        item.leaving = hello.leaving if hello.leaving is not None else item.leaving
        item.is_reported_gone = item.is_reported_gone and item.evicted is not None
        if hello.step is not None:
            item.step = hello.step
        self._by_link[link] = item
        return item

    def leave(self, link: int, absence: Absence, now_ns: int) -> Attendance | None:
        """Notes that a link has ended; returns whose it was."""
        item = self._by_link.pop(link, None)
        if item is None or item.link != link:
            return None
        item.link = None
        item.absence = absence
        item.absent_since_ns = now_ns
        item.next_witness_ns = now_ns
        item.witness_delay_ns = 0
        if absence is Absence.LEFT:
            self.certified.add(item.member_id)
        return item

    def unlink(self, link: int) -> None:
        """Forgets a link whose member has a newer one."""
        self._by_link.pop(link, None)

    def expect(self, generation: Generation, now_ns: int) -> None:
        """Puts the members of a generation on the roster, as not seen yet where they are new here."""
        for info in (*generation.seats, *generation.spares):
            item = self._members.get(info.member_id)
            if item is None:
                item = self._add(info, now_ns)
                item.wants = "spare" if generation.seat_of(info.member_id) is None else "seat"
                item.ready_step = 0
            item.was_member = True

    def heard(self, item: Attendance, now_ns: int) -> None:
        """Notes a sign of life."""
        item.last_heard_ns = now_ns
        item.witness_delay_ns = 0
        item.is_reported_gone = item.is_reported_gone and item.evicted is not None

    def forgive(self, pause_ns: int) -> None:
        """Takes a pause of the coordinator itself out of everybody's silence."""
        for item in self._members.values():
            item.last_heard_ns += pause_ns
            item.absent_since_ns += pause_ns

    def silence_s(self, item: Attendance) -> float:
        """Returns how long a connected member may be silent."""
        is_starting = item.step is None and item.ready_step is None
        return max(self.config.start_silence_s if is_starting else 0.0, self.config.silence_s)

    def deadline_ns(self, item: Attendance) -> int:
        """Returns when a member counts as gone unless it is heard before."""
        if item.link is not None:
            return item.last_heard_ns + _ns(self.silence_s(item))
        match item.absence:
            case Absence.UNSEEN:
                grace_ns = _ns(self.config.return_s)
            case Absence.MOVED | Absence.RUNNING:
                grace_ns = _ns(self.config.silence_s)
            case Absence.LOST:
                grace_ns = LOST_GRACE_RTTS * (item.rtt_ns or 0)
                grace_ns = min(max(grace_ns, LOST_GRACE_NS_MIN), LOST_GRACE_NS_MAX)
            case Absence.LEFT:
                grace_ns = 0
        return item.absent_since_ns + grace_ns

    def doubt_ns(self, item: Attendance) -> int:
        """Returns from when on it is worth asking a kernel whether the member's process has exited."""
        if item.link is not None:
            return item.last_heard_ns + _ns(DOUBT_HEARTBEATS * self.config.heartbeat_s)
        return item.absent_since_ns

    def is_gone(self, item: Attendance, now_ns: int) -> bool:
        """Whether a member has to be given up."""
        if item.member_id in self.certified or item.member_id in self.dropped or item.evicted is not None:
            return True
        return now_ns >= self.deadline_ns(item)

    def may_live(self, item: Attendance, now_ns: int) -> bool:
        """Whether a member may still train here, evicted or not: it was heard, or may come back any moment."""
        if item.member_id in self.certified or item.member_id in self.dropped:
            return False
        return now_ns < self.deadline_ns(item)

    def cause(self, item: Attendance) -> str:
        """Says why a member is gone, or is about to be."""
        if item.evicted is not None:
            return f"evicted: {item.evicted}"
        if item.member_id in self.dropped:
            return "dropped by the operator"
        if item.link is None and item.absence is Absence.LEFT:
            return f"it left: {item.leaving}" if item.leaving else str(item.absence)
        if item.member_id in self.certified:
            return "its process has exited"
        if item.link is not None:
            return f"silent for {self.silence_s(item):g} s although connected"
        return str(item.absence)

    def people(self, generation: Generation, now_ns: int) -> dict[str, Person]:
        """Returns everybody the planner may use, by identity."""
        people = {}
        for item in self._members.values():
            is_inside = item.member_id in generation
            if not is_inside and (item.was_member or item.link is None):
                continue  # an earlier member never comes back under the same identity
            if self.is_gone(item, now_ns):
                standing, cause = Standing.GONE, self.cause(item)
            elif item.leaving is not None:
                standing, cause = Standing.LEAVING, item.leaving
            else:
                standing, cause = Standing.HERE, ""
            if not is_inside and standing is not Standing.HERE:
                continue
            people[item.member_id] = Person(
                info=item.info,
                wants=item.wants,
                standing=standing,
                is_ready=item.ready_step is not None and item.link is not None,
                cause=cause,
                order=item.order,
            )
        return people

    def forget(self, generation: Generation | None, now_ns: int) -> None:
        """Drops members that left, once there are too many."""
        if len(self._members) <= STRANGERS_MAX:
            return
        for item in list(self._members.values()):
            if item.link is None and not (generation and item.member_id in generation):
                del self._members[item.member_id]

    def _add(self, info: MemberInfo, now_ns: int) -> Attendance:
        item = Attendance(info=info, order=self._next_order, absent_since_ns=now_ns)
        self._next_order += 1
        self._members[info.member_id] = item
        return item


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
