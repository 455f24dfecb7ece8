"""Simulates tasks at the flow level."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from farstep.fabric.topology import Topology
from farstep.sim.faults import LinkAction
from farstep.sim.flow.run import FlowRun, FlowsStalled, OnProgress
from farstep.sim.flow.settings import FlowSettings
from farstep.sim.flow.stepped import SteppedRun
from farstep.sim.result import SimResult
from farstep.sim.tasks import TaskTable

__all__ = ["FlowSimulator", "FlowsStalled"]


class FlowSimulator:
    """The flow level over one network with one transport.

    Args:
        topology: the network.
        settings: the transport; None: that of `mrc`.
    """

    def __init__(self, topology: Topology, settings: FlowSettings | None = None) -> None:
        self.topology = topology
        self.settings = FlowSettings() if settings is None else settings

    def run(
        self,
        tasks: TaskTable,
        faults: Iterable[LinkAction] = (),
        seed: int = 0,
        *,
        until_ns: float | None = None,
        sample_interval_ns: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> SimResult:
        """Simulates a table to its end.

        Args:
            tasks: what is to be done.
            faults: what happens to links.
            seed: chooses hashed paths and the deviations of lost times.
            until_ns: ends the simulation there, with tasks unfinished.
            sample_interval_ns: time between samples of the series; None: no series.
            on_progress: is told a few times a second how many tasks are done, and the simulated time in ns.

        Raises:
            WorkloadError: the table cannot be simulated on this network.
            FlowFaultError: a fault cannot be carried out.
            FlowsStalled: the tasks can never be finished.
        """
        tasks.validate(self.topology.num_nics)
        kind = FlowRun if self.settings.rival is None else SteppedRun
        run = kind(self.topology, self.settings, tasks, faults, seed, sample_interval_ns, on_progress)
        return run.until(np.inf if until_ns is None else until_ns)
