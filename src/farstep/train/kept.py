"""Checkpoints of a run that `farstep train` has started: rank 0 saves, every rank resumes."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from farstep.train.checkpoint import Checkpoint, CheckpointError
from farstep.train.errors import RunFailed
from farstep.train.orders import Orders
from farstep.train.trainer import LoopState

__all__ = ["KeptCheckpoints"]


class KeptCheckpoints:
    """Saves the state of the loop every so many steps, and at its end; restores the newest.

    Args:
        orders: of the rank; they name the folder.
        on_event: told what became of a checkpoint, from any thread.
    """

    def __init__(self, orders: Orders, on_event: Callable[..., None]) -> None:
        assert orders.checkpoints is not None  # else there is nothing to keep
        self._orders = orders
        self._checkpoint = Checkpoint(
            orders.checkpoints, every_steps=orders.config.run.checkpoint_every_steps or None
        )

        self._on_event = on_event
        self._has_begun = False
        self._early: list[tuple[str, dict[str, Any]]] = []
        """What happened before the run began, and is told when it has."""
        self._info = {"seed": orders.config.run.seed, "steps": orders.config.run.steps}
        self._checkpoint.attach(ranks=1, on_event=self._tell, info=self._info)

    def resume(self, state: LoopState) -> None:
        """Restores the newest checkpoint that is whole, if the orders say so.

        Raises:
            RunFailed: there is none, or it does not fit the model.
        """
        if not self._orders.resumes:
            return
        try:
            if self._checkpoint.load_newest(state):
                return
        except CheckpointError as error:
            raise RunFailed(f"cannot resume: {error}") from error
        raise RunFailed(f"cannot resume: {self._orders.checkpoints} holds no checkpoint that is whole")

    def at_boundary(self, state: LoopState, *, is_last: bool) -> None:
        """Saves if it is due, or the last chance to do so."""
        self._has_begun = True
        while self._early:
            self._tell(*self._early.pop(0))
        if not is_last:
            self._checkpoint.at_boundary(state.committed, state, is_writer=self._orders.rank == 0)
        elif self._orders.rank == 0:
            self._checkpoint.wait()
            self._checkpoint.save(state.committed, state.capture(), info=self._info).wait()

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        if self._has_begun:
            self._on_event(action=kind.removeprefix("checkpoint_"), **fields)
        else:
            self._early.append((kind, fields))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._checkpoint.close()
