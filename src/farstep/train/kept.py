"""The checkpoints of `farstep train`: those of the library, told to the supervisor as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farstep.train.checkpoint import Checkpoint, CheckpointError
from farstep.train.checkpoint.disk import Restorable
from farstep.train.checkpoint.saver import OnEvent
from farstep.train.errors import RunFailed

__all__ = ["KeptCheckpoint"]


class KeptCheckpoint(Checkpoint):
    """Checkpoints in the folder of a run.

    Args:
        folder: where they are.
        every_steps: save so often; None: at the end alone.
        resumes: go on from the newest one, without which the run fails; otherwise nothing is loaded.
        tell: is told action and fields of everything that becomes of one, from any thread.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every_steps: int | None,
        resumes: bool,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        super().__init__(folder, every_steps=every_steps)
        self._resumes = resumes
        self._tell = tell
        self._newest_saved: int | None = None

    def attach(self, *, ranks: int, on_event: OnEvent, info: Mapping[str, Any]) -> None:
        """Makes it the checkpoint of a run."""

        def on_any(kind: str, fields: dict[str, Any]) -> None:
            if kind == "checkpoint_saved":
                self._newest_saved = fields["step"]
            on_event(kind, fields)
            self._tell(kind.removeprefix("checkpoint_"), fields)

        super().attach(ranks=ranks, on_event=on_any, info=info)

    def load_newest(self, adapter: Restorable) -> bool:
        """Restores the newest checkpoint that is whole, if the run is resumed.

        Raises:
            RunFailed: there is none, or it does not fit the model.
        """
        if not self._resumes:
            return False
        try:
            if super().load_newest(adapter):
                return True
        except CheckpointError as error:
            raise RunFailed(f"cannot resume: {error}") from error
        raise RunFailed(f"cannot resume: {self.folder.path} holds no checkpoint that is whole")

    def save_last(self, step: int, adapter: Restorable) -> None:
        """Saves the state at the end of the run, unless that is done, and waits until it is written."""
        self.forget()  # what was due is made up for by this one
        self.wait()
        if self._newest_saved != step:
            self.save(step, adapter.capture(), info=self._info).wait()
