"""The processes of a chaos run: starting them, waiting for them, ending them, and saying where they stand."""

from __future__ import annotations

import heapq
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farstep.fabric import full_mesh
from farstep.lab import Emulator
from tests.train.chaos.relay import Relays
from tests.train.chaos.schedule import SEATS, SITES, SPARES, Event
from tests.train.chaos.tape import Line, Tape

__all__ = ["ChaosFailure", "Injected", "Options", "Stage", "new_folder"]

ROOT = Path(__file__).resolve().parents[3]
POLL_S = 0.02
FRESH_S = 3.0
"""A member whose last commit is no older trains, or keeps up."""


MIN_STEPS = 120
"""Least length of a run."""


class ChaosFailure(AssertionError):
    """The run did not survive what it must survive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of one run.

    Attributes:
        seed: of everything that is drawn.
        form: `batch` or `closure`: how the training loop calls the trainer.
        compute_s: duration of forward, slept.
        recovery_limit_s: longest time without a commit, and longest wait for all to be back.
        step_deadline_s: of the members' policy.
    """

    seed: int
    form: str = "batch"
    compute_s: float = 0.01
    recovery_limit_s: float = 90.0
    step_deadline_s: float = 2.0
    checkpoint_every: int = 25


@dataclass(slots=True)
class Injected:
    """An event that has happened.

    Attributes:
        event: as drawn.
        members: identities it hit.
        names: names of those.
        at_s: monotonic time.
        log_at: lines in the coordinator's event log before it.
        step: newest committed step before it.
        said: remarks.
    """

    event: Event
    names: tuple[str, ...]
    members: tuple[str, ...]
    at_s: float
    log_at: int
    step: int
    said: str = ""
    stall_s: float = 0.0


@dataclass(order=True)
class _Later:
    at_s: float
    number: int
    act: Callable[[], None] = field(compare=False)


class Stage:
    """A job of four seats and a spare at three sites.

    Args:
        folder: for logs, checkpoints and the event log.
        options: how it runs.
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        self.options = options
        self.injected: list[Injected] = []
        self.problems: list[str] = []
        self.expected_ends: dict[int, set[int]] = {}
        self.coordinator_port = 0
        self._site_of = dict(SITES)
        self._later: list[_Later] = []
        self._count = 0
        self._impaired: dict[str, int] = {}
        self._is_down: set[str] = set()
        self._num_coordinators = 0
        self._is_coordinator_impaired = False
        self._slow: dict[str, float] = {}
        self._hanging: set[str] = set()
        self._path_faults: list[str] = []
        (folder / "tmp").mkdir(parents=True)
        (folder / "checkpoints").mkdir()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "FARSTEP_CHAOS": str(folder),
        }
        with (folder / "zygote.log").open("ab") as log:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "tests.train.chaos.zygote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
        assert self._zygote.stdout is not None
        self.tape = Tape(self._zygote.stdout)
        self.relays = Relays()
        self.emulator = Emulator(full_mesh(tuple(sorted(set(SITES.values()))), delay_ms=0.2, planes=1))
        self._stepper = threading.Thread(target=self._throttle, daemon=True)
        self._is_closing = False
        self._stepper.start()

    # -- starting -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts everything and waits until all train."""
        if not self.tape.is_ready.wait(120.0):
            raise ChaosFailure(f"the zygote did not start: {self._log('zygote')}")
        self.start_coordinator()
        for name in SITES:
            self.start_member(name)
        self.settle("the start")

    def start_coordinator(self, port: int = 0) -> None:
        """Starts a coordinator that knows nothing."""
        announce = self.folder / "coordinator.address"
        announce.unlink(missing_ok=True)
        arguments = ["--insecure", "--port", str(port), "--announce", str(announce)]
        arguments += ["--out", str(self.folder), "--groups", str(len(SEATS)), "--min-groups", "1"]
        arguments += ["--max-groups", "8", "--spares", str(len(SPARES))]
        self._num_coordinators += 1
        self._order(
            op="start",
            role="coordinator",
            name="coordinator",
            env={},
            log=str(self.folder / "coordinator.log"),
            arguments=arguments,
            seed=self.options.seed * 1000 + self._num_coordinators,
        )
        self._until(announce.exists, "the coordinator listening")
        self.coordinator_port = int(announce.read_text().split()[0].rpartition(":")[2])
        self.relays.upstream = self.coordinator_port
        self._is_coordinator_impaired = False

    def start_member(self, name: str) -> None:
        """Starts a member, or starts it again."""
        self._count += 1
        self.relays.unblock(name) if name in self._is_down else self._move_line(name)
        self._is_down.discard(name)
        site = self._site_of[name]
        env = {
            "FARSTEP_COORDINATOR": f"file:{self.folder / f'{name}.address'}",
            "FARSTEP_GROUP": name,
            "FARSTEP_SITE": site,
            "FARSTEP_SPARE": "1" if name in SPARES else "0",
        }
        self._order(
            op="start",
            role="member",
            name=name,
            env=env,
            log=str(self.folder / f"{name}.log"),
            folder=str(self.folder),
            emulator=self.emulator.control,
            seed=self.options.seed * 1000 + self._count,
            data_seed=self.options.seed,
            form=self.options.form,
            compute_s=self.options.compute_s,
            step_deadline_s=self.options.step_deadline_s,
            checkpoint_every=self.options.checkpoint_every,
        )
        self._until(lambda: name in self.tape.pids, f"{name} being forked", 20.0)

    def _move_line(self, name: str) -> None:
        port = self.relays.open(name)
        path = self.folder / f"{name}.address"
        path.with_suffix(".new").write_text(f"ws://127.0.0.1:{port}\n")
        path.with_suffix(".new").rename(path)

    # -- ending ---------------------------------------------------------------------------------------

    def settle(self, what: str) -> None:
        """Waits until nothing is broken on purpose any more and everybody trains."""
        self._until(lambda: not self._later, f"faults taken back after {what}")
        everybody = set(SITES)
        self._until(lambda: self._healthy() >= everybody, f"everybody training after {what}")
        self._impaired.clear()

    def finish(self) -> None:
        """Ends the run as a user would and waits for all to end."""
        newest = self.tape.newest
        assert newest is not None, "the run has trained"
        last = max(newest["step"] + 40, MIN_STEPS)
        self._until(lambda: self.newest_step >= last, f"step {last}")
        (self.folder / "stop").touch()
        names = [name for name in self.tape.pids if name != "coordinator"]
        for name in names:
            self.expected_ends[self.tape.pids[name]] = {0}
        if not self.tape.wait(
            lambda: not (set(self.tape.pids) - {"coordinator"}), self.options.recovery_limit_s
        ):
            self._fail(f"members do not end: {sorted(set(self.tape.pids) - {'coordinator'})}")
        self.expected_ends[self.tape.pids["coordinator"]] = {0, -signal.SIGTERM}
        self._signal("coordinator", signal.SIGTERM)
        if not self.tape.wait(lambda: not self.tape.pids, 30.0):
            self._fail("the coordinator does not end")

    def calm_losses(self, steps: int, runs: int) -> list[list[float]]:
        """Loss curves of undisturbed runs of one member, which differ by the seed of dropout."""
        names = [f"solo-{number}" for number in range(1, runs + 1)]
        for number, name in enumerate(names, 1):
            self._order(
                op="start",
                role="solo",
                name=name,
                env={"FARSTEP_GROUP": name},
                log=str(self.folder / f"{name}.log"),
                seed=number,
                data_seed=self.options.seed,
                steps=steps,
            )
            self._until(lambda name=name: name in self.tape.pids or self.tape.calm(name), "a calm run", 20.0)
            self.expected_ends[self.tape.pids[name]] = {0}
            self._until(lambda name=name: name not in self.tape.pids, "a calm run's end", 300.0)
        return [self.tape.calm(name) for name in names]

    def close(self) -> None:
        """Ends every process."""
        self._is_closing = True
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        try:
            self._zygote.wait(20.0)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()
        self.tape.join()
        assert self._zygote.stdout is not None
        self._zygote.stdout.close()
        self._stepper.join()
        self.relays.close()
        self.emulator.close()

    # -- what there is --------------------------------------------------------------------------------

    def event_log(self) -> list[Line]:
        """Lines of the coordinators' event log."""
        path = self.folder / "events.jsonl"
        if not path.exists():
            return []
        found = []
        for line in path.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"kind": "torn", "text": line})
        return found

    @property
    def newest_step(self) -> int:
        """Newest committed step; -1 before the first."""
        return int(self.tape.newest["step"]) if self.tape.newest is not None else -1

    def _healthy(self) -> set[str]:
        """Members that are alive, not hurt now, and have committed a recent step."""
        now_s, newest = time.monotonic(), self.newest_step
        return {
            name
            for name, line in list(self.tape.last_commit.items())
            if name in self.tape.pids
            and self._impaired.get(name, 0) == 0
            and now_s - line["at"] < FRESH_S
            and line["step"] >= newest - 200
        }

    # -- time -----------------------------------------------------------------------------------------

    def _rest(self, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            self._look()
            time.sleep(POLL_S)

    def _until(self, condition: Callable[[], bool], what: str, limit_s: float | None = None) -> None:
        end_s = time.monotonic() + (limit_s or self.options.recovery_limit_s)
        while not condition():
            if time.monotonic() > end_s:
                self._fail(f"waited in vain for {what}; healthy: {sorted(self._healthy())}")
            self._look()
            time.sleep(POLL_S)

    def _look(self) -> None:
        """Takes back what is due, and looks for processes that ended and should not have."""
        while self._later and self._later[0].at_s <= time.monotonic():
            heapq.heappop(self._later).act()
        for pid, status in list(self.tape.ends.items()):
            if status not in self.expected_ends.get(pid, set()) and pid not in self.expected_ends:
                self.expected_ends[pid] = {status}
                self._fail(f"process {pid} ended with status {status}")
            elif status not in self.expected_ends[pid]:
                allowed = self.expected_ends[pid]
                self.expected_ends[pid] = allowed | {status}
                self._fail(f"process {pid} ended with status {status}, expected {sorted(allowed)}")

    def _in(self, after_s: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._later, _Later(time.monotonic() + after_s, self._count, act))

    def _throttle(self) -> None:
        """Gives slow members every other 40 ms only."""
        while not self._is_closing:
            now_s = time.monotonic()
            slow = [name for name, until_s in list(self._slow.items()) if now_s < until_s]
            slow = [name for name in slow if name not in self._hanging]
            for name in slow:
                self._signal(name, signal.SIGSTOP)
            time.sleep(0.04)
            for name in slow:
                if name not in self._hanging:
                    self._signal(name, signal.SIGCONT)
            time.sleep(0.04)

    # -- small things ---------------------------------------------------------------------------------

    def _signal(self, name: str, number: int) -> None:
        pid = self.tape.pids.get(name)
        if pid is not None:
            self._order(op="signal", pid=pid, number=int(number))

    def _order(self, **order: Any) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(order).encode() + b"\n")
        self._zygote.stdin.flush()

    def _post(self, path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.coordinator_port}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10.0).close()

    def _log(self, name: str, length: int = 6000) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-length:] if path.exists() else ""

    def _fail(self, what: str) -> None:
        """Collects where everybody stands and gives up."""
        for name in list(self.tape.pids):
            self._signal(name, signal.SIGCONT)
            self._signal(name, signal.SIGUSR2)
        time.sleep(1.0)
        notes = [
            f"  {note.at_s:.2f} step {note.step} {note.event} {note.said}" for note in self.injected[-15:]
        ]
        logged = ["  " + json.dumps(line)[:300] for line in self.event_log()[-40:]]
        logs = [
            f"---- {name}: last commit {self.tape.last_commit.get(name)}\n{self._log(name)}"
            for name in sorted(set(SITES) | set(self.tape.pids))
        ]
        parts = [what, f"impaired: {self._impaired}", f"down: {self._is_down}", *notes, *logged, *logs]
        text = "\n".join(parts)
        (self.folder / "failure.txt").write_text(text)
        raise ChaosFailure(f"{what} (now {time.monotonic():.2f}); all of it in {self.folder / 'failure.txt'}")


def new_folder() -> Path:
    """A folder of its own, with a name short enough for sockets inside."""
    return Path(tempfile.mkdtemp(prefix="farstep-chaos-"))
