"""What members and coordinators say to each other: JSON objects, one per websocket message.

Everything that arrives is validated against these models before anybody looks at it: sizes are bounded, and
fields that are not declared are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from farstep.membership.records import (
    Ballot,
    Generation,
    MemberId,
    MemberInfo,
    Name,
    Record,
    RunId,
    Text,
    Wants,
)

__all__ = [
    "CLOSE_GONE",
    "CLOSE_MOVED",
    "CLOSE_REFUSED",
    "CLOSE_SLOW",
    "MESSAGE_BYTES_MAX",
    "PROTOCOL_VERSION",
    "FromCoordinator",
    "FromMember",
    "MessageError",
    "decode_from_coordinator",
    "decode_from_member",
    "encode",
]

PROTOCOL_VERSION = 2

MESSAGE_BYTES_MAX = 1 << 20
"""Longest message; the longest sent, a generation of a few hundred members, stays below a third of it."""

CERTIFICATES_MAX = 256
"""Most deaths of its host that a member says again after it has connected."""

FIGURES_MAX = 64
"""Most figures of a heartbeat, and most fields of an event or a request."""

NAME_CHARACTERS_MAX = 64
"""Longest name of a figure, a field or an event."""

VALUE_CHARACTERS_MAX = 1 << 17
"""Longest value of a store entry, in base64."""

CLOSE_MOVED = 4000
"""The member closes this connection and comes back by another one: it is alive."""
CLOSE_GONE = 4001
"""The member will never come back under this identity; its promises are gone with it."""
CLOSE_REFUSED = 4002
"""The coordinator has no use for this member; the reason says why."""
CLOSE_SLOW = 4003
"""The member did not read what it was sent; it may connect again."""

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Number = Annotated[int, Field(ge=0, le=2**53)]
"""Number of a generation."""

ShortName = Annotated[str, Field(max_length=NAME_CHARACTERS_MAX)]
Figures = Annotated[dict[ShortName, float], Field(max_length=FIGURES_MAX)]
Fields = Annotated[dict[ShortName, Any], Field(max_length=FIGURES_MAX)]
StoreName = Annotated[str, Field(max_length=512)]


class MessageError(ValueError):
    """What came over the wire is no message."""


class StoreEntry(Record):
    """One value that a member has published."""

    scope: StoreName
    key: StoreName
    value: Annotated[str, Field(max_length=VALUE_CHARACTERS_MAX)]
    """Bytes in base64."""


class Accepted(Record):
    """What an acceptor has accepted last for the generation after its own, and under which ballot."""

    ballot: Ballot
    value: Generation


# ---- from members ----


class Hello(Record):
    """First message of every connection: all a coordinator needs that has never heard of the run."""

    kind: Literal["hello"] = "hello"
    version: int = PROTOCOL_VERSION
    run: Name
    info: MemberInfo
    wants: Wants = "seat"
    run_id: RunId | None = None
    generation: Generation | None = None
    promised: Ballot | None = None
    """Promised for the generation after `generation`; only saves a proposer a refusal."""
    was_member: bool = False
    """Whether this incarnation has ever been part of a generation."""
    ready_step: Count | None = None
    """Step of the state it holds, if that is complete."""
    leaving: Text | None = None
    step: Count | None = None
    certified: Annotated[tuple[MemberId, ...], Field(max_length=CERTIFICATES_MAX)] = ()
    """Members of this host known to have exited."""


class Heartbeat(Record):
    """Sent at a fixed interval; carries the newest figures."""

    kind: Literal["heartbeat"] = "heartbeat"
    sequence: Count = 0
    rtt_ns: Count | None = None
    """Round-trip time that the member measured last."""
    step: Count | None = None
    figures: Figures = Field(default_factory=dict)
    stuck_ns: Count | None = None
    """For how long the training thread has been at work of its own beyond what that may take; None: it moves, or
    waits for others."""


class Promise(Record):
    """The acceptor will accept nothing below `ballot`; `accepted` is what it had accepted already."""

    kind: Literal["promise"] = "promise"
    number: Number
    ballot: Ballot
    accepted: Accepted | None = None


class Accept(Record):
    """Coordinator to acceptor: accept this generation."""

    kind: Literal["accept"] = "accept"
    ballot: Ballot
    value: Generation


class AcceptedReply(Record):
    """The acceptor has accepted the generation proposed under `ballot`."""

    kind: Literal["accepted"] = "accepted"
    number: Number
    ballot: Ballot


class Rejected(Record):
    """The acceptor has promised a higher ballot to another proposer."""

    kind: Literal["rejected"] = "rejected"
    number: Number
    ballot: Ballot
    promised: Ballot


class Outdated(Record):
    """The acceptor knows a later generation than the one that was to be decided."""

    kind: Literal["outdated"] = "outdated"
    generation: Generation


class FailureReport(Record):
    """A step failed although nobody was seen to die."""

    kind: Literal["failure_report"] = "failure_report"
    generation: Number
    suspects: Annotated[tuple[MemberId, ...], Field(max_length=64)] = ()
    reason: Text = ""
    evict: bool = False
    """The suspects hold wrong state: evict them if most others say so too."""
    late: bool = False
    """The step did not fail: somebody's part of it did not come in time."""


class Ready(Record):
    """The member holds the complete state of this step; None: not any more."""

    kind: Literal["ready"] = "ready"
    step: Count | None = None


class Leave(Record):
    """The member wants out at the next step boundary; `finished`: the whole run is at its end."""

    kind: Literal["leave"] = "leave"
    reason: Text = ""
    finished: bool = False
    step: Count | None = None
    """Number of steps the finished run has committed."""


class DeathCertificate(Record):
    """The kernel of the sender's host says that this member's process has exited."""

    kind: Literal["death_certificate"] = "death_certificate"
    member_id: MemberId


class StoreSet(Record):
    """Publishes a value to all members."""

    kind: Literal["store_set"] = "store_set"
    entry: StoreEntry


class Request(Record):
    """A small message to another member, by identity or by name; best effort."""

    kind: Literal["request"] = "request"
    to: Annotated[str, Field(max_length=80)]
    payload: Fields


class EventRecord(Record):
    """Something for the coordinator's event log."""

    kind: Literal["event"] = "event"
    event: Annotated[str, Field(max_length=64)]
    fields: Fields = Field(default_factory=dict)
    serial: Count = 0
    """Number of the event at this member; told again until a coordinator has noted it."""
    age_ns: Count = 0
    """How long ago it happened when it was sent."""


# ---- from the coordinator ----


class Welcome(Record):
    """Answer to a hello."""

    kind: Literal["welcome"] = "welcome"
    run_id: RunId
    coordinator: Annotated[str, Field(max_length=64)]
    generation: Generation | None = None
    silence_s: float = 1.2
    heartbeat_s: float = 0.1


class HeartbeatReply(Record):
    """Tells a member that its coordinator lives, and whether it can decide anything."""

    kind: Literal["heartbeat_reply"] = "heartbeat_reply"
    sequence: Count = 0
    event_serial: Count = 0
    """Of the latest event that has come from the member."""
    is_lonely: bool = False
    """Too few voters are connected here to decide anything, or there is no run; try another coordinator."""


class Waiting(Record):
    """What the coordinator waits for before it can make the next generation; None: nothing."""

    kind: Literal["waiting"] = "waiting"
    text: Text | None = None


class Prepare(Record):
    """Coordinator to acceptor: promise to accept nothing below `ballot` for this generation."""

    kind: Literal["prepare"] = "prepare"
    number: Number
    ballot: Ballot


class Commit(Record):
    """This generation has been decided."""

    kind: Literal["commit"] = "commit"
    value: Generation


class StoreValue(Record):
    """A value some member has published."""

    kind: Literal["store_value"] = "store_value"
    entry: StoreEntry


class Requested(Record):
    """A request of another member."""

    kind: Literal["requested"] = "requested"
    sender: MemberId
    payload: Fields


class Drain(Record):
    """The operator, or the platform, wants this member to leave."""

    kind: Literal["drain"] = "drain"
    reason: Text = ""


class Witness(Record):
    """Asks a member on the same host whether this one's process has exited."""

    kind: Literal["witness"] = "witness"
    info: MemberInfo


class Ended(Record):
    """The run has ended."""

    kind: Literal["ended"] = "ended"
    reason: Text = ""
    step: Count | None = None
    """Number of steps it has committed."""


class Refused(Record):
    """The coordinator takes no part with this member; the connection is closed next."""

    kind: Literal["refused"] = "refused"
    reason: Text = ""
    is_final: bool = False
    """No later attempt will be answered otherwise."""
    is_void: bool = False
    """The member's run never began: its generation 1 lost members to another run before the first step."""


FromMember = Annotated[
    Hello
    | Heartbeat
    | Promise
    | AcceptedReply
    | Rejected
    | Outdated
    | FailureReport
    | Ready
    | Leave
    | DeathCertificate
    | StoreSet
    | Request
    | EventRecord,
    Field(discriminator="kind"),
]

FromCoordinator = Annotated[
    Welcome
    | HeartbeatReply
    | Waiting
    | Prepare
    | Accept
    | Commit
    | StoreValue
    | Requested
    | Drain
    | Witness
    | Ended
    | Refused,
    Field(discriminator="kind"),
]

_FROM_MEMBER: TypeAdapter[FromMember] = TypeAdapter(FromMember)
_FROM_COORDINATOR: TypeAdapter[FromCoordinator] = TypeAdapter(FromCoordinator)


def encode(message: Record) -> str:
    """Renders a message as JSON."""
    return message.model_dump_json()


def decode_from_member(text: str | bytes) -> FromMember:
    """Reads a member's message.

    Raises:
        MessageError: it is none; says in one line why.
    """
    message: FromMember = _decode(_FROM_MEMBER, text)
    return message


def decode_from_coordinator(text: str | bytes) -> FromCoordinator:
    """Reads a coordinator's message.

    Raises:
        MessageError: it is none; says in one line why.
    """
    message: FromCoordinator = _decode(_FROM_COORDINATOR, text)
    return message


def _decode(adapter: TypeAdapter[Any], text: str | bytes) -> Any:
    if len(text) > MESSAGE_BYTES_MAX:
        raise MessageError(f"a message has at most {MESSAGE_BYTES_MAX} bytes, this one {len(text)}")
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MessageError(f"{where or 'message'}: {first['msg']}"[:300]) from None
    except (ValueError, RecursionError) as error:
        raise MessageError(str(error)[:300]) from None
