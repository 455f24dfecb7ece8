"""Where labs are recorded: a folder each, with what is needed to take the lab down after a crash.

The record is written before anything is built, and removed after everything is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from farstep.fabric.errors import ConfigError, names, quoted
from farstep.fabric.topology.model import Topology
from farstep.lab.fabric.errors import LabError
from farstep.lab.fabric.options import LabOptions

__all__ = ["LabRecord", "check_name", "lab_names", "labs_folder", "lock", "process_start"]

FOLDER_VARIABLE = "FARSTEP_LAB_FOLDER"
"""Where labs are recorded, if not where `labs_folder` says."""

_NAME = re.compile(r"[a-z0-9_]{1,24}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRecord:
    """A lab as its folder remembers it."""

    name: str
    topology: Topology
    options: LabOptions
    is_rootless: bool
    is_up: bool = False
    """False while it is being built or taken down."""
    keeper_pid: int | None = None
    """Process that holds the namespaces of a rootless lab, or carries packets over links with delay."""
    keeper_start: int = 0
    """When it started, in clock ticks since boot: the same number may be another process by now."""
    created_s: float = 0.0

    def save(self) -> None:
        """Writes the record, whole or not at all."""
        folder = labs_folder() / self.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        table = {item.name: getattr(self, item.name) for item in fields(self)}
        table["topology"] = _topology_table(self.topology)
        table["options"] = asdict(self.options)
        written = folder / "record.json.new"
        written.write_text(json.dumps(table), encoding="utf-8")
        written.replace(folder / "record.json")

    @classmethod
    def load(cls, name: str) -> LabRecord:
        """Reads a record.

        Raises:
            LabError: there is no such lab.
        """
        try:
            table = json.loads((labs_folder() / name / "record.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise LabError(f"no lab {quoted(name)}; there is: {names(lab_names())}") from None
        table["topology"] = _topology_of(table["topology"])
        table["options"] = LabOptions(**table["options"])
        return cls(**table)

    def with_changes(self, **values: Any) -> LabRecord:
        """Returns a changed record, saved."""
        changed = replace(self, **values)
        changed.save()
        return changed

    @property
    def folder(self) -> Path:
        """Where the lab's files are."""
        return labs_folder() / self.name

    @property
    def keeper_is_alive(self) -> bool:
        """Whether the keeper runs still."""
        return self.keeper_pid is not None and process_start(self.keeper_pid) == self.keeper_start

    def forget(self) -> None:
        """Removes the record and everything beside it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def labs_folder() -> Path:
    """Returns where this user's labs are recorded.

    Raises:
        LabError: the place belongs to somebody else.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run/farstep/labs")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime, "farstep", "labs")
    folder = Path(tempfile.gettempdir(), f"farstep-{os.geteuid()}")
    if folder.exists() and folder.stat().st_uid != os.geteuid():
        raise LabError(f"{folder} belongs to another user; set {FOLDER_VARIABLE} to a folder of yours")
    return folder / "labs"


def lab_names() -> list[str]:
    """Returns the names of all labs of this user that have not been taken down."""
    try:
        return sorted(entry.name for entry in labs_folder().iterdir() if (entry / "record.json").exists())
    except FileNotFoundError:
        return []


def check_name(name: str) -> str:
    """Returns the name of a lab, if it can be one.

    Raises:
        ConfigError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name = {quoted(name)}: valid: 1 to 24 of a-z, 0-9 and _")
    return name


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Lets one command at a time change a lab.

    Raises:
        LabError: another one is at it.
    """
    folder = labs_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f".{name}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise LabError(f"lab {quoted(name)} is being changed by another command") from None
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                break  # and not one that its last holder has just removed
        os.close(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)
        _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    """Removes the folder of labs with the last of them; not the one that holds a folder given by the user."""
    with contextlib.suppress(OSError):  # other labs are recorded there
        folder.rmdir()
        if not os.environ.get(FOLDER_VARIABLE):
            folder.parent.rmdir()


def process_start(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()
    return None if after_name[0] in "ZX" else int(after_name[19])


def _topology_table(topology: Topology) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for item in fields(topology):
        value = getattr(topology, item.name)
        if isinstance(value, np.ndarray):
            value = {"dtype": str(value.dtype), "values": value.tolist()}
        elif isinstance(value, Mapping):
            value = {str(key): part for key, part in value.items() if isinstance(part, int | float | str)}
        table[item.name] = value
    return table


def _topology_of(table: dict[str, Any]) -> Topology:
    values: dict[str, Any] = {
        key: np.array(value["values"], value["dtype"])
        if isinstance(value, dict) and set(value) == {"dtype", "values"}
        else value
        for key, value in table.items()
    }
    return Topology(**{**values, "site_names": tuple(values["site_names"])})
