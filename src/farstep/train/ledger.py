"""Which samples belong to which step: the data's part of the state of a run.

Invariant: the samples of a step are a function of the seed and of the commits before it, and within
an epoch every sample is committed exactly once, whatever the members of the run did in between.
Nothing here knows torch, reads a clock or does input and output.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from farstep.fabric.errors import quoted
from farstep.train.errors import ConfigError, TrainError
from farstep.train.permutation import permute_many

__all__ = ["BatchRule", "CommitRecord", "Deal", "LedgerError", "Range", "SampleLedger", "cut_evenly"]

BatchRule = Literal["global", "per_group"]
"""Whether the batch size is that of the whole run (constant), or of each seat (grows with them)."""

STATE_VERSION = 1

BLOCK = 4096
"""Positions of an epoch's order that are worked out at once: a batch alone is too few to be quick."""


class LedgerError(TrainError):
    """A commit does not fit the ledger: it was dealt from another state, or names seats it does not have."""


class Range(NamedTuple):
    """Consecutive positions of an epoch's order: start <= position < stop."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """Everything a ledger needs to repeat a commit: small, JSON, and enough to replay a run."""

    step: int
    """Number of the step, counted from 0."""
    seats: int
    shares: tuple[int, ...] | None = None
    """Relative share of each seat; None for equal ones."""
    contributed: tuple[int, ...] | None = None
    """Seats whose samples went into the step; None for all."""

    def to_json(self) -> dict[str, Any]:
        """Returns the record as a JSON object."""
        record: dict[str, Any] = {"step": self.step, "seats": self.seats}
        if self.shares is not None:
            record["shares"] = list(self.shares)
        if self.contributed is not None:
            record["contributed"] = list(self.contributed)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Reads a record.

        Raises:
            LedgerError: a field is missing or of another type.
        """
        try:
            shares, contributed = record.get("shares"), record.get("contributed")
            return cls(
                step=_integer(record["step"]),
                seats=_integer(record["seats"]),
                shares=None if shares is None else tuple(_integer(share) for share in shares),
                contributed=None if contributed is None else tuple(_integer(seat) for seat in contributed),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise LedgerError(
                f"a commit record needs integers step and seats; got {quoted(record)}"
            ) from error


@dataclass(frozen=True, slots=True)
class Deal:
    """The samples of one step, dealt to the seats."""

    step: int
    """Number of the step, counted from 0."""
    epoch: int
    ranges: tuple[tuple[Range, ...], ...]
    """Positions in the epoch's order, by seat."""
    shares: tuple[int, ...] | None
    is_last_of_epoch: bool
    """The epoch ends when all seats commit this deal."""
    origin: str
    """Digest of the ledger that dealt."""
    counts: tuple[int, ...] = field(init=False)
    """Samples by seat."""
    total: int = field(init=False)
    """Samples of the step."""

    def __post_init__(self) -> None:
        counts = tuple(sum(len(part) for part in parts) for parts in self.ranges)
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "total", sum(counts))

    @property
    def seats(self) -> int:
        """Number of seats it was dealt to."""
        return len(self.ranges)

    @property
    def is_even(self) -> bool:
        """All seats have equally many samples, so a plain mean of their gradients is the right one."""
        return min(self.counts) == max(self.counts)

    def weight(self, seat: int) -> float:
        """Returns the part of the step's samples that one seat has.

        The gradient of a step is the sum over the seats of weight times the seat's mean gradient.
        """
        return self.counts[seat] / self.total

    def positions(self, seat: int) -> NDArray[np.int64]:
        """Returns a seat's positions in the epoch's order, int64 of shape (counts[seat],)."""
        parts = [np.arange(start, stop, dtype=np.int64) for start, stop in self.ranges[seat]]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def record(self, contributed: Collection[int] | None = None) -> CommitRecord:
        """Returns the record of committing this deal."""
        seats = None if contributed is None else tuple(sorted(contributed))
        return CommitRecord(step=self.step, seats=self.seats, shares=self.shares, contributed=seats)


class SampleLedger:
    """Deals the samples of a data set to the seats of a run, and remembers which were used.

    `deal` changes nothing: until a step is committed, the same samples are dealt again, to however
    many seats there are by then. A commit may leave seats out; what was dealt to them is owed, and
    comes first in the next deal.

    An epoch visits the samples in an order of its own, a keyed permutation of the seed and the
    number of the epoch. Its last batch is smaller if the batch size does not divide the number of
    samples, or is left out with `drop_last` (other samples in every epoch). An epoch that is
    shorter than one batch is one smaller batch, which is never left out.

    Args:
        num_samples: length of the data set.
        batch_size: samples per step; of the whole run or of each seat, as `batch` says.
        seed: of the order.
        batch: "global" keeps the number of samples per step constant whatever the number of seats;
            "per_group" lets it grow with them.
        shuffle: visit the samples in a random order; their own order otherwise.
        drop_last: leave out the last, smaller batch of an epoch.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int,
        seed: int = 0,
        batch: BatchRule = "global",
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if num_samples < 1:
            raise ConfigError(f"the data set has {num_samples} samples; valid: at least 1")
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; valid: at least 1")
        if batch not in ("global", "per_group"):
            raise ConfigError(f'batch is {quoted(batch)}; valid: "global", "per_group"')
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.batch = batch
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._step = 0
        self._epoch = 0
        self._cursor = 0
        self._owed: tuple[Range, ...] = ()
        self._used = 0
        self._history = "0" * 16

    @property
    def step(self) -> int:
        """Steps committed so far."""
        return self._step

    @property
    def epoch(self) -> int:
        """Number of the epoch whose samples come next, unless the rest of it is left out."""
        return self._epoch

    @property
    def used(self) -> int:
        """Samples that went into steps since the run began."""
        return self._used

    @property
    def owed(self) -> tuple[Range, ...]:
        """Positions of this epoch that were dealt to seats which did not contribute."""
        return self._owed

    @property
    def remaining(self) -> int:
        """Samples of this epoch that were not used yet."""
        return self.num_samples - self._cursor + sum(len(part) for part in self._owed)

    # -- dealing --------------------------------------------------------------------------------

    def deal(self, seats: int, shares: Sequence[int] | None = None) -> Deal:
        """Returns the samples of the next step; changes nothing.

        Seat i gets the i-th part of the batch. Parts differ by one sample at most, larger ones
        first, or follow `shares` by largest remainder.

        Args:
            seats: number of seats, at least 1.
            shares: relative share of each seat, integers of at least 0, not all 0.

        Raises:
            LedgerError: seats or shares are out of range.
        """
        checked = _checked_shares(seats, shares)
        size = self.batch_size * (seats if self.batch == "per_group" else 1)
        epoch, cursor, owed = self._epoch, self._cursor, self._owed
        if self._leaves_out_rest(size):
            epoch, cursor, owed = epoch + 1, 0, ()
        taken = list(_take(owed, size))
        fresh = min(size - sum(len(part) for part in taken), self.num_samples - cursor)
        if fresh:
            taken.append(Range(cursor, cursor + fresh))
        total = sum(len(part) for part in taken)
        left = self.num_samples - cursor + sum(len(part) for part in owed) - total
        is_last = left == 0 or (self.drop_last and left < size)
        ranges = tuple(_cut(taken, _split(total, seats, checked)))
        return Deal(self._step, epoch, ranges, checked, is_last, self.digest())

    def _leaves_out_rest(self, size: int) -> bool:
        has_begun = self.remaining < self.num_samples
        return self.drop_last and has_begun and self.remaining < size

    def indices(self, deal: Deal, seat: int) -> NDArray[np.int64]:
        """Returns the numbers of a seat's samples in the data set, int64 of shape (counts[seat],)."""
        return self.at(deal.epoch, deal.positions(seat))

    def at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns which samples of the data set stand at positions of an epoch's order."""
        if not self.shuffle:
            return positions
        samples = np.empty_like(positions)
        blocks = positions // BLOCK
        for block in np.unique(blocks).tolist():
            order = _order_of_block(self.num_samples, self.seed, epoch, block)
            is_in = blocks == block
            samples[is_in] = order[positions[is_in] - block * BLOCK]
        return samples

    # -- committing -----------------------------------------------------------------------------

    def commit(self, deal: Deal, contributed: Collection[int] | None = None) -> CommitRecord:
        """Marks the samples of a step as used.

        Args:
            deal: what `deal` returned for the state this ledger is in.
            contributed: seats whose samples went into the step, at least one; None for all.

        Returns:
            What another ledger in the same state needs to make the same commit (`replay`).

        Raises:
            LedgerError: the deal is of another state, or a seat is not among its seats.
        """
        if deal.step != self._step or deal.origin != self.digest():
            raise LedgerError(
                f"step {deal.step} was dealt from ledger {deal.origin}; the ledger stands before step "
                f"{self._step} at {self.digest()}, so deal again"
            )
        record = deal.record(contributed)
        left_out = _left_out(deal, record)
        if deal.epoch != self._epoch:  # the rest of an epoch was left out
            self._epoch, self._cursor, self._owed = deal.epoch, 0, ()
        dealt = sorted(part for parts in deal.ranges for part in parts)
        still_owed = _subtract(self._owed, dealt)
        self._owed = tuple(_merged([*still_owed, *left_out]))
        self._cursor = max(self._cursor, max(part.stop for part in dealt))
        self._used += deal.total - sum(len(part) for part in left_out)
        self._step += 1
        self._history = _hashed([self._history, record.to_json()])
        if self.remaining == 0:
            self._epoch, self._cursor = self._epoch + 1, 0
        return record

    def replay(self, record: CommitRecord | Mapping[str, Any]) -> Deal:
        """Makes a commit that another ledger made in the state this one is in.

        Returns:
            The samples that it dealt.

        Raises:
            LedgerError: the record is of another step, or cannot be read.
        """
        if not isinstance(record, CommitRecord):
            record = CommitRecord.from_json(record)
        if record.step != self._step:
            raise LedgerError(f"the record is of step {record.step}; the ledger stands before {self._step}")
        deal = self.deal(record.seats, record.shares)
        self.commit(deal, record.contributed)
        return deal

    # -- state ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Returns the whole state as a small JSON object.

        It grows with the number of owed ranges alone, never with the data set or the run.
        """
        return {
            "version": STATE_VERSION,
            "num_samples": self.num_samples,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "batch": self.batch,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "step": self._step,
            "epoch": self._epoch,
            "cursor": self._cursor,
            "owed": [list(part) for part in self._owed],
            "used": self._used,
            "history": self._history,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where another ledger stood.

        The batch size and the rules of the batch may differ from those of the state; they count
        from the next deal on.

        Raises:
            ConfigError: the state is of another data set or order, or cannot be read.
        """
        try:
            if state["version"] != STATE_VERSION:
                raise ConfigError(
                    f"ledger state has version {quoted(state['version'])}; valid: {STATE_VERSION}"
                )
            for name in ("num_samples", "seed", "shuffle"):
                if state[name] != getattr(self, name):
                    raise ConfigError(
                        f"ledger state has {name} {quoted(state[name])}, this run {quoted(getattr(self, name))}; "
                        "an epoch can only be continued on the same data in the same order"
                    )
            numbers = {name: _integer(state[name]) for name in ("step", "epoch", "cursor", "used")}
            owed = tuple(Range(_integer(start), _integer(stop)) for start, stop in state["owed"])
            history = str(state["history"])
        except ConfigError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"ledger state cannot be read: {quoted(error)}") from error
        self._check(numbers, owed)
        self._step, self._epoch = numbers["step"], numbers["epoch"]
        self._cursor, self._used = numbers["cursor"], numbers["used"]
        self._owed, self._history = owed, history

    def _check(self, numbers: Mapping[str, int], owed: Sequence[Range]) -> None:
        for name, number in numbers.items():
            if number < 0:
                raise ConfigError(f"ledger state has {name} {number}; valid: at least 0")
        if numbers["cursor"] > self.num_samples:
            raise ConfigError(
                f"ledger state has cursor {numbers['cursor']}; valid: at most {self.num_samples}"
            )
        end = -1
        for start, stop in owed:
            if not end < start < stop <= numbers["cursor"]:
                raise ConfigError(
                    f"ledger state owes {start}..{stop}; valid: increasing, apart, up to the cursor"
                )
            end = stop

    def digest(self) -> str:
        """Returns 64 bits as 16 hexadecimal digits: position, history of commits and configuration."""
        return _hashed(self.state())

    def copy(self) -> SampleLedger:
        """Returns a ledger in the same state, to look ahead with."""
        ledger = SampleLedger.__new__(SampleLedger)
        ledger.__dict__.update(self.__dict__)
        return ledger


@functools.lru_cache(maxsize=16)
def _order_of_block(num_samples: int, seed: int, epoch: int, block: int) -> NDArray[np.int64]:
    """Returns the samples at positions block * BLOCK and on, of an epoch's order."""
    positions = np.arange(block * BLOCK, min(num_samples, (block + 1) * BLOCK), dtype=np.int64)
    return permute_many(positions, num_samples, seed, epoch)


def _checked_shares(seats: int, shares: Sequence[int] | None) -> tuple[int, ...] | None:
    if seats < 1:
        raise LedgerError(f"seats is {seats}; valid: at least 1")
    if shares is None:
        return None
    if len(shares) != seats or min(shares) < 0 or sum(shares) == 0:
        raise LedgerError(f"shares is {list(shares)}; valid: {seats} integers of at least 0, not all 0")
    return tuple(shares)


def _split(total: int, seats: int, shares: tuple[int, ...] | None) -> list[int]:
    """Returns how many samples each seat gets, in whole numbers (no rounding differs by machine)."""
    weights = (1,) * seats if shares is None else shares
    sum_of_weights = sum(weights)
    counts = [total * weight // sum_of_weights for weight in weights]
    by_remainder = sorted(range(seats), key=lambda seat: (-(total * weights[seat] % sum_of_weights), seat))
    for seat in by_remainder[: total - sum(counts)]:
        counts[seat] += 1
    return counts


def _take(ranges: Sequence[Range], size: int) -> Iterator[Range]:
    """Yields the first `size` positions of the ranges."""
    for start, stop in ranges:
        if size <= 0:
            return
        yield Range(start, min(stop, start + size))
        size -= stop - start


def cut_evenly(ranges: Sequence[Range], parts: int) -> tuple[tuple[Range, ...], ...]:
    """Cuts ranges into consecutive parts whose lengths differ by one at most, larger ones first."""
    total = sum(len(part) for part in ranges)
    return tuple(_cut(ranges, _split(total, parts, None)))


def _cut(ranges: Sequence[Range], counts: Sequence[int]) -> Iterator[tuple[Range, ...]]:
    """Yields consecutive parts of the ranges, as long as the counts say."""
    rest = list(ranges)
    for count in counts:
        parts = tuple(_take(rest, count))
        yield parts
        rest = _subtract(rest, parts)


def _subtract(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """Returns the ranges without those taken; each taken one lies within one of the ranges, or outside all."""
    left: list[Range] = []
    for start, stop in ranges:
        for other in sorted(taken):
            if other.stop <= start or other.start >= stop:
                continue
            if other.start > start:
                left.append(Range(start, other.start))
            start = other.stop
        if start < stop:
            left.append(Range(start, stop))
    return left


def _merged(ranges: Sequence[Range]) -> list[Range]:
    """Returns the ranges in order, with neighbours joined."""
    merged: list[Range] = []
    for part in sorted(ranges):
        if merged and merged[-1].stop == part.start:
            merged[-1] = Range(merged[-1].start, part.stop)
        else:
            merged.append(part)
    return merged


def _left_out(deal: Deal, record: CommitRecord) -> list[Range]:
    """Returns the ranges of the seats that did not contribute."""
    if record.contributed is None:
        return []
    if not record.contributed or not set(record.contributed) <= set(range(deal.seats)):
        raise LedgerError(
            f"contributed is {list(record.contributed)}; valid: at least one of seats 0..{deal.seats - 1}"
        )
    return [
        part for seat in range(deal.seats) if seat not in record.contributed for part in deal.ranges[seat]
    ]


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{quoted(value)} is not an integer")
    return value


def _hashed(value: object) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(value, separators=(",", ":"), sort_keys=True).encode())
