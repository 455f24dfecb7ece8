"""What the members of a new generation do so that all stand at the same step, as a pure function of their reports.

The rules rest on one fact: a member votes on a step only when all buckets of it are reduced in its memory, and a
vote succeeds only if everybody voted. So if anybody has committed a step, everybody holds its reduced gradient.

* Somebody has committed a step that others have not: they apply the gradient they hold. Same bits, same result.
* Nobody who is left has committed it, but all who are left and took part hold its gradient: they apply it. This also
  covers a member that committed, told a spare, and died.
* Somebody who took part does not hold it: then nobody can have committed it, and it is run again.
* Who did not take part gets what is missing from those that did.

If the members' memory holds a newer state than anybody who is left, all take that one first, and report anew.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

__all__ = ["Alignment", "KeptDeal", "Report", "align", "float_of", "word_of"]


def word_of(value: float) -> int:
    """The bits of a number that is not negative, as an integer that sorts as the number does.

    >>> word_of(0.5) < word_of(2.0) < word_of(float("inf"))
    True
    """
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def float_of(word: int) -> float:
    """Undoes :func:`word_of`."""
    return float(struct.unpack("<d", struct.pack("<q", word))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where one member stands.

    Attributes:
        committed: steps committed.
        attempt_generation: generation of the last attempt at the next step; 0 if there was none.
        is_prepared: whether all buckets of that attempt are reduced.
        may_apply: whether the reduced gradient is finite.
        norm_word: its norm, by :func:`word_of`.
        last_is_applied: whether the last committed step was applied rather than refused.
        last_norm_word: norm of its gradient.
        is_newcomer: has not been compared with the others yet.
        deal_seats: among how many seats the batch in hand was dealt; 0 if it can be dealt anew, or there is none.
        deal_seat: which of them is this member's; -1 for none.
        memory_step: step of the newest memory checkpoint of which this member holds a part; -1 for none.
    """

    committed: int
    attempt_generation: int = 0
    is_prepared: bool = False
    may_apply: bool = False
    norm_word: int = 0
    last_is_applied: bool = True
    last_norm_word: int = 0
    is_newcomer: bool = False
    deal_seats: int = 0
    deal_seat: int = -1
    memory_step: int = -1

    def to_row(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The same as int64 words."""
        return np.array([int(getattr(self, name)) for name in _NAMES], dtype=np.int64)

    @classmethod
    def from_row(cls, row: Sequence[int]) -> Report:
        """Undoes :meth:`to_row`."""
        values = dict(zip(_NAMES, (int(word) for word in row), strict=True))
        return cls(
            committed=values["committed"],
            attempt_generation=values["attempt_generation"],
            is_prepared=bool(values["is_prepared"]),
            may_apply=bool(values["may_apply"]),
            norm_word=values["norm_word"],
            last_is_applied=bool(values["last_is_applied"]),
            last_norm_word=values["last_norm_word"],
            is_newcomer=bool(values["is_newcomer"]),
            deal_seats=values["deal_seats"],
            deal_seat=values["deal_seat"],
            memory_step=values["memory_step"],
        )


_NAMES = tuple(item.name for item in fields(Report))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDeal:
    """A deal among earlier seats that a step is run again with, because the batches in hand cannot be exchanged.

    Attributes:
        seats: among how many seats it was dealt.
        holders: by present seat: which part it has, or None for a member without one.
    """

    seats: int
    holders: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What is to be done.

    Attributes:
        target: committed steps of every member afterwards.
        forward: seats that apply the gradient they hold.
        is_applied: per seat of `forward`: whether the step is applied or was refused.
        norm_words: per seat of `forward`: the norm to go by.
        behind: seats that are still short of the target after that.
        reference: a seat that stands at the target and is trusted; others get the state from it if need be.
        is_compared: whether the states are to be compared, because somebody is new.
        kept_deal: the deal that the next step goes by, if it is not to be dealt anew.
    """

    target: int
    forward: tuple[int, ...]
    is_applied: dict[int, bool]
    norm_words: dict[int, int]
    behind: tuple[int, ...]
    reference: int
    is_compared: bool
    kept_deal: KeptDeal | None


def align(reports: Sequence[Report]) -> Alignment:
    """Decides from the reports of all members, by seat; everybody comes to the same decision."""
    top = max(report.committed for report in reports)
    at_top = {seat: report for seat, report in enumerate(reports) if report.committed == top}
    newest = max(report.attempt_generation for report in at_top.values())
    took_part = {s: r for s, r in at_top.items() if newest and r.attempt_generation == newest}
    is_whole = bool(took_part) and all(report.is_prepared for report in took_part.values())
    is_applied: dict[int, bool] = {}
    norm_words: dict[int, int] = {}
    if is_whole:
        verdict = all(report.may_apply for report in took_part.values())
        word = min(report.norm_word for report in took_part.values())
        is_applied.update(dict.fromkeys(took_part, verdict))
        norm_words.update(dict.fromkeys(took_part, word))
    witness = next(iter(at_top.values()))
    for seat, report in enumerate(reports):
        if report.committed == top - 1 and report.is_prepared:
            is_applied[seat] = witness.last_is_applied
            norm_words[seat] = witness.last_norm_word
    forward = tuple(sorted(is_applied))
    target = top + is_whole
    after = [report.committed + (seat in is_applied) for seat, report in enumerate(reports)]
    there = [seat for seat, committed in enumerate(after) if committed == target]
    known = [seat for seat in there if not reports[seat].is_newcomer]
    return Alignment(
        target=target,
        forward=forward,
        is_applied=is_applied,
        norm_words=norm_words,
        behind=tuple(seat for seat, committed in enumerate(after) if committed < target),
        reference=(known or there)[0],
        is_compared=any(report.is_newcomer for report in reports),
        kept_deal=None if is_whole else _kept_deal(reports, top),
    )


def _kept_deal(reports: Sequence[Report], top: int) -> KeptDeal | None:
    """The deal that batches in hand belong to, unless a new deal would give everybody the same."""
    holding = {seat: r for seat, r in enumerate(reports) if r.deal_seats and r.committed == top}
    if not holding:
        return None
    seats = max(report.deal_seats for report in holding.values())
    is_same = seats == len(reports) and all(
        (report.deal_seats, report.deal_seat) == (seats, seat) for seat, report in holding.items()
    )
    if is_same:
        return None
    holders = tuple(
        holding[seat].deal_seat if seat in holding and holding[seat].deal_seats == seats else None
        for seat in range(len(reports))
    )
    return KeptDeal(seats=seats, holders=holders)
