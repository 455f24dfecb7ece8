"""Who sends what to whom: collective schedules as plain data, importing nothing else of farstep.

The communicator walks them over real connections; the simulator walks them over a modelled fabric.
"""

from farstep.collectives.schedule.direct import (
    all_to_all,
    direct_all_gather,
    gather,
    pairwise_all_to_all,
    scatter,
)
from farstep.collectives.schedule.executor import HazardError, execute, execute_interleaved
from farstep.collectives.schedule.hierarchical import hierarchical_all_reduce
from farstep.collectives.schedule.model import Action, Range, Schedule, Transfer, consecutive, split_evenly
from farstep.collectives.schedule.ring import (
    chain_broadcast,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce,
    ring_reduce_scatter,
)
from farstep.collectives.schedule.tree import (
    dissemination_barrier,
    recursive_doubling_all_reduce,
    tree_broadcast,
    tree_reduce,
)

__all__ = [
    "Action",
    "HazardError",
    "Range",
    "Schedule",
    "Transfer",
    "all_to_all",
    "chain_broadcast",
    "consecutive",
    "direct_all_gather",
    "dissemination_barrier",
    "execute",
    "execute_interleaved",
    "gather",
    "hierarchical_all_reduce",
    "pairwise_all_to_all",
    "recursive_doubling_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce",
    "ring_reduce_scatter",
    "scatter",
    "split_evenly",
    "tree_broadcast",
    "tree_reduce",
]
