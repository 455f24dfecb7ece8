"""Checkpoints on disk: `Checkpoint`, which a trainer saves to and a run resumes from."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from farstep.fabric.expected import expect_count, expect_folder
from farstep.train.checkpoint.errors import CheckpointError
from farstep.train.checkpoint.files import Files
from farstep.train.checkpoint.folder import Broken, CheckpointFolder, CheckpointInfo, Retention
from farstep.train.checkpoint.manifest import STATE_NAME
from farstep.train.checkpoint.saver import OnEvent, SaveHandle, Saver
from farstep.train.checkpoint.tensors import tensor_names
from farstep.train.checkpoint.torch_storage import TargetOf, load_tensors
from farstep.train.healing.errors import ImageRejected
from farstep.train.healing.state_codec import join, split

__all__ = ["Checkpoint"]

_OPTIMIZER_STATE = re.compile(r"optimizer\.state\.(\d+)\.")

_log = logging.getLogger("farstep.train.checkpoint")


class Restorable(Protocol):
    """A state that can be saved and restored."""

    @property
    def committed(self) -> int:
        """Steps committed so far."""

    def capture(self) -> dict[str, Any]:
        """Returns the state as nested dicts and lists of tensors and plain values; tensors are not copied."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replaces the state by a captured one."""


class Checkpoint:
    """Saves the state of a run to a folder, now and then, and finds the newest one that is whole.

    Saving copies the state, and writes it in the background while training goes on. A checkpoint
    appears under its name complete or not at all; each of its files is hashed as it is written and
    compared when it is loaded. Trouble with the disk never ends a run: it is an event and a warning,
    and earlier checkpoints stay.

    ```python
    trainer = farstep.Trainer(run, model, optimizer, checkpoint=farstep.Checkpoint("ckpt", every_steps=500))
    ```

    Args:
        folder: of the run's checkpoints; for a replica group of several processes, one that all see.
        every_steps: save when the number of committed steps is a multiple; None to save on demand alone.
        keep_last: newest checkpoints to keep.
        keep_every: steps whose multiples are kept for good; None for none.
        files: what changes the disk; for tests.

    Raises:
        ConfigError: an argument does not fit, or there is a file where the folder belongs.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        keep_last: int = 3,
        keep_every: int | None = None,
        files: Files | None = None,
    ) -> None:
        expect_folder("folder", folder)
        expect_count("every_steps", every_steps, least=1, may_be_none=True)
        self.every_steps = every_steps
        self.on_event: OnEvent = lambda kind, fields: None
        """Told of saves, failures and removals; from any thread."""
        self._folder = CheckpointFolder(folder, files=files)
        self._saver = Saver(
            self._folder,
            Retention(keep_last=keep_last, keep_every=keep_every),
            on_event=lambda kind, fields: self.on_event(kind, fields),
            files=files,
        )
        self._is_swept = False
        self._is_overdue = False
        self._last: tuple[int, Restorable] | None = None
        self._saved_step: int | None = None
        self._group: dist.ProcessGroup | None = None
        self._info: dict[str, Any] = {}

    @property
    def folder(self) -> CheckpointFolder:
        """The folder of the checkpoints."""
        return self._folder

    # -- saving ---------------------------------------------------------------------------------

    def is_due(self, step: int) -> bool:
        """Returns whether a checkpoint belongs to this number of committed steps; the same on all members."""
        return self.every_steps is not None and step > 0 and step % self.every_steps == 0

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        group: dist.ProcessGroup | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> SaveHandle:
        """Copies the state and writes it in the background.

        If the checkpoint before is still being written, this one is left out, as an event says.

        Args:
            step: committed steps.
            state: nested dicts, lists and tuples of tensors, numbers, text and bytes. Distributed
                tensors are written in parts by the ranks that hold them.
            group: processes of the replica group, which all call; None for this process alone. The
                first call makes groups of its own from it.
            info: JSON to note with it, such as run and generation.

        Returns:
            The save under way; its error, if any, is reported and never raised.
        """
        if not self._is_swept:
            self._is_swept = True
            for path in self._folder.sweep():
                _log.info("removed %s, left unfinished by a writer that is gone", path)
        return self._saver.save(step, state, group=group, info=info or {})

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until nothing is being written; returns whether that is so."""
        return self._saver.wait(timeout_s)

    def close(self) -> None:
        """Waits for the save under way, and makes up for one that was due meanwhile."""
        self._saver.close()
        if self._is_overdue and self._last is not None:
            self._is_overdue = False
            step, adapter = self._last
            if adapter.committed == step:  # it still is the state of that boundary
                self.save(step, adapter.capture(), group=self._group, info=self._info)
                self._saver.close()
        self._last = None

    # -- loading --------------------------------------------------------------------------------

    def newest(
        self, *, before: CheckpointInfo | None = None, group: dist.ProcessGroup | None = None
    ) -> CheckpointInfo | None:
        """Returns the newest checkpoint that is whole, or None; every byte of it was compared.

        Broken ones are named in a warning and an event, and passed over.

        Args:
            before: look only at those older than this one.
            group: processes of the replica group, which all call and get the same answer.
        """
        if group is None or dist.get_world_size(group) == 1:
            return self._newest_here(before)
        agreed: list[Any] = [self._newest_here(before) if dist.get_rank(group) == 0 else None]
        dist.broadcast_object_list(agreed, group=group, group_src=0)
        found: CheckpointInfo | None = agreed[0]
        return found

    def _newest_here(self, before: CheckpointInfo | None) -> CheckpointInfo | None:
        info, broken = self._folder.newest(before=before)
        for one in broken:
            self._report(one)
        return info

    def _report(self, broken: Broken) -> None:
        _log.warning("checkpoint %s is broken and passed over: %s", broken.path, broken.problem)
        self.on_event("checkpoint_broken", {"path": str(broken.path), "cause": broken.problem})

    def load(
        self,
        info: CheckpointInfo,
        template: Mapping[str, Any],
        *,
        group: dist.ProcessGroup | None = None,
    ) -> Any:
        """Reads a checkpoint.

        Tensors of the template with the same name and shape are filled in place, each rank reading
        the parts it holds; others are made anew. Numbers and structure are those of the checkpoint.

        Args:
            info: from `newest`.
            template: the state of the run as it is, whose tensors may be distributed in any way.
            group: processes of the replica group, which all call; None for this process alone.

        Returns:
            The state as it was saved.

        Raises:
            CheckpointError: a file cannot be read, or a tensor has another shape than in the template.
        """
        skeleton, tensors = split(template)
        templates = dict(zip(tensor_names(skeleton), tensors, strict=True))
        return self._load(info, lambda name, shape: templates.get(name), group)

    def _load(self, info: CheckpointInfo, target_of: TargetOf, group: dist.ProcessGroup | None) -> Any:
        try:
            content = json.loads((info.path / STATE_NAME).read_bytes())
            names, skeleton = [str(name) for name in content["names"]], content["skeleton"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{info.path / STATE_NAME} cannot be read: {error}") from error
        alone = group is None or dist.get_world_size(group) == 1
        try:
            loaded = load_tensors(info.path, names, target_of, None if alone else group)
            return join(skeleton, [loaded[name] for name in names])
        except (OSError, RuntimeError, ValueError, ImageRejected, CheckpointException) as error:
            raise CheckpointError(f"{info.path} cannot be loaded: {error}") from error

    # -- what a trainer calls -------------------------------------------------------------------

    def attach(self, *, ranks: int, on_event: OnEvent, info: Mapping[str, Any]) -> None:
        """Makes it the checkpoint of a run.

        Args:
            ranks: processes of the replica group.
            on_event: told of saves, failures and removals; from any thread.
            info: JSON to note with every checkpoint.

        Raises:
            CheckpointError: there are several processes, and they are not those of torch.distributed.
        """
        if ranks > 1:
            world = dist.get_world_size() if dist.is_initialized() else 1
            if world != ranks:
                raise CheckpointError(
                    f"the replica group has {ranks} processes and torch.distributed {world}; call "
                    "torch.distributed.init_process_group() in each of them, so that they can save together"
                )
            self._group = dist.group.WORLD
        self.on_event = on_event
        # For whoever resumes by hand; nothing that is read from a folder is ever run.
        self._info = {"command": list(sys.orig_argv), "working_folder": os.getcwd(), **info}

    def load_newest(self, adapter: Restorable) -> bool:
        """Restores the newest checkpoint that is whole and fits, if there is one; all processes call."""
        info = self.newest(group=self._group)
        while info is not None:
            targets = _Targets(adapter)
            try:
                state = self._load(info, targets, self._group)
            except CheckpointError as error:
                if not _is_lost(error, info):
                    raise
                self._report(Broken(info.path, str(error)))  # it was read a moment ago: the disk is going
                info = self.newest(before=info, group=self._group)
                continue
            adapter.restore(state)
            _log.info("resumed from %s: step %d, saved at %s", info.path, info.step, info.saved_at)
            self.on_event("checkpoint_loaded", {"step": info.step, "path": str(info.path)})
            return True
        return False

    def at_boundary(self, step: int, adapter: Restorable, *, is_writer: bool) -> None:
        """Saves if one is due; never raises for trouble with the disk.

        If the one before is still being written, it is saved at the first step that finds it written, or at the end.
        """
        if not is_writer:
            self._is_overdue = False
            return
        self._last = step, adapter
        self._is_overdue |= self.is_due(step)
        if self._is_overdue and not self._saver.is_busy(self._group):
            self._is_overdue, self._saved_step = False, step
            self.save(step, adapter.capture(), group=self._group, info=self._info)

    def demand(self) -> None:
        """Has the state of the boundary that was just told saved at the end, whether or not it is due."""
        if self._last is not None and self._last[0] != self._saved_step:
            self._is_overdue = True

    def forget(self) -> None:
        """Makes up for nothing any more: the state may have been left in the middle of a step."""
        self._is_overdue = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Targets:
    """Where the tensors of a checkpoint are to be read to: those of a replica.

    An optimizer that has made no step has no state yet; what belongs to a distributed parameter is
    made distributed as the parameter is.
    """

    def __init__(self, adapter: Restorable) -> None:
        skeleton, tensors = split(adapter.capture())
        self._tensors = dict(zip(tensor_names(skeleton), tensors, strict=True))
        optimizer = getattr(adapter, "optimizer", None)
        groups = [] if optimizer is None else optimizer.param_groups
        self._parameters = [parameter for group in groups for parameter in group["params"]]

    def __call__(self, name: str, shape: torch.Size) -> torch.Tensor | None:
        match = _OPTIMIZER_STATE.match(name)
        if name in self._tensors or match is None or int(match[1]) >= len(self._parameters):
            return self._tensors.get(name)
        parameter = self._parameters[int(match[1])].detach()
        is_like = isinstance(parameter, DTensor) and parameter.shape == shape
        return torch.zeros_like(parameter) if is_like else None


def _is_lost(error: CheckpointError, info: CheckpointInfo) -> bool:
    """Returns whether the files are to blame, and not a model that they do not fit."""
    return isinstance(error.__cause__, OSError | CheckpointException) or not info.path.exists()
