"""What happens to a chaos run, drawn from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["KINDS", "SEATS", "SITES", "SPARES", "Event", "draw_schedule"]

SITES = {"a-0": "a", "a-1": "a", "b-0": "b", "c-0": "c", "s-0": "b"}
"""Members of the run and where they are."""

SEATS = tuple(name for name in SITES if not name.startswith("s-"))
SPARES = tuple(name for name in SITES if name.startswith("s-"))

KINDS = {
    "kill": 14,
    "hang": 7,
    "pause": 10,
    "slow": 6,
    "site_loss": 4,
    "drain": 4,
    "notice": 4,
    "join": 3,
    "coordinator_kill": 8,
    "coordinator_move": 5,
    "coordinator_hang": 4,
    "coordinator_partition": 4,
    "line_cut": 5,
    "line_block": 5,
    "line_block_up": 4,
    "line_block_down": 4,
    "path_block": 4,
    "path_block_one_way": 5,
    "path_loss": 4,
    "clock_member": 5,
    "clock_coordinator": 4,
    "disk_member": 4,
    "disk_coordinator": 3,
}
"""Kinds of events and how often each comes, relatively."""

LENGTHS_S = {
    "hang": (1.6, 3.5),
    "pause": (0.05, 0.7),
    "slow": (1.0, 3.0),
    "coordinator_kill": (0.0, 1.5),
    "coordinator_move": (0.0, 1.0),
    "coordinator_hang": (0.3, 2.5),
    "coordinator_partition": (0.3, 3.0),
    "line_block": (0.2, 3.0),
    "line_block_up": (0.2, 3.0),
    "line_block_down": (0.2, 3.0),
    "path_block": (0.2, 3.0),
    "path_block_one_way": (0.2, 3.0),
    "path_loss": (1.0, 4.0),
    "disk_member": (1.0, 4.0),
    "disk_coordinator": (0.5, 2.0),
    "kill": (0.0, 2.0),
    "site_loss": (0.0, 2.0),
    "drain": (0.0, 1.0),
    "notice": (0.0, 1.0),
    "join": (1.0, 4.0),
}
"""How long a fault lasts, or until somebody who went comes back."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens.

    Attributes:
        number: from 0.
        kind: one of `KINDS`.
        target: member, site, or way such as `a->b`; empty for the coordinator.
        gap_s: time after the event before.
        lasts_s: until it is taken back.
    """

    number: int
    kind: str
    target: str
    gap_s: float
    lasts_s: float


def draw_schedule(seed: int, count: int, *, gap_s: tuple[float, float] = (0.3, 2.5)) -> list[Event]:
    """Draws events; with enough of them every kind comes at least once.

    Args:
        seed: of everything.
        count: number of events.
        gap_s: least and longest time between two.
    """
    draw = random.Random(seed)
    kinds = list(KINDS) if count >= len(KINDS) else []
    kinds += draw.choices(list(KINDS), list(KINDS.values()), k=count - len(kinds))
    draw.shuffle(kinds)
    events = []
    for number, kind in enumerate(kinds):
        lasts_s = draw.uniform(*LENGTHS_S.get(kind, (0.0, 0.0)))
        events.append(Event(number, kind, _target(draw, kind), draw.uniform(*gap_s), lasts_s))
    return events


def _target(draw: random.Random, kind: str) -> str:
    sites = sorted(set(SITES.values()))
    match kind:
        case "clock_coordinator" | "disk_coordinator":
            return ""
        case _ if kind.startswith("coordinator"):
            return ""
        case "site_loss":
            return draw.choice(sites)
        case "path_block" | "path_block_one_way" | "path_loss":
            near, far = draw.sample(sites, 2)
            return f"{near}->{far}"
        case "join":
            return f"j-{draw.randrange(1000)}"
        case _:
            return draw.choice(list(SITES))
