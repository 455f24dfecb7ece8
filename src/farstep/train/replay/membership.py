"""Membership by a plan instead of a coordinator: every generation begins at the step it is recorded for.

Member i of a replay takes seat i of every generation that has so many. The state is the same on all seats, so it
makes no difference who sat there; a member that was left out for a while gets the state when it comes back. All
processes are on one machine and talk through a folder.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from farstep.membership import Ballot, Generation, MemberInfo, MembershipTimeout, RunEnded
from farstep.membership.beacon import Lamp
from farstep.train.replay.plan import ReplayPlan

__all__ = ["ENVIRONMENT", "ReplayMembership", "is_replay"]

ENVIRONMENT = "FARSTEP_REPLAY"
"""Variable that makes a member part of a replay: the folder of the replay, a colon, and the number of the member."""

POLL_S = 0.002
PLAN, ENDED = "plan.json", "ended"


def is_replay() -> bool:
    """Whether this process is a member of a replay."""
    return ENVIRONMENT in os.environ


class _FolderStore:
    """Small values in files that appear at once."""

    def __init__(self, folder: Path, scope: str) -> None:
        self._folder = folder
        self._scope = scope

    def set(self, key: str, value: bytes) -> None:
        path = self._path(key)
        fresh = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        fresh.write_bytes(value)
        fresh.rename(path)

    def get(self, key: str, timeout_s: float) -> bytes:
        path, deadline_s = self._path(key), time.monotonic() + timeout_s
        while True:
            try:
                return path.read_bytes()
            except FileNotFoundError:
                if time.monotonic() >= deadline_s:
                    raise TimeoutError(f"no value for {key!r}") from None
                time.sleep(POLL_S)

    def _path(self, key: str) -> Path:
        return self._folder / f"{self._scope}-{key.encode().hex()}.value"


class ReplayMembership:
    """One member of a replay.

    Args:
        folder: of the replay; holds the plan.
        index: which member this is, and which seat it takes.
        info: its description.
    """

    def __init__(self, folder: Path, index: int, info: MemberInfo) -> None:
        plan = ReplayPlan.from_json((folder / PLAN).read_text())
        self.member = info.model_copy(update={"member_id": _member_id(index), "name": _name(index)})
        self.plan = plan
        self._folder = folder
        self._index = index
        self._callbacks: list[Callable[[Generation], None]] = []
        self._generations = [_generation(plan, number, info) for number in range(len(plan.spans))]
        self._announced = 0
        self._ended = folder / ENDED

    @classmethod
    def from_environment(cls, info: MemberInfo) -> Self:
        """Makes the membership that the environment names."""
        folder, _, index = os.environ[ENVIRONMENT].rpartition(":")
        return cls(Path(folder), int(index), info)

    def current(self) -> Generation | None:
        """The newest generation that has begun here."""
        return self._generations[self._announced - 1] if self._announced else None

    def wait_generation(self, after: int, timeout_s: float | None = None) -> Generation:
        """Blocks until a generation after `after` that this member has a seat in begins.

        Raises:
            MembershipTimeout: none began.
            RunEnded: the other members have made the last step.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self._begun(after)
            if found is not None:
                return found
            if self._ended.exists():
                raise RunEnded("the replay has ended")
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise MembershipTimeout("waiting for the step at which this member comes in")
            time.sleep(POLL_S)

    def _begun(self, after: int) -> Generation | None:
        for generation in self._generations[after:]:
            if generation.seat_of(self.member.member_id) is None:
                continue
            # Member 0 has a seat in every generation, and is the one that says when it begins.
            if self._index == 0 and generation.number <= max(1, self._announced):
                self._mark(generation.number).touch()
            if self._mark(generation.number).exists():
                self._announced = max(self._announced, generation.number)
                return generation
            return None
        return None

    def _mark(self, number: int) -> Path:
        return self._folder / f"begun-{number}"

    def on_generation(self, callback: Callable[[Generation], None]) -> None:
        """Has a callback called with a generation while the step before it is under way."""
        self._callbacks.append(callback)

    def report_progress(self, step: int, figures: Mapping[str, float] | None = None, **more: float) -> None:
        """Announces the next generation if it begins after the step that follows."""
        self._announce(step)

    def event(self, kind: str, **fields: Any) -> None:
        """Keeps the state's hash; announces the next generation if the one that has just been formed is short."""
        if kind == "regroup":
            self._announce(fields["step"])
        elif kind == "final_state":
            path = self._folder / f"state-{self._index}.json"
            path.write_text(json.dumps(fields))

    def _announce(self, step: int) -> None:
        number = self._announced + 1
        is_next = 1 < number <= len(self._generations) and self.plan.spans[number - 1].step == step + 1
        if not is_next:
            return
        self._announced = number
        for callback in self._callbacks:
            callback(self._generations[number - 1])

    def store(self, scope: str, generation: int | None = None) -> _FolderStore:
        """Values in files of the folder."""
        return _FolderStore(self._folder, scope)

    def leave(self, reason: str, *, finished: bool = False, step: int | None = None) -> None:
        """Ends the replay for those without a seat, once a member has made the last step."""
        if finished:
            self._ended.touch()

    def watch(self, lamp: Lamp) -> None:
        """Nobody to tell."""

    def report_failure(self, generation: int, suspects: Sequence[str], reason: str, **options: bool) -> None:
        """Nobody to tell: in a replay nothing may fail."""

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

    def close(self) -> None:
        """Nothing to close."""


def _name(index: int) -> str:
    return f"replay-{index}"


def _member_id(index: int) -> str:
    return f"{_name(index)}/{index:08x}"


def _generation(plan: ReplayPlan, position: int, info: MemberInfo) -> Generation:
    span = plan.spans[position]
    seats = tuple(
        info.model_copy(update={"member_id": _member_id(seat), "name": _name(seat), "site": site})
        for seat, site in enumerate(span.sites)
    )
    return Generation(
        run_id=plan.run_id,
        number=position + 1,
        ballot=Ballot(0, "replay"),
        seats=seats,
        reason=f"as recorded, from step {span.step}",
    )
