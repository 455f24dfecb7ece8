"""The flow level: permutations with spraying, rings, and the closed forms."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from farstep.fabric.topology import Topology, clos, fat_tree
from farstep.sim.closed_form import MessageTimes, ring_all_reduce_ns, ring_pairs
from farstep.sim.flow import FlowSimulator, settings_for
from farstep.sim.flow.symmetric import ring_time_ns
from farstep.sim.tasks import TaskTable
from farstep.sim.workloads.collectives import ring_all_reduce
from farstep.sim.workloads.patterns import all_to_all, permutation
from harness.measure import Report, arguments, parse

FLOW_BYTES = 2_000_000


def processor_s(what: Callable[[], object]) -> float:
    """Processor time of a call: on a machine that does other things, too, wall time says more about them."""
    begin = time.process_time()
    what()
    return time.process_time() - begin


def permutation_from_nothing(nics: int, radix: int) -> None:
    """Builds the fabric and its routes, and simulates a permutation."""
    tasks = permutation(nics, FLOW_BYTES, seed=1)
    FlowSimulator(fat_tree(nics, radix=radix), settings_for("mrc")).run(tasks)


def events_per_s(fabric: Topology, tasks: TaskTable, transport: str = "mrc") -> float:
    """Starts and ends of flows per second of processor time."""
    simulator = FlowSimulator(fabric, settings_for(transport))
    begin = time.process_time()
    result = simulator.run(tasks)
    return float(result.meta["flow_events"]) / (time.process_time() - begin)


def large_clos() -> None:
    """131,072 NICs with eight planes."""
    tasks = permutation(131_072, FLOW_BYTES, seed=1)
    FlowSimulator(clos(131_072, planes=8), settings_for("mrc")).run(tasks)


def main() -> int:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument(
        "--large", action="store_true", help="also 131,072 NICs with eight planes (1.3 GB, 15 s)"
    )
    options = parse(parser)
    report = Report(
        "the flow level",
        f"processor time of one thread, median of {options.rounds}; routes are built afresh where it says so",
        is_silent=options.json,
    )
    report.begin()
    rounds = range(options.rounds)
    fabric = fat_tree(1024, radix=16)
    fabric.routes()
    settings = settings_for("mrc")
    members = np.arange(1024)

    found = report.add(
        "permutation, 8,192 x 2 MB, fabric and routes built",
        [processor_s(lambda: permutation_from_nothing(8192, 32)) for _ in rounds],
        "s",
    )
    report.check("8,192-flow permutation with spraying", found, 1.0, at_least=False, unit="s")

    def closed_form() -> float:
        return ring_all_reduce_ns(MessageTimes.between(fabric, *ring_pairs(members), settings), 1024 * 10**6)

    found = report.add("ring of 1,024, closed form", [1e3 * processor_s(closed_form) for _ in rounds], "ms")
    report.check("ring all-reduce of 1,024 ranks, closed form", found, 10.0, at_least=False, unit="ms")
    shortcut = [
        1e3 * processor_s(lambda: ring_time_ns(fabric, members, 1024 * 10**6, settings)) for _ in rounds
    ]
    found = report.add("ring of 1,024, rates of one step", shortcut, "ms")
    report.check("ring all-reduce of 1,024 ranks, shortcut", found, 10.0, at_least=False, unit="ms")

    ring = ring_all_reduce(members[:128], 128 * 10**5)
    figures = [events_per_s(fabric, ring) for _ in rounds]
    report.add("ring of 128 in rank order, every flow simulated", figures, "/s")
    shuffled = ring_all_reduce(np.random.default_rng(1).permutation(1024)[:64], 64 * 10**5)
    figures = [events_per_s(fabric, shuffled) for _ in rounds]
    report.add("ring of 64 at random places, every flow simulated", figures, "/s")
    exchange = all_to_all(members[:32], 10**5)
    figures = [events_per_s(fabric, exchange) for _ in rounds]
    report.add("all-to-all of 32, all at once", figures, "/s")
    hashed = permutation(1024, FLOW_BYTES, seed=1)
    report.add(
        "permutation of 1,024, one path a flow", [events_per_s(fabric, hashed, "roce") for _ in rounds], "/s"
    )
    if options.large:
        report.add("permutation, 131,072 NICs x 8 planes, all built", [processor_s(large_clos)], "s")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
