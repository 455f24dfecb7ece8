"""What training asks of membership.

:class:`~farstep.membership.client.MembershipClient` is the one over the network,
:class:`~farstep.membership.local.LocalHub` makes ones inside a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from farstep.membership.beacon import Lamp
from farstep.membership.records import Generation, MemberInfo, Wants

__all__ = ["Membership", "MembershipStore"]


@runtime_checkable
class MembershipStore(Protocol):
    """Small values that members publish to all; has the shape of :class:`farstep.collectives.transport.Store`."""

    def set(self, key: str, value: bytes) -> None:
        """Publishes a value; it replaces an earlier one of this member."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Blocks until a value is published.

        Raises:
            TimeoutError: that took too long.
            GenerationOver: an urgent generation has replaced the one the store was opened for.
        """


@runtime_checkable
class Membership(Protocol):
    """One member's view of the run."""

    member: MemberInfo

    def current(self) -> Generation | None:
        """Returns the latest committed generation known here, with or without this member."""

    def wait_generation(self, after: int, timeout_s: float | None = None) -> Generation:
        """Blocks until there is a generation with a number above `after` that this member is part of.

        Raises:
            MembershipTimeout: none came; says what is being waited for, and for whom.
            Evicted: the run has gone on without this member.
            RunEnded: there will be none.
        """

    def on_generation(self, callback: Callable[[Generation], None]) -> None:
        """Has a callback called for every committed generation; it must return quickly."""

    def store(self, scope: str, generation: int | None = None) -> MembershipStore:
        """Returns the values published under `scope`; waiting ends when `generation` is over."""

    def watch(self, lamp: Lamp) -> None:
        """Has every heartbeat say whether the training thread is stuck."""

    def report_failure(
        self,
        generation: int,
        suspects: Sequence[str],
        reason: str,
        *,
        evict: bool = False,
        late: bool = False,
    ) -> None:
        """Says that a step failed; `evict`: the suspects hold wrong state; `late`: a part did not come in time."""

    def report_progress(self, step: int, figures: Mapping[str, float] | None = None, **more: float) -> None:
        """Notes the number of committed steps; the newest travels with the heartbeat."""

    def event(self, kind: str, **fields: Any) -> None:
        """Adds to the coordinator's event log, also when there is no coordinator right now."""

    def announce_ready(self, step: int | None) -> None:
        """Says that the state of `step` is complete here; None takes it back."""

    def request(self, to: str, payload: Mapping[str, Any]) -> None:
        """Sends a small message to another member by identity or name; best effort."""

    def on_request(self, callback: Callable[[str, dict[str, Any]], None]) -> None:
        """Has a callback called with sender and payload of every request; it must return quickly."""

    def on_drain(self, callback: Callable[[str], None]) -> None:
        """Has a callback called with the reason when this member is to leave."""

    def certify_death(self, member_id: str) -> None:
        """Says that a process of this host is known to have exited."""

    def leave(self, reason: str, *, finished: bool = False) -> None:
        """Asks for a generation without this member, or says that the run has reached its end."""

    def rejoin(self, wants: Wants | None = None) -> None:
        """Comes back as a new incarnation after an eviction; `member` changes."""

    def close(self) -> None:
        """Ends this membership for good."""
