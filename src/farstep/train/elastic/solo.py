"""Membership of a replica group that is alone: no coordinator, one seat, nothing to wait for."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farstep.membership import Ballot, Evicted, Generation, MemberInfo, MembershipTimeout
from farstep.membership.beacon import Lamp

__all__ = ["SoloMembership"]


class _NoStore:
    """A store nobody else writes to."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: str, timeout_s: float) -> bytes:
        if key not in self._values:
            raise TimeoutError(f"no value for {key!r}: this replica group is alone")
        return self._values[key]


class SoloMembership:
    """One generation with one seat, until this member leaves.

    Args:
        info: the only member.
        run: name of the run.
    """

    def __init__(self, info: MemberInfo, *, run: str) -> None:
        self.member = info
        self._generation = Generation(
            run_id=f"{run}/{secrets.token_hex(4)}",
            number=1,
            ballot=Ballot(0, "alone"),
            seats=(info,),
            reason="this replica group is alone",
        )
        self._has_left = threading.Event()

    def current(self) -> Generation | None:
        """The only generation."""
        return self._generation

    def wait_generation(self, after: int, timeout_s: float | None = None) -> Generation:
        """Returns the only generation, if it is later than `after`.

        Raises:
            Evicted: this member has left.
            MembershipTimeout: there will be no other.
        """
        if after < 1:
            return self._generation
        if self._has_left.wait(timeout_s):
            raise Evicted("this member has left", was_asked=True)
        raise MembershipTimeout("this replica group is alone; there will be no other generation")

    def on_generation(self, callback: Callable[[Generation], None]) -> None:
        """There is none to be told of."""

    def store(self, scope: str, generation: int | None = None) -> _NoStore:
        """A store of its own."""
        return _NoStore()

    def watch(self, lamp: Lamp) -> None:
        """Nobody to tell."""

    def report_failure(self, generation: int, suspects: Sequence[str], reason: str, **options: bool) -> None:
        """Nobody to tell."""

    def report_progress(self, step: int, figures: Mapping[str, float] | None = None, **more: float) -> None:
        """Nobody to tell."""

    def event(self, kind: str, **fields: Any) -> None:
        """Nobody to tell."""

    def announce_ready(self, step: int | None) -> None:
        """Nobody to tell."""

    def request(self, to: str, payload: Mapping[str, Any]) -> None:
        """Nobody to ask."""

    def on_request(self, callback: Callable[[str, dict[str, Any]], None]) -> None:
        """Nobody asks."""

    def on_drain(self, callback: Callable[[str], None]) -> None:
        """Nobody drains."""

    def certify_death(self, member_id: str) -> None:
        """Nobody to tell."""

    def leave(self, reason: str, **options: Any) -> None:
        """Ends the run of one."""
        self._has_left.set()

    def close(self) -> None:
        """Ends the run of one."""
        self._has_left.set()
