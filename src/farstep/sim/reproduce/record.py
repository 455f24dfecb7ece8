"""What an experiment found: figures over seeds, the band they are held against, and the verdict."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["Effort", "Experiment", "Finding", "Measure", "Verdict", "plain_number"]


class Verdict(enum.StrEnum):
    """How an experiment compares with what was published."""

    MET = "met"
    WITHIN_SEEDS = "within seeds"
    """The median is outside its band, but what it is compared with lies among our seeds."""
    NOT_MET = "not met"
    SHOWN = "shown"
    """There is no figure to be held against; the trend is shown."""
    NOT_REPRODUCIBLE = "not reproducible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much work an experiment may make of it.

    Attributes:
        seeds: draws of whatever is left to chance; collisions of flows take at least 20 unless `is_quick`.
        is_quick: fewer seeds and shorter runs, to see that everything works.
    """

    seeds: int = 10
    is_quick: bool = False

    def range(self, at_least: int = 1) -> range:
        """Seeds to run, from 1 on."""
        count = 2 if self.is_quick else max(self.seeds, at_least)
        return range(1, count + 1)

    def scaled(self, size_bytes: int, quick_part: int = 4) -> int:
        """A size, cut for a quick run."""
        return size_bytes // quick_part if self.is_quick else size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure over seeds.

    Attributes:
        name: what it is, with its unit.
        values: one per seed.
        low: least value of its median that counts as agreement; None: no bound.
        high: greatest such value; None: no bound.
        target: what was published, where that is a number.
    """

    name: str
    values: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    target: float | None = None

    @classmethod
    def of(
        cls,
        name: str,
        values: Sequence[float] | float,
        low: float | None = None,
        high: float | None = None,
        target: float | None = None,
    ) -> Measure:
        """Takes one value or one per seed.

        Raises:
            ValueError: there is none, or one is no number.
        """
        found = tuple(float(v) for v in np.atleast_1d(np.asarray(values, np.float64)))
        if not found or not all(math.isfinite(v) for v in found):
            raise ValueError(f"{name}: no figure came of it: {found}")
        return cls(name=name, values=found, low=low, high=high, target=target)

    @property
    def median(self) -> float:
        """Median over the seeds."""
        return float(np.median(self.values))

    @property
    def spread(self) -> tuple[float, float]:
        """5th and 95th percentile over the seeds."""
        low, high = np.percentile(self.values, (5, 95))
        return float(low), float(high)

    @property
    def is_judged(self) -> bool:
        """Whether there is a band."""
        return self.low is not None or self.high is not None

    @property
    def is_met(self) -> bool:
        """Whether the median lies in the band."""
        above = self.low is None or self.median >= self.low
        return above and (self.high is None or self.median <= self.high)

    @property
    def text(self) -> str:
        """The median and, of several seeds, the spread."""
        low, high = self.spread
        if len(self.values) == 1 or plain_number(low) == plain_number(high):
            return plain_number(self.median)
        return f"{plain_number(self.median)} ({plain_number(low)} to {plain_number(high)})"

    @property
    def band(self) -> str:
        """The band in words; empty without one."""
        if self.low is not None and self.high is not None:
            return f"{plain_number(self.low)} to {plain_number(self.high)}"
        if self.low is not None:
            return f"≥ {plain_number(self.low)}"
        return "" if self.high is None else f"≤ {plain_number(self.high)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of a table of validation.

    Attributes:
        id: such as `Q20`.
        title: what is compared.
        published: what the source says.
        setup: how it was scaled.
        measures: what came out; empty if it cannot be run.
        verdict: see `Verdict`.
        note: why, where that needs words.
    """

    id: str
    title: str
    published: str
    setup: str
    measures: tuple[Measure, ...]
    verdict: Verdict
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The row as plain values, with medians and spreads."""
        table = asdict(self)
        for measure, row in zip(self.measures, table["measures"], strict=True):
            row.update(median=measure.median, spread=measure.spread, is_met=measure.is_met)
        return table


def plain_number(value: float) -> str:
    """Four significant digits, without an exponent where that is readable."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    return f"{value:.2e}" if "e" in text else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """How a published result is looked for.

    Attributes:
        title: what was published about.
        published: what it says.
        setup: how it is scaled here.
        measure: the figures, for an effort; None: it cannot be run.
        note: why it cannot, or what to know of the result.
    """

    title: str
    published: str
    setup: str
    measure: Callable[[Effort], Sequence[Measure]] | None
    note: str = ""

    def finding(self, id_: str, effort: Effort) -> Finding:
        """Runs it."""
        measures = () if self.measure is None else tuple(self.measure(effort))
        judged = [measure for measure in measures if measure.is_judged]
        if self.measure is None:
            verdict = Verdict.NOT_REPRODUCIBLE
        elif not judged:
            verdict = Verdict.SHOWN
        else:
            verdict = Verdict.MET if all(measure.is_met for measure in judged) else Verdict.NOT_MET
        return Finding(
            id=id_,
            title=self.title,
            published=self.published,
            setup=self.setup,
            measures=measures,
            verdict=verdict,
            note=self.note,
        )
