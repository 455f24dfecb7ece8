"""Saves checkpoints in the background of the training.

Invariant: a step waits for the copy of its state and for nothing else, and no trouble of the disk
reaches the training: a failed save is an event and a warning, and earlier checkpoints stay.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from farstep.train.checkpoint.errors import CheckpointError
from farstep.train.checkpoint.files import Files
from farstep.train.checkpoint.folder import CheckpointFolder, CheckpointInfo, Retention
from farstep.train.checkpoint.manifest import (
    MANIFEST_NAME,
    STATE_NAME,
    FileEntry,
    Manifest,
    problem_of,
)
from farstep.train.checkpoint.tensors import Staging, tensor_names
from farstep.train.checkpoint.torch_storage import TensorWriter, save_tensors
from farstep.train.gloo_threads import settle_at_exit
from farstep.train.healing.state_codec import split

__all__ = ["OnEvent", "SaveHandle", "Saver"]

OnEvent = Callable[[str, dict[str, Any]], None]
"""Told of what happened: kind and JSON fields."""

NICENESS = 10
"""The writing thread gets out of the way of the training on a busy processor."""

LET_GO_S = 0.01
"""The writing thread begins after this, so that the training gets the interpreter back at once."""

_log = logging.getLogger("farstep.train.checkpoint")


class SaveHandle:
    """A save under way."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.stall_s = 0.0
        """How long the training waited for the copy."""
        self.info: CheckpointInfo | None = None
        """The checkpoint, on the rank that finished it."""
        self.error: BaseException | None = None
        """Why there is none."""
        self._is_done = threading.Event()

    def done(self) -> bool:
        """Returns whether the save has ended, well or not."""
        return self._is_done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end; returns whether it has come."""
        return self._is_done.wait(timeout_s)

    def finish(self, info: CheckpointInfo | None, error: BaseException | None = None) -> None:
        """Ends the save."""
        self.info, self.error = info, error
        self._is_done.set()


@dataclass(frozen=True, slots=True)
class _Job:
    handle: SaveHandle
    skeleton: Any
    names: Sequence[str]
    tensors: Sequence[Tensor]
    info: Mapping[str, Any]
    groups: _Groups | None


@dataclass(frozen=True, slots=True)
class _Groups:
    """Process groups of our own: what the background sends must not meet what the training sends."""

    background: dist.ProcessGroup
    control: dist.ProcessGroup


class Saver:
    """Copies states and writes them to a folder, one at a time.

    Args:
        folder: where to.
        retention: what stays.
        on_event: told of every save, failure and removal, from the background thread.
        files: what changes the disk.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        retention: Retention,
        *,
        on_event: OnEvent,
        files: Files | None = None,
    ) -> None:
        self._folder = folder
        self._retention = retention
        self._on_event = on_event
        self._files = files or Files()
        self._staging = Staging()
        self._current: SaveHandle | None = None
        self._thread: threading.Thread | None = None
        self._groups: dict[int, _Groups] = {}

    def save(
        self, step: int, state: Any, *, group: dist.ProcessGroup | None, info: Mapping[str, Any]
    ) -> SaveHandle:
        """Copies a state and starts to write it; see `Checkpoint.save`."""
        handle = SaveHandle(step)
        begin_s = time.perf_counter()
        try:
            groups = self._groups_of(group)
            if self.is_busy(group):
                raise CheckpointError("the one before is still being written")
            skeleton, tensors = split(state)
            names = tensor_names(skeleton)
            copies = self._staging.copy(tensors)
            # What is no tensor may change too, so it is turned to text now.
            job = _Job(handle, json.dumps(skeleton), names, copies, dict(info), groups)
        except Exception as error:
            self._fail(handle, error)
            return handle
        handle.stall_s = time.perf_counter() - begin_s
        self._current = handle
        self._thread = threading.Thread(target=self._run, args=(job,), name=f"checkpoint {step}")
        self._thread.start()
        return handle

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until nothing is being written; returns whether that is so."""
        return self._current is None or self._current.wait(timeout_s)

    def close(self) -> None:
        """Waits for the save under way."""
        if self._thread is not None:
            self._thread.join()

    def is_busy(self, group: dist.ProcessGroup | None) -> bool:
        """Returns whether a save is under way on any rank of the group, whose ranks all call."""
        groups, is_busy = self._groups_of(group), not self.wait(0)
        if groups is None:
            return is_busy
        flag = torch.tensor([int(is_busy)])
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=groups.control)
        return bool(flag.item())

    # -- in the thread of the training ----------------------------------------------------------

    def _groups_of(self, group: dist.ProcessGroup | None) -> _Groups | None:
        if group is None or dist.get_world_size(group) == 1:
            return None
        if id(group) not in self._groups:
            ranks = dist.get_process_group_ranks(group)
            settle_at_exit()
            background, control = (
                dist.new_group(ranks, backend="gloo", use_local_synchronization=True) for _ in range(2)
            )
            self._groups[id(group)] = _Groups(background, control)
        return self._groups[id(group)]

    # -- in the background ----------------------------------------------------------------------

    def _run(self, job: _Job) -> None:
        time.sleep(LET_GO_S)
        _give_way()
        begin_s = time.perf_counter()
        work = None
        try:
            work = self._work_path(job)
            info = self._write(job, work)
        except (Exception, CheckpointException) as error:
            if work is not None:
                self._files.remove_tree(work)
            self._fail(job.handle, error)
            return
        if info is not None:
            self._tell(
                "checkpoint_saved",
                step=info.step,
                path=str(info.path),
                bytes=info.length_bytes,
                stall_s=round(job.handle.stall_s, 6),
                write_s=round(time.perf_counter() - begin_s, 6),
            )
            self._prune(info)
        job.handle.finish(info)

    def _work_path(self, job: _Job) -> Path:
        path = self._folder.work_path()
        if job.groups is None:
            self._folder.prepare()
            return path
        cause = None
        if dist.get_rank(job.groups.background) == 0:
            try:
                self._folder.prepare()
            except OSError as error:
                cause = str(error)
        agreed: list[Any] = [str(path), cause]
        dist.broadcast_object_list(agreed, group=job.groups.background, group_src=0)
        if agreed[1] is not None:
            raise CheckpointError(agreed[1])
        return Path(agreed[0])

    def _write(self, job: _Job, work: Path) -> CheckpointInfo | None:
        writer = TensorWriter(work, self._files)
        group = None if job.groups is None else job.groups.background
        save_tensors(dict(zip(job.names, job.tensors, strict=True)), writer, group)
        if group is not None and dist.get_rank(group) != 0:
            return None
        content = json.dumps({"names": list(job.names), "skeleton": json.loads(job.skeleton)})
        state_entry = self._put(work / STATE_NAME, content.encode())
        manifest = Manifest(
            step=job.handle.step,
            saved_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            files={**writer.entries, STATE_NAME: state_entry},
            info=job.info,
        )
        self._put(work / MANIFEST_NAME, manifest.to_json())
        info = self._folder.publish(work, manifest)
        problem = problem_of(info.path, manifest)
        if problem is not None:  # so that a disk that lies does not cost us the good ones
            raise CheckpointError(f"{info.path.name} does not read back: {problem}")
        return info

    def _put(self, path: Path, content: bytes) -> FileEntry:
        with self._files.create(path) as file:
            file.write(content)
        return FileEntry(file.length_bytes, file.digest)

    def _prune(self, newest: CheckpointInfo) -> None:
        for info in self._folder.prune(self._retention, newest=newest):
            self._tell("checkpoint_removed", step=info.step, path=str(info.path))

    def _fail(self, handle: SaveHandle, error: BaseException) -> None:
        cause = _in_one_line(error)
        _log.warning("checkpoint of step %d not saved: %s", handle.step, cause)
        self._tell("checkpoint_failed", step=handle.step, cause=cause)
        handle.finish(None, error)

    def _tell(self, kind: str, **fields: Any) -> None:
        try:
            self._on_event(kind, fields)
        except Exception:
            _log.exception("the event %s could not be passed on", kind)


def _give_way() -> None:
    """Puts the calling thread behind those that train, also where these have real-time priority."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _in_one_line(error: BaseException) -> str:
    """Returns the message of an error, or of what torch has wrapped in it by rank."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        rank, first = next(iter(failures.items()))
        inner = first[0] if isinstance(first, tuple) else first
        return f"rank {rank}: {_in_one_line(inner)}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if not isinstance(error, CheckpointError) else text
