"""Jobs of several replica groups that are hurt on purpose, under farstep and under others, measured alike.

Every worker writes a line per step with the machine's monotonic clock, so that one yardstick fits all systems: the
longest time between two committed steps of a survivor around the moment something happened.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

PROGRAMS = Path(__file__).resolve().parent.parent / "recovery"
POLL_S = 0.02
START_LIMIT_S = 120.0
ACTIVE_NS = 2_000_000_000
"""A group without a step in so long does not train."""

SPARE_S = 2.0
"""What a spare gets to fetch the state, from the moment its model is built."""

SETTLED_STEPS = 10
"""Steps in a row after which a group counts as being back in training."""


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class System(ABC):
    """How one system is started: its coordinator and its workers."""

    name: str

    @abstractmethod
    def coordinator(self, folder: Path, groups: int) -> list[str]:
        """The command of what has to run beside the workers."""

    @abstractmethod
    def worker(
        self, number: int, record: Path, *, size: str, batch: int, wants: str
    ) -> tuple[list[str], dict[str, str]]:
        """The command of one replica group and what its environment has in addition."""


class Farstep(System):
    """farstep as installed here."""

    name = "farstep"

    def __init__(self, *, policy: str = "per_group") -> None:
        self._policy = policy
        self._port = 0

    def coordinator(self, folder: Path, groups: int) -> list[str]:
        """`farstep coordinator` on a free port of this machine, always the same."""
        self._port = self._port or free_port()
        options = ["--insecure", "--port", str(self._port), "--groups", str(groups), "--min-groups", "1"]
        return [
            sys.executable,
            "-m",
            "farstep",
            "coordinator",
            *options,
            "--out",
            str(folder / "coordinator"),
        ]

    def worker(
        self, number: int, record: Path, *, size: str, batch: int, wants: str
    ) -> tuple[list[str], dict[str, str]]:
        """A plain PyTorch loop with `farstep.join()`."""
        arguments = [str(number), str(record), size, str(batch), wants]
        command = [sys.executable, str(PROGRAMS / "farstep_worker.py"), *arguments]
        return command, {
            "FARSTEP_COORDINATOR": f"ws://127.0.0.1:{self._port}",
            "BENCH_POLICY": self._policy,
        }


@dataclass
class Torchft(System):
    """torchft on Gloo, in an interpreter of its own."""

    python: str
    name: str = "torchft"
    timeout_s: float = 10.0
    heartbeat_timeout_ms: int = 5000

    def coordinator(self, folder: Path, groups: int) -> list[str]:
        """The lighthouse, with the limits of its documentation."""
        self._port = free_port()
        program = Path(self.python).parent / "torchft_lighthouse"
        limits = (
            f"--quorum_tick_ms 100 --heartbeat_timeout_ms {self.heartbeat_timeout_ms} --join_timeout_ms 60000"
        )
        return [str(program), "--bind", f"[::]:{self._port}", "--min_replicas", "1", *limits.split()]

    def worker(
        self, number: int, record: Path, *, size: str, batch: int, wants: str
    ) -> tuple[list[str], dict[str, str]]:
        """A loop with `Manager` and its DDP; torchft has no spares, so `wants` is not used."""
        arguments = [str(number), str(record), size, str(batch), str(self.timeout_s)]
        command = [self.python, str(PROGRAMS / "torchft_worker.py"), *arguments]
        return command, {"TORCHFT_LIGHTHOUSE": f"http://localhost:{self._port}"}


@dataclass
class Group:
    """One replica group: its processes, one after the other, write into one record."""

    number: int
    record: Path
    process: subprocess.Popen[bytes] | None = None
    wants: str = "seat"
    lines: list[dict[str, Any]] = field(default_factory=list)
    read_bytes: int = 0

    def read(self) -> list[dict[str, Any]]:
        """All lines written so far."""
        with contextlib.suppress(FileNotFoundError), self.record.open("rb") as file:
            file.seek(self.read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.read_bytes += len(line)
                self.lines.append(json.loads(line))
        return self.lines

    def steps(self) -> list[dict[str, Any]]:
        """The committed steps so far."""
        return [line for line in self.read() if line["kind"] == "step" and line["committed"]]

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None


class Job:
    """Replica groups of one system; a context manager that leaves no process behind.

    Args:
        system: what trains.
        folder: for records and logs.
        groups: number of replica groups.
        size: of the model.
        batch: samples of a group in each step.
    """

    def __init__(
        self, system: System, folder: Path, *, groups: int, size: str, batch: int, spares: int = 0
    ) -> None:
        self.system = system
        self._folder = folder
        self._size, self._batch = size, batch
        self._num_seats = groups
        self.groups = [
            Group(n, folder / f"group{n}.jsonl", wants="seat" if n < groups else "spare")
            for n in range(groups + spares)
        ]
        self._coordinator: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Job:
        self.start_coordinator()
        time.sleep(1.0)
        for group in self.groups:
            self.start(group)
        self.wait_steps(SETTLED_STEPS, START_LIMIT_S, self.groups[: self._num_seats])
        return self

    def __exit__(self, *error: object) -> None:
        processes = [group.process for group in self.groups] + [self._coordinator]
        for process in processes:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def _spawn(self, command: list[str], environment: dict[str, str], name: str) -> subprocess.Popen[bytes]:
        log = (self._folder / f"{name}.log").open("ab")
        inherited = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        return subprocess.Popen(command, stdout=log, stderr=log, env=inherited, cwd=self._folder)

    def start_coordinator(self) -> None:
        """Starts a coordinator that knows nothing."""
        command = self.system.coordinator(self._folder, self._num_seats)
        self._coordinator = self._spawn(command, {}, "coordinator")

    def kill_coordinator(self) -> None:
        """Kills it, with everything it knew."""
        assert self._coordinator is not None, "a coordinator runs while the job does"
        self._coordinator.kill()
        self._coordinator.wait()

    def active(self) -> list[Group]:
        """Groups that train now; spares and those on their way back do not."""
        since_ns = time.monotonic_ns() - ACTIVE_NS
        return [g for g in self.groups if g.is_alive and g.steps()[-1:] and g.steps()[-1]["t_ns"] > since_ns]

    @property
    def has_spares(self) -> bool:
        """Whether some groups wait until a seat is free."""
        return len(self.groups) > self._num_seats

    def wait_back(self, returned_ns: int) -> bool:
        """Waits until groups that were started again at a moment are back; whether they are."""
        if not self.has_spares:
            return self.wait_steps(SETTLED_STEPS, START_LIMIT_S, self.groups, after_ns=returned_ns)
        end_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end_s:
            starts = [[line for line in group.read() if line["kind"] == "ready"] for group in self.groups]
            pids = [group.process.pid if group.process is not None else 0 for group in self.groups]
            if all(lines and lines[-1]["pid"] == pid for lines, pid in zip(starts, pids, strict=True)):
                time.sleep(SPARE_S)
                return len(self.active()) == self._num_seats
            time.sleep(POLL_S)
        return False

    def start(self, group: Group) -> None:
        """Starts the process of a group."""
        command, environment = self.system.worker(
            group.number, group.record, size=self._size, batch=self._batch, wants=group.wants
        )
        group.process = self._spawn(command, environment, f"group{group.number}")

    def wait_steps(self, count: int, limit_s: float, groups: list[Group], *, after_ns: int = 0) -> bool:
        """Waits until every group that lives has committed so many steps after a moment; whether they have."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            living = [group for group in groups if group.is_alive]
            if living and all(
                sum(step["t_ns"] > after_ns for step in group.steps()) >= count for group in living
            ):
                return True
            if not living:
                return False
            time.sleep(POLL_S)
        return False


@dataclass(frozen=True)
class Injury:
    """What one injury did to the groups that were not hurt."""

    survivors: int
    died: int
    stall_s: float
    """Longest time between two committed steps of a survivor, less the median step. Infinite if none went on."""
    steps_lost: int
    """Steps that a survivor had committed and did again."""


def judge(groups: list[Group], at_ns: int, *, until_ns: int) -> Injury:
    """Measures what happened to the survivors between a moment and another."""
    stalls, lost, died = [], [0], 0
    for group in groups:
        died += not group.is_alive
        steps = group.steps()
        before = [step for step in steps if step["t_ns"] <= at_ns][-50:]
        after = [step for step in steps if at_ns < step["t_ns"] <= until_ns]
        if not after or not before:
            stalls.append(float("inf"))
            continue
        usual_ns = median([b["t_ns"] - a["t_ns"] for a, b in itertools.pairwise(before)] or [0])
        line = [before[-1], *after]
        longest_ns = max(b["t_ns"] - a["t_ns"] for a, b in itertools.pairwise(line))
        stalls.append((longest_ns - usual_ns) / 1e9)
        lost.append(max(0, before[-1]["step"] - min(step["step"] for step in after) + 1))
    return Injury(survivors=len(groups), died=died, stall_s=max(stalls), steps_lost=max(lost))


@dataclass
class Outcome:
    """All injuries of one job."""

    injuries: list[Injury] = field(default_factory=list)
    rejoin_s: list[float] = field(default_factory=list)
    """From "ready" (imports done, model built) to the first step the newcomer contributed to."""
    join_stall_s: list[float] = field(default_factory=list)
    """How much longer than the median step the first step with the newcomer took others, counted from the last one
    without it."""


def join_stall(groups: list[Group], returned_ns: int) -> float | None:
    """How long a newcomer's coming held others up after a moment; None if their records do not tell."""
    stalls = []
    for group in groups:
        steps = group.steps()
        for before, after in itertools.pairwise(steps):
            if before["t_ns"] > returned_ns and after.get("groups", 0) > before.get("groups", 0):
                times = [step["t_ns"] for step in steps if step["t_ns"] <= before["t_ns"]][-50:]
                usual_ns = median([b - a for a, b in itertools.pairwise(times)] or [0])
                stalls.append((after["t_ns"] - before["t_ns"] - usual_ns) / 1e9)
                break
    return max(stalls, default=None)


def kill_again_and_again(
    job: Job, kills: int, *, seed: int, limit_s: float = 60.0, hang_s: float = 0.0
) -> Outcome:
    """Hurts one group after the other at random moments, and starts it again.

    Args:
        job: a job that runs.
        kills: how often.
        seed: of victims and moments.
        limit_s: longest wait for the survivors.
        hang_s: 0 to kill the process; otherwise it is stopped for so long.
    """
    draw, outcome = random.Random(seed), Outcome()
    for _ in range(kills):
        time.sleep(draw.uniform(0.5, 1.5))
        training = job.active() if job.has_spares else job.groups
        victim = draw.choice(training)
        survivors = [group for group in training if group is not victim]
        assert victim.process is not None
        at_ns = time.monotonic_ns()
        victim.process.send_signal(signal.SIGSTOP if hang_s else signal.SIGKILL)
        if not hang_s:
            victim.process.wait()
        job.wait_steps(SETTLED_STEPS, limit_s, survivors, after_ns=at_ns)
        if hang_s:
            time.sleep(max(0.0, hang_s - (time.monotonic_ns() - at_ns) / 1e9))
        injury = judge(survivors, at_ns, until_ns=time.monotonic_ns())
        outcome.injuries.append(injury)
        if injury.died == injury.survivors:
            break
        if hang_s:
            victim.process.send_signal(signal.SIGCONT)
        returned_ns = time.monotonic_ns()
        for group in job.groups:  # also those that died of the injury
            if not group.is_alive:
                job.start(group)
        if not job.wait_back(returned_ns):
            break
        ready = [
            line["t_ns"] for line in victim.lines if line["kind"] == "ready" and line["t_ns"] > returned_ns
        ]
        steps = [step["t_ns"] for step in victim.steps() if step["t_ns"] > returned_ns]
        if ready and steps:
            outcome.rejoin_s.append((steps[0] - ready[-1]) / 1e9)
        stall_s = join_stall(survivors, returned_ns)
        if stall_s is not None:
            outcome.join_stall_s.append(stall_s)
    return outcome


def kill_coordinators(job: Job, kills: int, *, seed: int, limit_s: float = 60.0) -> Outcome:
    """Kills the coordinator at random moments and starts another one, which knows nothing, shortly afterwards."""
    draw, outcome = random.Random(seed), Outcome()
    for _ in range(kills):
        time.sleep(draw.uniform(0.5, 1.5))
        training = job.active()
        at_ns = time.monotonic_ns()
        job.kill_coordinator()
        time.sleep(draw.uniform(0.1, 1.0))
        job.start_coordinator()
        job.wait_steps(SETTLED_STEPS, limit_s, training, after_ns=time.monotonic_ns())
        outcome.injuries.append(judge(training, at_ns, until_ns=time.monotonic_ns()))
    return outcome
