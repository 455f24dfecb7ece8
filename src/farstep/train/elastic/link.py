"""The line of a process to its coordinator, which outlives the incarnations of the member."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from farstep.membership import MemberInfo

__all__ = ["MembershipLink"]


class MembershipLink:
    """Holds the membership in use, and what this member wants of it.

    Args:
        info: this member's first incarnation.
        connect: makes a membership for an incarnation.

    Attributes:
        membership: in use.
        has_run_ended: the run has ended, for everybody.
        final_step: steps that it has committed in all; None if it has not ended, or nobody said how many.
    """

    def __init__(self, info: MemberInfo, connect: Callable[[MemberInfo], Any]) -> None:
        self._connect = connect
        self._leave_reason: str | None = None
        self._leave_began_s = 0.0
        self._is_closed = False
        self.has_run_ended = False
        self.final_step: int | None = None
        self.membership: Any = connect(info)

    @property
    def info(self) -> MemberInfo:
        """The incarnation in use."""
        info: MemberInfo = self.membership.member
        return info

    @property
    def is_closed(self) -> bool:
        """Whether this member is done."""
        return self._is_closed

    @property
    def is_leaving(self) -> bool:
        """Whether this member wants to leave."""
        return self._leave_reason is not None

    def leaving_for_s(self) -> float:
        """How long ago it said so."""
        return time.monotonic() - self._leave_began_s if self.is_leaving else 0.0

    def leave(self, reason: str) -> None:
        """Asks to be left out of the next generation; returns at once. Later calls change nothing."""
        if self._leave_reason is None and not self._is_closed:
            self._leave_reason = reason
            self._leave_began_s = time.monotonic()
            self.membership.leave(reason)

    def renew(self) -> None:
        """Comes back as a new incarnation of the same replica group."""
        self.membership.close()
        self.membership = self._connect(self.info.reborn())

    def end(self, step: int | None) -> None:
        """Notes that the run has ended for everybody, after so many steps as far as anybody said."""
        self.has_run_ended = True
        self.final_step = step

    def finish(self, step: int) -> None:
        """Says that the run is at its end, after so many steps."""
        if not self._is_closed:
            self.final_step = step
            self.membership.leave("the run is finished", finished=True, step=step)

    def close(self) -> None:
        """Ends the line."""
        if not self._is_closed:
            self._is_closed = True
            self.membership.close()
