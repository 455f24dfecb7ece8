"""A whole job on one machine: a coordinator and its members, each a process. For trying things out and for tests.

On clusters the launchers that are there start the members; nothing of this is needed then.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from farstep.train.errors import RunFailed

__all__ = ["LocalJob"]

START_TIMEOUT_S = 60.0
"""Longest start of a coordinator, on a busy machine."""

STOP_TIMEOUT_S = 5.0
"""A process told to end that still runs after this long is killed."""


class LocalJob:
    """Starts a coordinator and members on this machine, and can make them fail.

    Args:
        command: what every member runs.
        groups: number of replica groups with a seat.
        spares: number of members that wait as spares.
        folder: where logs and the coordinator's address go; None: a temporary folder, removed at the end.
        env: further variables of the members.
        threads_per_member: `OMP_NUM_THREADS` of the members.
        config: further settings of the coordinator by the names of its options, such as `min_groups` or `silence_s`.
        echo: receives what the members write, each line with the member's name in front; by default it goes to a file
            `NAME.log` each.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        groups: int,
        spares: int = 0,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        threads_per_member: int = 1,
        config: Mapping[str, Any] | None = None,
        echo: TextIO | None = None,
    ) -> None:
        self._echo = echo
        self.command = list(command)
        self._is_temporary = folder is None
        self.folder = folder if folder is not None else Path(tempfile.mkdtemp(prefix="farstep-job-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.names = [f"group-{index}" for index in range(groups)]
        self.spare_names = [f"spare-{index}" for index in range(spares)]
        self.members: dict[str, subprocess.Popen[bytes]] = {}
        self.coordinator: subprocess.Popen[bytes] | None = None
        self._env = dict(env or {})
        self._threads = threads_per_member
        self._config = {"groups": groups, "min_groups": 1, **(config or {})}
        self._lock = threading.Lock()

    @property
    def address_file(self) -> Path:
        """Holds the coordinator's address."""
        return self.folder / "coordinator.address"

    def start(self) -> Self:
        """Starts the coordinator and all members."""
        self.start_coordinator()
        for name in self.names:
            self.start_member(name)
        for name in self.spare_names:
            self.start_member(name, is_spare=True)
        return self

    # -- the coordinator ------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Starts a coordinator that knows nothing, at a port of its own.

        Raises:
            RunFailed: it did not come up.
        """
        self._let_go_of_coordinator()
        self.address_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "farstep", "coordinator", "--insecure", "--port", "0"]
        command += ["--announce", str(self.address_file), "--out", str(self.folder), "--end-with-input"]
        for name, value in self._config.items():
            option = f"--{name.replace('_', '-')}"
            command += ([option] if value else []) if isinstance(value, bool) else [option, str(value)]
        self.coordinator = self._spawn(command, "coordinator", {})
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self.address_file.exists():
            if self.coordinator.poll() is not None or time.monotonic() > deadline_s:
                raise RunFailed(f"the coordinator did not start; see {self.folder / 'coordinator.log'}")
            time.sleep(0.02)

    def kill_coordinator(self) -> None:
        """Kills the coordinator, with everything it knew."""
        assert self.coordinator is not None, "the coordinator was started"
        self.coordinator.kill()
        self.coordinator.wait()

    def _let_go_of_coordinator(self) -> None:
        """Closes the input that keeps the coordinator there."""
        if self.coordinator is not None and self.coordinator.stdin is not None:
            self.coordinator.stdin.close()

    # -- members --------------------------------------------------------------------------------------

    def start_member(
        self, name: str, *, is_spare: bool = False, env: Mapping[str, str] | None = None
    ) -> None:
        """Starts a member, also again under a name whose process has ended."""
        variables = {
            "FARSTEP_COORDINATOR": f"file:{self.address_file}",
            "FARSTEP_GROUP": name,
            "FARSTEP_SPARE": "1" if is_spare else "0",
            "OMP_NUM_THREADS": str(self._threads),
            **self._env,
            **(env or {}),
        }
        with self._lock:
            self.members[name] = self._spawn(self.command, name, variables)

    def send(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a member: SIGKILL, SIGSTOP, SIGCONT, SIGTERM."""
        self.members[name].send_signal(number)

    def wait(self, timeout_s: float) -> dict[str, int]:
        """Waits until all members have ended; returns their exit statuses by name, negative for signals.

        Raises:
            TimeoutError: some have not.
        """
        deadline_s = time.monotonic() + timeout_s
        for name, process in self.members.items():
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise TimeoutError(
                    f"{name} has not ended within {timeout_s:g} s; see {self.folder}"
                ) from None
        return {name: process.returncode for name, process in self.members.items()}

    def log(self, name: str) -> str:
        """What a member, or `coordinator`, has written."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def events(self) -> list[dict[str, Any]]:
        """What the coordinators of this job have noted so far."""
        path = self.folder / "events.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def close(self) -> None:
        """Ends every process of the job."""
        processes = [*self.members.values(), *([self.coordinator] if self.coordinator is not None else [])]
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.terminate()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()
        self._let_go_of_coordinator()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _spawn(
        self, command: Sequence[str], name: str, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        env = {**os.environ, **variables}
        if self._echo is not None and name != "coordinator":
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # Ctrl-C is for the launcher, which passes it on
            )
            threading.Thread(target=self._copy, args=(process, name), daemon=True).start()
            return process
        # The coordinator ends with its input, so that it does not outlive this process, however that ends.
        given = subprocess.PIPE if name == "coordinator" else subprocess.DEVNULL
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=given, stdout=log, stderr=log, env=env, start_new_session=True
            )

    def _copy(self, process: subprocess.Popen[bytes], name: str) -> None:
        echo = self._echo
        for line in process.stdout or ():
            if echo is not None:
                echo.write(f"{name}: {line.decode(errors='replace').rstrip()}\n")
                echo.flush()
