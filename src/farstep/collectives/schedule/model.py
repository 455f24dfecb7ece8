"""The shape of a schedule: which element range goes from whom to whom, and when.

A schedule is plain data. The communicator runs it over a transport, the simulator runs it over a modelled
fabric and :mod:`farstep.collectives.schedule.executor` runs it in plain Python to prove it right.

Invariant: on any one rank two element ranges named by a schedule are either equal or disjoint. That is what
lets a runner cut every transfer into chunks and order the accesses to a chunk without looking at any other.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class Action(enum.Enum):
    """What the target does with the elements it receives."""

    COPY = "copy"
    """Stores them."""
    REDUCE_LEFT = "reduce_left"
    """Stores ``received (op) own``: the received value is the left operand."""
    REDUCE_RIGHT = "reduce_right"
    """Stores ``own (op) received``: the received value is the right operand."""


@dataclass(frozen=True, slots=True)
class Range:
    """A run of elements.

    Attributes:
        offset: index of the first element.
        length: number of elements, 0 or more.
    """

    offset: int
    length: int

    @property
    def stop(self) -> int:
        """Index after the last element."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message: ``source`` sends a range to ``target``, which copies or reduces it.

    Attributes:
        step: a rank handles the accesses to one range in the order of their steps, sends before receives.
        source: rank that sends.
        target: rank that receives, never equal to ``source``.
        source_offset: first element in the source's vector.
        target_offset: first element in the target's vector.
        length: number of elements, at least 1.
        action: what the target does with them.
        completes: whether the target then holds the reduction over all ranks; a mean is divided here, once.
    """

    step: int
    source: int
    target: int
    source_offset: int
    target_offset: int
    length: int
    action: Action = Action.COPY
    completes: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """All transfers of one collective, or those of one rank if it was made with ``involving``.

    Every rank has a work vector. Unless ``separate_input`` is set it starts as a copy of the rank's input and
    sends read from it; with ``separate_input`` sends read from the input and receives write to the work
    vector, which are then two vectors of different layout.

    Attributes:
        name: names the algorithm in errors and traces.
        size: number of ranks.
        transfers: sorted by step, then by target offset, then by source rank.
        separate_input: whether input and work vector have different layouts.
        is_zero_copy: whether a range may be sent straight from its place and received straight into its
            place: nothing overwrites a range before everything sent from it is known to have arrived.
    """

    name: str
    size: int
    transfers: tuple[Transfer, ...]
    separate_input: bool = False
    is_zero_copy: bool = True

    @property
    def num_steps(self) -> int:
        """Number of steps, 0 if nothing is sent."""
        return max((t.step for t in self.transfers), default=-1) + 1

    def sent_by(self, rank: int) -> tuple[Transfer, ...]:
        """Transfers a rank sends, in order."""
        return tuple(t for t in self.transfers if t.source == rank)

    def received_by(self, rank: int) -> tuple[Transfer, ...]:
        """Transfers a rank receives, in order."""
        return tuple(t for t in self.transfers if t.target == rank)


def split_evenly(length: int, parts: int, *, offset: int = 0) -> tuple[Range, ...]:
    """Cuts ``length`` elements into ``parts`` consecutive ranges whose lengths differ by at most one.

    The longer ranges come first. Ranges are empty when there are more parts than elements.

    Raises:
        ValueError: ``parts`` is below 1 or ``length`` is negative.
    """
    if parts < 1:
        raise ValueError(f"parts is {parts}; at least 1 is needed")
    if length < 0:
        raise ValueError(f"length is {length}; it cannot be negative")
    base, longer = divmod(length, parts)
    ranges = []
    for index in range(parts):
        here = base + (1 if index < longer else 0)
        ranges.append(Range(offset, here))
        offset += here
    return tuple(ranges)


def consecutive(lengths: Iterable[int]) -> tuple[Range, ...]:
    """Turns lengths into ranges that follow each other from element 0."""
    ranges = []
    offset = 0
    for length in lengths:
        ranges.append(Range(offset, length))
        offset += length
    return tuple(ranges)


def make_schedule(
    name: str,
    size: int,
    transfers: Iterable[Transfer],
    *,
    separate_input: bool = False,
    is_zero_copy: bool = True,
) -> Schedule:
    """Sorts transfers into the order both ends of every link rely on, and drops the empty ones."""
    kept = [t for t in transfers if t.length > 0]
    kept.sort(key=lambda t: (t.step, t.target_offset, t.source, t.target))
    return Schedule(name, size, tuple(kept), separate_input, is_zero_copy)


def check_members(members: Sequence[int], size: int) -> None:
    """Raises ValueError unless the members are distinct ranks below ``size``."""
    if len(set(members)) != len(members):
        raise ValueError(f"members {list(members)} name a rank twice")
    if any(not 0 <= rank < size for rank in members):
        raise ValueError(f"members {list(members)} must lie in 0..{size - 1}")


def check_root(root: int, size: int) -> None:
    """Raises ValueError unless ``root`` is a rank."""
    if not 0 <= root < size:
        raise ValueError(f"root is {root}; it must lie in 0..{size - 1}")
