"""The published figures of the MRC papers, Q1 to Q36, as scripted experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from farstep.sim.reproduce.mrc_collectives import COLLECTIVE_EXPERIMENTS
from farstep.sim.reproduce.mrc_incast import INCAST_EXPERIMENTS
from farstep.sim.reproduce.mrc_points import POINT_EXPERIMENTS
from farstep.sim.reproduce.mrc_production import PRODUCTION_EXPERIMENTS
from farstep.sim.reproduce.progress import announced
from farstep.sim.reproduce.record import Effort, Experiment, Finding

__all__ = ["EXPERIMENTS", "HEAD", "reproduce"]

HEAD = """# Against the MRC papers

What the MRC papers publish in figures or in words, and what the packet level makes of it. Made by `farstep
reproduce mrc --out docs/validation`; every row can be run alone by its number, as in `farstep reproduce mrc
Q20`.

One constant is fitted: the latency of a host, once, to the 5.09 us of a 2 B write within a rack (Q9). Switches
(600 ns), cables (100 ns), queues, marks and windows are what vendors and specifications say of them, the same
in every row. Clusters are cut down, and time is: where the paper waits seconds for a NIC to remap, the rows say
what stands for it. A row is met if the median over seeds lies in its band.
"""

EXPERIMENTS: Mapping[str, Experiment] = dict(
    sorted(
        {
            **PRODUCTION_EXPERIMENTS,
            **POINT_EXPERIMENTS,
            **COLLECTIVE_EXPERIMENTS,
            **INCAST_EXPERIMENTS,
        }.items(),
        key=lambda item: int(item[0][1:]),
    )
)
"""By number."""


def reproduce(
    ids: Sequence[str], effort: Effort, *, told: Callable[[str], None] | None = None
) -> list[Finding]:
    """Runs experiments in turn.

    Args:
        ids: numbers, such as `Q20`.
        effort: how many seeds.
        told: is told what comes next.
    """
    return [
        EXPERIMENTS[id_].finding(id_, effort)
        for id_ in announced(ids, told, lambda id_: f"{id_}, {EXPERIMENTS[id_].title}")
    ]
