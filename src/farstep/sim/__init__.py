"""Simulated clusters: what a network does to the traffic of a training run, healthy, congested and failing.

Example:
    >>> from farstep import sim
    >>> fabric = sim.fabric("leaf-spine", leaves=4, spines=4, nics_per_leaf=4, planes=2)
    >>> result = sim.simulate(fabric, sim.permutation(size_bytes=1_000_000), transport="mrc", level="flow")
    >>> result.is_complete
    True

Names load when they are first used, so that importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farstep.fabric.errors import ConfigError
    from farstep.sim.faults import LinkAction, parse_faults
    from farstep.sim.result import LinkUse, Quantiles, SimResult
    from farstep.sim.run import Progress, SimulationStalled, compare, fabric, simulate
    from farstep.sim.scenario import Scenario, default_scenario, dump_toml, load_scenario, parse_scenario
    from farstep.sim.summary import render
    from farstep.sim.sweep import Sweep, run_sweep
    from farstep.sim.tasks import TaskBuilder, TaskKind, TaskTable, WorkloadError, concatenate
    from farstep.sim.transports import TRANSPORTS, Switch, Transport
    from farstep.sim.workloads.jobs import Placer, repeat
    from farstep.sim.workloads.tables import AllToAll as all_to_all
    from farstep.sim.workloads.tables import Chakra as chakra
    from farstep.sim.workloads.tables import Collective as collective
    from farstep.sim.workloads.tables import Flows as flows
    from farstep.sim.workloads.tables import Incast as incast
    from farstep.sim.workloads.tables import Matrix as matrix
    from farstep.sim.workloads.tables import Permutation as permutation
    from farstep.sim.workloads.tables import SendRecv as sendrecv
    from farstep.sim.workloads.tables import Training as training

_PLACES = {
    "TRANSPORTS": ("transports", "TRANSPORTS"),
    "ConfigError": ("scenario", "ConfigError"),
    "LinkAction": ("faults", "LinkAction"),
    "LinkUse": ("result", "LinkUse"),
    "Placer": ("workloads.jobs", "Placer"),
    "Progress": ("run", "Progress"),
    "Quantiles": ("result", "Quantiles"),
    "Scenario": ("scenario", "Scenario"),
    "SimResult": ("result", "SimResult"),
    "SimulationStalled": ("run", "SimulationStalled"),
    "Sweep": ("sweep", "Sweep"),
    "Switch": ("transports", "Switch"),
    "TaskBuilder": ("tasks", "TaskBuilder"),
    "TaskKind": ("tasks", "TaskKind"),
    "TaskTable": ("tasks", "TaskTable"),
    "Transport": ("transports", "Transport"),
    "WorkloadError": ("tasks", "WorkloadError"),
    "all_to_all": ("workloads.tables", "AllToAll"),
    "chakra": ("workloads.tables", "Chakra"),
    "collective": ("workloads.tables", "Collective"),
    "compare": ("run", "compare"),
    "concatenate": ("tasks", "concatenate"),
    "default_scenario": ("scenario", "default_scenario"),
    "dump_toml": ("scenario", "dump_toml"),
    "fabric": ("run", "fabric"),
    "flows": ("workloads.tables", "Flows"),
    "incast": ("workloads.tables", "Incast"),
    "load_scenario": ("scenario", "load_scenario"),
    "matrix": ("workloads.tables", "Matrix"),
    "parse_faults": ("faults", "parse_faults"),
    "parse_scenario": ("scenario", "parse_scenario"),
    "permutation": ("workloads.tables", "Permutation"),
    "render": ("summary", "render"),
    "repeat": ("workloads.jobs", "repeat"),
    "run_sweep": ("sweep", "run_sweep"),
    "sendrecv": ("workloads.tables", "SendRecv"),
    "simulate": ("run", "simulate"),
    "training": ("workloads.tables", "Training"),
}
"""Module and name in it of everything offered here."""

__all__ = [
    "TRANSPORTS",
    "ConfigError",
    "LinkAction",
    "LinkUse",
    "Placer",
    "Progress",
    "Quantiles",
    "Scenario",
    "SimResult",
    "SimulationStalled",
    "Sweep",
    "Switch",
    "TaskBuilder",
    "TaskKind",
    "TaskTable",
    "Transport",
    "WorkloadError",
    "all_to_all",
    "chakra",
    "collective",
    "compare",
    "concatenate",
    "default_scenario",
    "dump_toml",
    "fabric",
    "flows",
    "incast",
    "load_scenario",
    "matrix",
    "parse_faults",
    "parse_scenario",
    "permutation",
    "render",
    "repeat",
    "run_sweep",
    "sendrecv",
    "simulate",
    "training",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    found = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
