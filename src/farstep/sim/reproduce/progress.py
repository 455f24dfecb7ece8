"""How far a run over many experiments is, in a line before each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["announced", "time_left"]

Item = TypeVar("Item")
Tell = Callable[[str], None]


def announced(
    items: Sequence[Item],
    told: Tell | None,
    words: Callable[[Item], str],
    cost: Callable[[Item], float] | None = None,
) -> Iterator[Item]:
    """Yields what is to be run one after the other, and says before each what comes and how much is left.

    Args:
        items: what is to be run.
        told: takes a line such as `3 of 21, about 4 min left: incast 32:1`; None: nothing is said.
        words: what an item is called.
        cost: how long an item takes, in any unit, as far as is known before; without it no time is estimated.
    """
    began_s = time.perf_counter()
    done = 0.0
    costs = [1.0 if cost is None else cost(item) for item in items]
    for number, item in enumerate(items):
        if told is not None:
            left = ""
            if cost is not None and done > 0.0:
                left = time_left((time.perf_counter() - began_s) / done * sum(costs[number:]))
            told(f"{number + 1} of {len(items)}{left}: {words(item)}")
        yield item
        done += costs[number]


def time_left(left_s: float) -> str:
    """Renders an estimate, such as `, about 4 min left`."""
    if left_s < 90.0:
        return f", about {max(1, round(left_s))} s left"
    return f", about {round(left_s / 60.0)} min left"
