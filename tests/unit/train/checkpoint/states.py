"""States to save, each a function of its step, and what befalls the disk."""

import errno
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farstep.train.checkpoint import Checkpoint, CheckpointInfo
from farstep.train.checkpoint.files import Files, OutputFile
from farstep.train.healing.state_codec import state_digest


def state_of(step: int, *, size: int = 1000) -> dict[str, Any]:
    """All that a state may hold, different at every step."""
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(size // 10, 10, generator=generator)
    return {
        "model": OrderedDict(
            weight=weight, tied=weight, half=weight[:3].bfloat16(), scalar=torch.tensor(step)
        ),
        "optimizer": {
            "state": {0: {"exp_avg": weight * 2, "step": torch.tensor(float(step))}},
            "lr": step / 7,
        },
        "rng": torch.randint(0, 255, (64,), dtype=torch.uint8, generator=generator),
        "ledger": {"step": step, "owed": [[1, 2], [5, 9]], "history": "0f"},
        "user": {"bytes": bytes([step % 256, 0]), "array": np.arange(5) * step, "tuple": (1, None, True)},
        "transposed": weight.t(),
        "empty": torch.empty(0, 3),
    }


def empty_like(state: Any) -> Any:
    """The state of a run that has just begun: the same shapes, other numbers."""
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return type(state)((key, empty_like(value)) for key, value in state.items())
    return state


def assert_is_state_of(loaded: Any, step: int, **size: int) -> None:
    assert state_digest(loaded) == state_digest(state_of(step, **size))


def loaded_newest(folder: Path, **size: int) -> CheckpointInfo | None:
    """The newest checkpoint, whose content is found to be right."""
    with Checkpoint(folder) as checkpoint:
        info = checkpoint.newest()
        if info is not None:
            template = empty_like(state_of(1, **size))
            assert_is_state_of(checkpoint.load(info, template), info.step, **size)
        return info


class FailingFiles(Files):
    """A disk on which the n-th operation fails."""

    def __init__(self, fails_at: int = -1, error: int = errno.ENOSPC) -> None:
        self.fails_at = fails_at
        self.error = error
        self.count = 0

    def operate(self) -> None:
        self.count += 1
        if self.count == self.fails_at:
            raise OSError(self.error, os.strerror(self.error))

    def make_folder(self, path: Path) -> None:
        self.operate()
        super().make_folder(path)

    def create(self, path: Path) -> OutputFile:
        self.operate()
        return FailingFile(path, self)

    def rename(self, path: Path, new_path: Path) -> None:
        self.operate()
        super().rename(path, new_path)

    def sync_folder(self, path: Path) -> None:
        self.operate()
        super().sync_folder(path)


class FailingFile(OutputFile):
    def __init__(self, path: Path, files: FailingFiles) -> None:
        self._files = files
        super().__init__(path)

    def _append(self, view: memoryview) -> None:
        self._files.operate()
        super()._append(view)

    def sync(self) -> None:
        self._files.operate()
        super().sync()
