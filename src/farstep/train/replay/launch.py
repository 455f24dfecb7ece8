"""Starting the members of a replay and comparing where they end."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farstep.train.errors import RunFailed
from farstep.train.replay.membership import ENVIRONMENT, PLAN
from farstep.train.replay.plan import ReplayPlan

__all__ = ["Replayed", "replay"]

POLL_S = 0.05
LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay ended.

    Attributes:
        step: committed steps.
        sha256: of the state: model, optimizer, scheduler and position in the data.
    """

    step: int
    sha256: str


def replay(
    plan: ReplayPlan,
    command: Sequence[str],
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Replayed:
    """Runs a recorded run again, on this machine.

    Args:
        plan: who has a seat from which step on.
        command: the program that the members of the recorded run ran.
        folder: for the members' logs and what they tell each other; a temporary one if None.
        env: further variables of the members.
        timeout_s: when to give up.

    Raises:
        RunFailed: a member failed, or the members do not end with the same state.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="farstep-replay-") as name:
            return replay(plan, command, folder=Path(name), env=env, timeout_s=timeout_s)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("begun-*"), *folder.glob("*.value"), *folder.glob("state-*"), folder / "ended"):
        old.unlink(missing_ok=True)
    (folder / PLAN).write_text(plan.to_json())
    members = [_start(folder, index, command, env or {}) for index in range(plan.seats)]
    try:
        _wait(folder, members, timeout_s)
    finally:
        for member in members:
            if member.poll() is None:
                member.kill()
            member.wait()
    return _compare(folder)


def _start(
    folder: Path, index: int, command: Sequence[str], env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    variables = {name: value for name, value in os.environ.items() if name != "FARSTEP_COORDINATOR"}
    variables |= {"OMP_NUM_THREADS": "1", **env}
    variables |= {"FARSTEP_GROUP": f"replay-{index}", ENVIRONMENT: f"{folder}:{index}"}
    with (folder / f"replay-{index}.log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, start_new_session=True
        )


def _wait(folder: Path, members: Sequence[subprocess.Popen[bytes]], timeout_s: float | None) -> None:
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        statuses = [member.poll() for member in members]
        for index, (member, status) in enumerate(zip(members, statuses, strict=True)):
            if status:
                log = (folder / f"replay-{index}.log").read_text(errors="replace").splitlines()
                told = "\n".join(log[-LAST_LINES:])
                raise RunFailed(
                    f"member {index} of the replay ended with status {member.returncode}:\n{told}"
                )
        if None not in statuses:
            return
        if end_s is not None and time.monotonic() > end_s:
            raise RunFailed(f"the replay did not end within {timeout_s:g} s")
        time.sleep(POLL_S)


def _compare(folder: Path) -> Replayed:
    states = [json.loads(path.read_text()) for path in sorted(folder.glob("state-*.json"))]
    if not states:
        raise RunFailed("no member of the replay made its last step; does the program use farstep.Trainer?")
    ends = {Replayed(state["step"], state["sha256"]) for state in states}
    last = max(end.step for end in ends)
    found = {end for end in ends if end.step == last}
    if len(found) > 1:
        raise RunFailed(f"the members of the replay differ: {sorted(end.sha256 for end in found)}")
    return found.pop()
