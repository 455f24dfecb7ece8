"""A folder of checkpoints: which are there, which are whole, which may go.

Invariant: a checkpoint appears under its final name complete or not at all, and the newest one that
is whole is never removed.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from farstep.fabric.expected import expect, expect_count, expect_path
from farstep.train.checkpoint.errors import CheckpointError
from farstep.train.checkpoint.files import Files
from farstep.train.checkpoint.manifest import Manifest, problem_of, read_manifest

__all__ = ["Broken", "CheckpointFolder", "CheckpointInfo", "Retention"]

_NAME = re.compile(r"step-(\d{10,})(?:-(\d+))?")
_WORK_NAME = re.compile(r"\.(?:writing|removing)-(?P<host>.+)-(?P<pid>\d+)-(?P<process>[0-9a-f]+)-[0-9a-f]+")
_PROCESS = secrets.token_hex(4)
"""Tells this process from an earlier one with the same number, as in a restarted container."""
STALE_S = 3600.0
"""What another machine left unfinished is removed when it has not changed for so long."""
COPIES_MAX = 1000


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint on disk."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Steps committed when it was taken."""
        return self.manifest.step

    @property
    def saved_at(self) -> str:
        """When it was complete: ISO 8601, UTC."""
        return self.manifest.saved_at

    @property
    def length_bytes(self) -> int:
        """Bytes of all its files."""
        return self.manifest.length_bytes


@dataclass(frozen=True, slots=True)
class Broken:
    """A folder that has the name of a checkpoint and is none."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"{self.path.name}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which checkpoints stay: the newest ones, and milestones."""

    keep_last: int = 3
    """The newest so many."""
    keep_every: int | None = None
    """Those whose step is a multiple of this, for good."""

    def __post_init__(self) -> None:
        expect_count("keep_last", self.keep_last, least=1)
        expect_count("keep_every", self.keep_every, least=1, may_be_none=True)

    def surplus(self, checkpoints: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
        """Returns those that may go.

        Args:
            checkpoints: whole ones, newest first.
        """
        return [
            info
            for info in checkpoints[self.keep_last :]
            if self.keep_every is None or info.step % self.keep_every
        ]


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        path: of the folder; made with the first checkpoint.
        files: what changes the disk.
    """

    def __init__(self, path: str | os.PathLike[str], *, files: Files | None = None) -> None:
        expect_path("path", path)
        if files is not None:
            expect("files", files, Files, "what changes the disk, or None")
        self.path = Path(path)
        self._files = files or Files()

    # -- finding --------------------------------------------------------------------------------

    def newest(self, *, before: CheckpointInfo | None = None) -> tuple[CheckpointInfo | None, list[Broken]]:
        """Returns the newest checkpoint that is whole, and the broken ones that were passed over.

        Every byte of the one returned was read and compared with its hash.

        Args:
            before: look only at those older than this one.
        """
        broken: list[Broken] = []
        for path in self._candidates():
            if before is not None and _order(path) >= _order(before.path):
                continue
            found = self.examine(path)
            if isinstance(found, CheckpointInfo):
                return found, broken
            broken.append(found)
        return None, broken

    def examine(self, path: Path, *, reads_all: bool = True) -> CheckpointInfo | Broken:
        """Returns the checkpoint in a folder, or what is wrong with it."""
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            return Broken(path, str(error).replace(f"{path}{os.sep}", ""))
        match = _NAME.fullmatch(path.name)
        if match and int(match[1]) != manifest.step:
            return Broken(path, f"the manifest is that of step {manifest.step}")
        problem = problem_of(path, manifest, reads_all=reads_all)
        return CheckpointInfo(path, manifest) if problem is None else Broken(path, problem)

    def survey(self, *, reads_all: bool = False) -> tuple[list[CheckpointInfo], list[Broken]]:
        """Returns the whole checkpoints and the broken ones, newest first.

        Args:
            reads_all: whether to hash every file, or to look at manifests and lengths alone.
        """
        found = [self.examine(path, reads_all=reads_all) for path in self._candidates()]
        whole = [one for one in found if isinstance(one, CheckpointInfo)]
        return whole, [one for one in found if isinstance(one, Broken)]

    def _candidates(self) -> Iterator[Path]:
        """Yields folders with the name of a checkpoint, newest first."""
        try:
            names = os.listdir(self.path)
        except OSError:
            return
        paths = (self.path / name for name in names if _NAME.fullmatch(name))
        yield from sorted(paths, key=_order, reverse=True)

    # -- making ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Makes the folder, so that it survives a loss of power.

        Raises:
            OSError: it cannot be made.
        """
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        if missing:
            self._files.make_folder(self.path)
            for path in missing:
                self._files.sync_folder(path.parent)

    def work_path(self) -> Path:
        """Returns the name of a folder to write a checkpoint into; nothing is made yet."""
        return self.path / _work_name("writing")

    def publish(self, work: Path, manifest: Manifest) -> CheckpointInfo:
        """Makes a complete checkpoint of a folder whose files are all safe.

        Args:
            work: holds the files of the manifest and the manifest itself.
            manifest: what it holds.

        Raises:
            OSError: the disk failed; the checkpoint is then still under the name it had.
        """
        self._files.sync_folder(work)
        final = self._rename_to_free_name(work, manifest.step)
        self._files.sync_folder(self.path)
        return CheckpointInfo(final, manifest)

    def _rename_to_free_name(self, work: Path, step: int) -> Path:
        """Renames; a step that was reached again after going back gets a name that sorts after the old one."""
        for copy in range(1, COPIES_MAX):
            final = self.path / (f"step-{step:010d}" + (f"-{copy}" if copy > 1 else ""))
            if final.exists():
                continue
            try:
                self._files.rename(work, final)
            except OSError:
                if not final.exists():  # else another writer was quicker
                    raise
                continue
            return final
        raise CheckpointError(f"{self.path} holds {COPIES_MAX} checkpoints of step {step}")

    # -- removing -------------------------------------------------------------------------------

    def prune(self, retention: Retention, *, newest: CheckpointInfo) -> list[CheckpointInfo]:
        """Removes what the retention says may go.

        Args:
            retention: the rule.
            newest: a checkpoint known to be whole; it and all that is newer stays.

        Returns:
            What was removed.
        """
        whole, broken = self.survey()
        trusted = [info for info in whole if _order(info.path) <= _order(newest.path)]
        surplus = retention.surplus(trusted)
        doomed = [info.path for info in surplus]
        if len(trusted) >= retention.keep_last:  # whoever looks at a broken one has had time
            oldest = _order(trusted[retention.keep_last - 1].path)
            doomed += [one.path for one in broken if _order(one.path) < oldest]
        for path in doomed:
            self.remove(path)
        return surplus

    def remove(self, path: Path) -> None:
        """Removes a checkpoint: first its name, so that nobody finds half of one."""
        doomed = self.path / _work_name("removing")
        try:
            self._files.rename(path, doomed)
        except OSError:
            return  # gone already, or not ours to remove
        self._files.remove_tree(doomed)

    def sweep(self) -> list[Path]:
        """Removes what writers left unfinished when they were killed; returns their paths.

        A folder whose writer still runs on this machine stays, and one of another machine as long as
        it changed within the last hour.
        """
        swept = []
        try:
            names = os.listdir(self.path)
        except OSError:
            return []
        for name in names:
            match = _WORK_NAME.fullmatch(name)
            if match and _is_abandoned(self.path / name, match["host"], int(match["pid"]), match["process"]):
                self._files.remove_tree(self.path / name)
                swept.append(self.path / name)
        return swept


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None  # only such paths are compared
    return int(match[1]), int(match[2] or 1)


def _work_name(verb: str) -> str:
    return f".{verb}-{socket.gethostname()}-{os.getpid()}-{_PROCESS}-{secrets.token_hex(4)}"


def _is_abandoned(path: Path, host: str, pid: int, process: str) -> bool:
    if host == socket.gethostname():
        return process != _PROCESS if pid == os.getpid() else not Path(f"/proc/{pid}").exists()
    try:
        changed = max((entry.stat().st_mtime for entry in os.scandir(path)), default=path.stat().st_mtime)
    except OSError:
        return False
    return time.time() - changed > STALE_S
