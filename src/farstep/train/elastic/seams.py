"""What the elastic trainer asks of the parts around it, as types.

The trainer works with none of them: without a data source every seat counts the same, without healing a newcomer
gets the whole state from a peer while the others wait, without checkpoints nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from torch import Tensor

__all__ = [
    "CheckpointPort",
    "DataSource",
    "HealingPort",
    "InnerRankLost",
    "RunOver",
    "StateAdapter",
    "StepMeta",
    "Thresholds",
]


class RunOver(Exception):
    """There is nothing left to do here: the run has ended, or this member has left it."""


class InnerRankLost(RuntimeError):
    """A rank of this replica group is gone, and the group with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeta:
    """What a replica needs, beside the reduced gradient, to make a step exactly as all others made it.

    Attributes:
        step: index of the step, from 0.
        generation: membership that reduced the gradient.
        loss: mean over all samples of the step.
        norm: Euclidean norm of the gradient, as agreed on by all members.
        counts: samples that each seat contributed.
        data: the data source's record of what was used up; empty without one.
        is_applied: False for a step whose gradient was not finite: counters move, parameters stay.
    """

    step: int
    generation: int
    loss: float
    norm: float
    counts: tuple[int, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    is_applied: bool = True

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values; loss and norm travel exactly, as hexadecimal text."""
        exact = {"loss": self.loss.hex(), "norm": self.norm.hex()}
        return {**asdict(self), "counts": list(self.counts), **exact}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StepMeta:
        """Undoes :meth:`to_json`.

        Raises:
            KeyError, TypeError, ValueError: a field is missing or of another type.
        """
        return cls(
            step=int(values["step"]),
            generation=int(values["generation"]),
            loss=float.fromhex(values["loss"]),
            norm=float.fromhex(values["norm"]),
            counts=tuple(int(count) for count in values["counts"]),
            data=dict(values["data"]),
            is_applied=bool(values["is_applied"]),
        )


class StateAdapter(Protocol):
    """The state of a replica as healing and checkpoints see it. Used in the training thread alone."""

    @property
    def committed(self) -> int:
        """Steps committed so far."""

    @property
    def flats(self) -> Sequence[Tensor]:
        """The flat buckets, in order; a reduced gradient has their sizes and types."""

    def capture(self) -> dict[str, Any]:
        """Returns the state as nested dicts and lists of tensors and plain values; tensors are not copied."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replaces the state by a captured one."""

    def apply_reduced(self, flats: Sequence[Tensor], meta: Mapping[str, Any]) -> None:
        """Makes the next step from a reduced gradient, bit for bit as those that reduced it.

        Args:
            flats: the reduced buckets; empty for a refused step.
            meta: a :class:`StepMeta` as JSON values.
        """


class DataSource(Protocol):
    """Deals samples to seats; :class:`farstep.train.elastic.samples.ShardSource` is the product's."""

    def counts(self) -> tuple[int, ...]:
        """Samples of every seat in the step under way."""

    def redeal(self) -> Any:
        """Deals the step under way anew, among the seats of now; returns this seat's batch."""

    def keep(self, seats: int, holders: Sequence[int | None]) -> None:
        """Goes on with a deal among earlier seats; what none of the holders has is dealt later.

        Args:
            seats: among how many it was dealt.
            holders: by present seat: which part it has, or None.
        """

    @property
    def inner_scale(self) -> float:
        """Factor of this rank's loss that makes the mean over its group's ranks the mean over their samples."""

    def commit(self) -> dict[str, Any]:
        """Marks the samples of the step under way as used; returns what does the same on any replica, as JSON."""

    def replay(self, record: Mapping[str, Any]) -> None:
        """Marks the samples of a step as used that another member committed."""

    def state(self) -> dict[str, Any]:
        """Position in the data, as JSON values."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a position."""

    def forget(self) -> None:
        """The step under way goes by the deal of the batch handed out last again."""


class HealingPort(Protocol):
    """Brings newcomers up to the state of the run, and serves those that are."""

    def on_generation(self, generation: Any, seat: int) -> None:
        """A new membership is in force."""

    def on_committed(self, flats: Sequence[Tensor], meta: Mapping[str, Any]) -> None:
        """A step's gradient is reduced and will be applied; it must be copied within the call if needed."""

    def at_boundary(self, step: int) -> None:
        """So many steps are committed and none is under way."""

    def standstill(self) -> AbstractContextManager[None]:
        """While the context lasts the state does not change, so that it can be given away at any time."""

    def waiting(self) -> AbstractContextManager[None]:
        """While the context lasts no step is under way, so that nothing that others need is held back."""

    @property
    def num_receivers(self) -> int:
        """Members that are served now."""

    def linger(self, timeout_s: float) -> None:
        """At the end of the run: lets those that follow get the last steps, but not for longer than this."""

    def wake(self) -> None:
        """Has :meth:`follow` look at once whether it is done. From any thread."""

    def follow(self, is_done: Callable[[], bool]) -> None:
        """Pulls the state of the run, announces it and keeps up with it until told to end."""

    def catch_up(
        self, step: int, sources: Sequence[str], timeout_s: float, is_over: Callable[[], bool]
    ) -> bool:
        """Makes the steps that are missing up to ``step`` of those committed elsewhere; False if it cannot."""

    def close(self) -> None:
        """Ends everything under way."""


class CheckpointPort(Protocol):
    """Writes the state now and then, and finds the newest that is complete."""

    def attach(
        self, *, ranks: int, on_event: Callable[[str, dict[str, Any]], None], info: Mapping[str, Any]
    ) -> None:
        """Makes it the checkpoint of a run, whose replica groups have so many ranks."""

    def load_newest(self, adapter: StateAdapter) -> bool:
        """Restores the newest complete checkpoint if there is one."""

    def at_boundary(self, step: int, adapter: StateAdapter, *, is_writer: bool) -> None:
        """May write; must not raise."""

    def demand(self) -> None:
        """Whatever is due: the state of the boundary that was just told is saved by :meth:`close`."""

    def forget(self) -> None:
        """Makes up for nothing any more that was due: the state may be in the middle of a step."""

    def close(self) -> None:
        """Waits for what is being written, and makes up for what was due meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Time limits of the trainer; every wait has one, and what happens after it is named.

    Attributes:
        membership_report_s: how often a worker that waits for a new membership says what it waits for.
        leave_s: a member that wants to leave goes after this long, whether or not the others have let it go.
    """

    membership_report_s: float = 5.0
    leave_s: float = 10.0
