"""Starts whole runs of a tiny model as a user would, and reads what they leave behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TINY = """
[run]
steps = {steps}
eval_every_steps = 1000000
eval_windows = 8
[model]
layers = 2
width = 32
heads = 2
context_bytes = 16
[data]
batch_per_group = 2
"""


@dataclass
class Run:
    """A `farstep train` under way."""

    process: subprocess.Popen[str]
    out: Path
    stdout: str = ""
    stderr: str = ""
    folder: Path = field(default_factory=Path)

    def wait_for_step(self, step: int, timeout_s: float = 60.0) -> None:
        """Waits until the event log shows a step."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended before step {step}: {self.process.communicate()}")
            logs = list(self.out.glob("*/events.jsonl"))
            if logs and f'"step":{step},' in logs[0].read_text().replace('"step": ', '"step":'):
                return
            time.sleep(0.05)
        raise AssertionError(f"no step {step} within {timeout_s} s")

    def end(self, timeout_s: float = 60.0) -> int:
        """Waits for the end and returns the exit status."""
        self.stdout, self.stderr = self.process.communicate(timeout=timeout_s)
        folders = list(self.out.iterdir()) if self.out.is_dir() else []
        self.folder = folders[0] if folders else Path()
        return self.process.returncode

    def events(self, kind: str) -> list[dict]:
        """Events of one kind from the log."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    @property
    def end_event(self) -> dict:
        """The last event of the run."""
        (event,) = self.events("run_end")
        return event

    @staticmethod
    def is_alive(pid: int) -> bool:
        """Whether a process runs; one that has ended and waits to be collected does not."""
        try:
            return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def worker_pids(self) -> list[int]:
        """Rank processes that this run has started and that still live, in rank order."""
        nursery = self.nursery_pid()
        return children_of(nursery, "farstep.train.nursery") if nursery else []

    def coordinator_pids(self) -> list[int]:
        """The coordinators of this run that live: one."""
        return children_of(self.process.pid, "coordinator")

    def nursery_pid(self) -> int:
        """The process that forks the ranks; 0 if there is none yet."""
        found = children_of(self.process.pid, "farstep.train.nursery")
        return found[0] if found else 0

    def rank_pids(self) -> list[int]:
        """Ranks that torchrun has started."""
        return children_of(self.process.pid, "farstep")


def children_of(parent: int, module: str) -> list[int]:
    """Children of a process that run a module, oldest first."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            command = (path / "cmdline").read_bytes().decode().split("\0")
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if module in command and int(fields[1]) == parent:
            found.append(int(path.name))
    return sorted(found)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts `farstep train` on a tiny model; what still runs at the end of the test is ended."""
    runs: list[Run] = []

    def _start(
        extra: str = "",
        *options: str,
        steps: int = 6,
        run_keys: str = "",
        command: tuple[str, ...] = (sys.executable, "-m", "farstep"),
    ) -> Run:
        number = len(runs)
        config = tmp_path / f"run{number}.toml"
        text = TINY.format(steps=steps).replace("[run]", f"[run]\n{run_keys}", 1)
        config.write_text(text + extra)
        out = tmp_path / f"out{number}"
        environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        process = subprocess.Popen(
            [*command, "train", str(config), "--out", str(out), "--plain", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        runs.append(Run(process, out))
        return runs[-1]

    yield _start
    for run in runs:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.communicate()
