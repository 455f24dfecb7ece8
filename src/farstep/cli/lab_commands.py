"""What `farstep lab` needs beside a lab: commands at several NICs, and scripts as the simulator reads them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farstep.fabric.topology import LinkChange, Topology
    from farstep.lab.fabric import FabricLab

__all__ = ["load_faults", "run_at"]

STOP_S_MAX = 5.0
"""Time commands get to end by themselves after Ctrl-C."""


def run_at(lab: FabricLab, nics: Sequence[int], command: Sequence[str]) -> int:
    """Runs a command at NICs and returns its exit status, of several the first that is not 0.

    Raises:
        KeyboardInterrupt: Ctrl-C, once the commands have ended.
    """
    if len(nics) == 1:
        return _status(_wait([lab.popen(nics[0], command)])[0])
    processes = []
    readers = []
    for nic in nics:
        process = lab.popen(
            nic,
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        processes.append(process)
        readers.append(threading.Thread(target=_pass_on, args=(nic, process), daemon=True))
        readers[-1].start()
    statuses = [_status(code) for code in _wait(processes)]
    for reader in readers:
        reader.join(STOP_S_MAX)
    return next((status for status in statuses if status), 0)


def _pass_on(nic: int, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(f"nic {nic:3} | {line.rstrip()}\n")
        sys.stdout.flush()


def _wait(processes: Sequence[subprocess.Popen[Any]]) -> list[int]:
    """Waits for processes; on Ctrl-C, which they get too, a little longer."""
    try:
        return [process.wait() for process in processes]
    except KeyboardInterrupt:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for process in processes:
                _end(process)
        finally:
            signal.signal(signal.SIGINT, before)
        if len(processes) == 1 and processes[0].returncode >= 0:
            return [processes[0].returncode]  # it has dealt with Ctrl-C in its own way
        raise


def _end(process: subprocess.Popen[Any]) -> None:
    for stop in (process.terminate, process.kill):
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            stop()
    process.wait()


def _status(code: int) -> int:
    """What a shell makes of the end of a process."""
    return 128 - code if code < 0 else code


def load_faults(path: Path, topology: Topology, until_ns: int | None) -> list[LinkChange]:
    """Reads a fault script, or the faults of a scenario, as the simulator does.

    Args:
        path: a file with `[[faults]]`.
        topology: the network they are about.
        until_ns: what comes later is left out; None: the end of a scenario's run, if it has one.

    Raises:
        ConfigError: with one line per mistake.
    """
    from farstep.fabric.errors import ConfigError, called, check_keys, read_toml
    from farstep.fabric.topology import LinkChange
    from farstep.lab.fabric.description import SCENARIO_KEYS
    from farstep.sim.faults import link_actions, parse_faults

    source = called(path)
    table = read_toml(path)
    try:
        check_keys(table, SCENARIO_KEYS)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error
    faults = table.get("faults", [])
    if not isinstance(faults, list) or not all(isinstance(entry, Mapping) for entry in faults) or not faults:
        raise ConfigError(f"{source}: faults: one or more are required, each written as [[faults]]")
    run = _run_of(table, source)
    actions = link_actions(
        parse_faults(faults, source=source),
        topology,
        seed=run.seed,
        until_ns=run.until_ns if until_ns is None else until_ns,
        source=source,
    )
    return [
        LinkChange(
            time_ns=action.time_ns,
            links=action.links,
            kind=action.kind,
            value=action.value,
            is_signalled=action.is_signalled,
            fault=action.text,
        )
        for action in actions
    ]


def _run_of(table: Mapping[str, Any], source: str) -> Any:
    """The `[run]` of a scenario: its seed, which draws cables, and its end."""
    from pydantic import ValidationError

    from farstep.fabric.errors import ConfigError
    from farstep.sim.refusals import plain_validation_error
    from farstep.sim.scenario import Run

    try:
        return Run.model_validate(table.get("run", {}))
    except ValidationError as error:
        raise ConfigError(plain_validation_error(error, f"{source}: run")) from error
