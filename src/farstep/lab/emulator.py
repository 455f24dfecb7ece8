"""Starting and stopping the path emulator."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import farstep
from farstep.fabric import ConfigError, EmulatedNetwork, Fault, FaultScript, FaultTimeline
from farstep.lab.client import EmulatorClient, EmulatorError

START_TIMEOUT_S = 30.0
"""Longest wait for the process to be ready; a loaded machine takes a few seconds to start an interpreter."""

STOP_TIMEOUT_S = 5.0
"""Longest wait for the process to end by itself before it is killed."""

CONTROL_PATH_BYTES_MAX = 100
"""A Unix socket's path is limited to 107 bytes by the kernel."""


class Emulator(EmulatorClient):
    """A path emulator in a process of its own, controlled from here and from wherever `control` is known.

    Needs no privileges. The process ends with `close`, with this process, or when told by a client.

    Args:
        network: sites and paths, as an object, a table or the name of a TOML file.
        faults: fault script, started with the emulator; one that begins with a run is given to `load` then.
        listen_host: address of this machine at which peers reach the emulator.

    Raises:
        ConfigError: the network or the script is wrong.
        EmulatorError: the process could not be started.

    Example:
        >>> from farstep.fabric import full_mesh
        >>> with Emulator(full_mesh(("a", "b"), delay_ms=5.0)) as emulator:
        ...     sorted(emulator.expose("b", 0, ("127.0.0.1", 9000)))
        ['a', 'b']
    """

    def __init__(
        self,
        network: EmulatedNetwork | Mapping[str, Any] | str | Path,
        *,
        faults: FaultScript | Iterable[Fault] = (),
        listen_host: str = "127.0.0.1",
    ) -> None:
        self.network = _network(network)
        script = tuple(faults.faults if isinstance(faults, FaultScript) else faults)
        FaultTimeline(script, self.network)  # refuses a wrong script before anything runs
        self._directory = _directory()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = _spawn(self.network, str(Path(self._directory, "control")), listen_host)
            super().__init__(str(Path(self._directory, "control")))
            if script:
                self.load(script)
        except BaseException:
            self._end_process()
            raise

    @property
    def pid(self) -> int | None:
        """Process id of the emulator while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def close(self) -> None:
        """Ends the emulator; may be called again."""
        if self._process is None:
            return
        if self._process.poll() is None:
            try:
                self.request("stop")
            except (EmulatorError, OSError, ValueError):
                self._process.terminate()  # it ends, or does not listen; the wait below tells
        self._end_process()  # first, so that a thread in `follow` sees the end and not a closed descriptor
        super().close()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _network(network: EmulatedNetwork | Mapping[str, Any] | str | Path) -> EmulatedNetwork:
    if isinstance(network, EmulatedNetwork):
        return network
    if isinstance(network, (str, Path)):
        return EmulatedNetwork.load(network)
    return EmulatedNetwork.parse(network)


def _directory() -> str:
    """Makes a directory only this user can enter, with a name short enough for a socket inside."""
    directory = tempfile.mkdtemp(prefix="farstep-")
    if len(os.fsencode(directory)) + len("/control") <= CONTROL_PATH_BYTES_MAX:
        return directory
    os.rmdir(directory)
    return tempfile.mkdtemp(prefix="farstep-", dir="/tmp")


def _spawn(network: EmulatedNetwork, control: str, listen_host: str) -> subprocess.Popen[bytes]:
    """Starts the process and waits until it forwards."""
    source = str(Path(farstep.__file__).parent.parent)
    searched = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        # -P: a file of the user's named like a standard module must not be imported instead of it.
        [sys.executable, "-P", "-m", "farstep.lab.spawned"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C is for the parent, which then closes the emulator
        env={**os.environ, "PYTHONPATH": searched},
    )
    order = {
        "network": network.model_dump(mode="json"),
        "control": control,
        "listen_host": listen_host,
        "parent_pid": os.getpid(),
    }
    try:
        answer = _first_words(process, json.dumps(order).encode())
    except BaseException:  # Ctrl-C, for one
        _kill(process)
        raise
    if answer.get("ok"):
        return process
    _kill(process)
    if "error" in answer:
        raise ConfigError(answer["error"])
    raise EmulatorError(f"the emulator process did not become ready (exit status {process.returncode})")


def _first_words(process: subprocess.Popen[bytes], order: bytes) -> dict[str, Any]:
    """Gives the process its order and returns what it answers; empty if it says nothing of use."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(order)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended already; what it said on the way out is read below
    ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
    line = process.stdout.readline() if ready else b""
    answer: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
    return answer


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
