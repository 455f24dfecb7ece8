"""What the coordinator's mind asks its body to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from farstep.membership.records import MemberInfo, Record

__all__ = ["AskKernel", "CommandError", "Effect", "Hangup", "Note", "Send"]


class CommandError(ValueError):
    """An operator's command cannot be carried out; the message says why and what would be valid."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on a link."""

    link: int
    message: Record


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close a link after what was sent."""

    link: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something happened that belongs into the event log."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    member: str | None = None
    """Name of the replica group it belongs to."""
    age_ns: int = 0
    """How long ago it happened; members may report late."""


@dataclass(frozen=True, slots=True)
class AskKernel:
    """If this process ran on this host, find out whether it has exited, and answer with `on_process_state`."""

    info: MemberInfo


Effect = Send | Hangup | Note | AskKernel
