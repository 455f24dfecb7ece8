"""Carries out simulations: from a scenario, or from parts put together in Python."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import ValidationError

from farstep import __version__
from farstep.fabric.errors import ConfigError, names, quoted
from farstep.fabric.expected import expect, expect_list
from farstep.fabric.topology import Topology
from farstep.fabric.topology.build import build_topology
from farstep.sim.engines import ENGINES
from farstep.sim.faults import LinkAction, ScriptedFault, link_actions, parse_faults
from farstep.sim.refusals import plain_validation_error
from farstep.sim.result import SimResult
from farstep.sim.scenario import Run, Scenario, place_jobs
from farstep.sim.tasks import TaskTable, WorkloadError, concatenate
from farstep.sim.transports import TRANSPORTS, Level, Switch, Transport
from farstep.sim.workloads.tables import JOBS, Workload

__all__ = ["Prepared", "Progress", "SimulationStalled", "compare", "fabric", "run_scenario", "simulate"]


class SimulationStalled(RuntimeError):
    """Nothing can happen any more and tasks are unfinished; the message names them and what they wait for.

    Attributes:
        result: what had happened until then, where the level can tell.
    """

    def __init__(self, message: str, result: SimResult | None = None) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a simulation is.

    Attributes:
        done: tasks that are finished.
        tasks: all tasks.
        now_ns: simulated time.
        until_ns: end of the simulation, if it has a fixed one.
    """

    done: int
    tasks: int
    now_ns: int
    until_ns: int | None = None

    @property
    def share(self) -> float:
        """Part that is done, 0..1, by tasks or by time, whichever is further."""
        by_time = self.now_ns / self.until_ns if self.until_ns else 0.0
        return max(self.done / self.tasks if self.tasks else 1.0, min(by_time, 1.0))


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A simulation ready to be run by an engine.

    Attributes:
        topology: the network.
        tasks: what is to be done, valid on it.
        actions: what happens to links, in the order of time.
        transport: name and knobs.
        switch: knobs of all switches.
        run: seed, level, end, samples.
        workloads: kinds of the jobs, as far as known.
        on_progress: is told how far it is, a few times a second.
        ignored: takes the names of knobs the engine has no use for.
    """

    topology: Topology
    tasks: TaskTable
    actions: Sequence[LinkAction] = ()
    transport: Transport = field(default_factory=Transport)
    switch: Switch = field(default_factory=Switch)
    run: Run = field(default_factory=Run)
    workloads: tuple[str, ...] = ()
    on_progress: OnProgress | None = None
    ignored: list[str] = field(default_factory=list)


def fabric(kind: str, /, **parameters: Any) -> Topology:
    """Builds a network by the name of its kind, such as `fabric("fat-tree", nics=1024)`.

    Raises:
        ConfigError: there is no such kind or parameter, or a value cannot be used.
    """
    return build_topology(kind, **parameters)


def simulate(
    topology: Topology | Scenario,
    workload: Workload | TaskTable | Sequence[Workload] | None = None,
    *,
    transport: str | Transport | Mapping[str, Any] = "mrc",
    switch: Switch | Mapping[str, Any] | None = None,
    faults: Iterable[ScriptedFault | Mapping[str, Any]] = (),
    seed: int = 1,
    level: Level = "packet",
    on_progress: OnProgress | None = None,
    **run: Any,
) -> SimResult:
    """Simulates jobs on a fabric.

    Args:
        topology: the network, or a whole scenario (then nothing else but `on_progress` is needed).
        workload: a job, several that share the fabric, or a table of tasks.
        transport: name, or a table of name and knobs.
        switch: knobs of all switches.
        faults: entries of a fault script.
        seed: draws everything left to chance.
        level: `packet` or `flow`.
        on_progress: is told how far the simulation is.
        run: other keys of a scenario's `[run]`, such as `until_us`, `sample_interval_us`, `completion`.

    Raises:
        ConfigError: something given cannot be used.
        SimulationStalled: nothing can happen any more and tasks are unfinished.

    Example:
        >>> from farstep import sim
        >>> fabric = sim.fabric("leaf-spine", leaves=2, spines=2, nics_per_leaf=2)
        >>> result = sim.simulate(fabric, sim.permutation(size_bytes=10_000), level="flow")
        >>> result.is_complete
        True
    """
    if on_progress is not None and not callable(on_progress):
        raise ConfigError(f"on_progress = {quoted(on_progress)}: must be a function of a Progress")
    if isinstance(topology, Scenario):
        return run_scenario(topology, on_progress=on_progress)
    expect("topology", topology, Topology, "a network, as sim.fabric() builds it, or a Scenario")
    if workload is None:
        raise ConfigError("workload: what is to be simulated is missing, such as sim.permutation()")
    settings = _table(Run, {"seed": seed, "level": level, **run}, "run")
    script = parse_faults(faults)
    if isinstance(transport, str):
        transport = {"name": transport}
    expect("transport", transport, (Transport, Mapping), f"a name or a table; names: {names(TRANSPORTS)}")
    prepared = Prepared(
        topology=topology,
        tasks=_tasks(workload, topology, settings),
        actions=link_actions(script, topology, seed=seed, until_ns=settings.until_ns),
        transport=_table(Transport, transport, "transport"),
        switch=_table(Switch, {} if switch is None else switch, "switch"),
        run=settings,
        workloads=_kinds(workload),
        on_progress=on_progress,
    )
    return _carried_out(prepared)


def _table(model: Any, given: Any, name: str) -> Any:
    """Validates keyword arguments as the scenario's table of that name.

    Raises:
        ConfigError: one line naming key, value and what is valid.
    """
    if isinstance(given, model):
        return given
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ConfigError(plain_validation_error(error, "", section=name)) from error


def _tasks(workload: Any, topology: Topology, run: Run) -> TaskTable:
    try:
        if isinstance(workload, TaskTable):
            return workload.validate(topology.num_nics)
        jobs = tuple(workload) if isinstance(workload, list | tuple) else (workload,)
        for job in jobs:
            expect(
                "workload",
                job,
                JOBS,
                "a job, such as sim.permutation(), or several in a list, or a TaskTable",
            )
        if not jobs:
            raise ConfigError("workload = []: there is no job in it")
        placed = place_jobs(jobs, topology, run.seed, Path(), source="")
        tables = [
            job.tasks(nics, seed=run.seed + 1_000_003 * index, repeat=run.repeat)
            for index, (job, nics) in enumerate(zip(jobs, placed, strict=True))
        ]
        return concatenate(tables).validate(topology.num_nics)
    except WorkloadError as error:
        raise ConfigError(f"workload: {error}") from error


def _kinds(workload: Any) -> tuple[str, ...]:
    """Kinds of jobs, those that run a collective by what it is."""
    if isinstance(workload, TaskTable):
        return ()
    jobs = workload if isinstance(workload, list | tuple) else (workload,)
    kinds = (getattr(job, "collective", None) or job.kind for job in jobs)
    return tuple(dict.fromkeys(kind.replace("_", "-") for kind in kinds))


def run_scenario(scenario: Scenario, *, on_progress: OnProgress | None = None) -> SimResult:
    """Simulates a scenario.

    Raises:
        ConfigError: a part of it cannot be used; the message names file, key and value.
        SimulationStalled: nothing can happen any more and tasks are unfinished.
    """
    prepared = Prepared(
        topology=scenario.topology,
        tasks=scenario.tasks(),
        actions=scenario.actions(),
        transport=scenario.transport,
        switch=scenario.switch,
        run=scenario.run,
        workloads=_kinds(scenario.workload),
        on_progress=on_progress,
    )
    result = _carried_out(prepared)
    result.meta["scenario"] = scenario.table()
    return result


def compare(
    scenario: Scenario,
    transports: Sequence[str],
    *,
    on_progress: Callable[[str, Progress], None] | None = None,
    on_stall: Callable[[str, SimulationStalled], None] | None = None,
) -> dict[str, SimResult]:
    """Simulates a scenario with one transport after the other; everything else, the seed too, is the same.

    Args:
        scenario: of which the name of the transport is replaced; knobs are kept where a transport has them.
        transports: names.
        on_progress: is told the transport and how far it is.
        on_stall: is told of a transport that gets stuck, and the others are run all the same; the result then
            holds of it what had happened, or nothing. Without it the error is raised.

    Raises:
        ConfigError: there is no such transport.
        SimulationStalled: a transport gets stuck and `on_stall` is not given.
    """
    expect("scenario", scenario, Scenario, "a Scenario, as sim.load_scenario() reads it")
    listed = expect_list("transports", transports, "names")
    if not listed:
        raise ConfigError(f"transports = []: name at least one; valid: {names(TRANSPORTS)}")
    for name in listed:
        if not isinstance(name, str) or name not in TRANSPORTS:
            raise ConfigError(f"transports = {quoted(name)}: no such transport; valid: {names(TRANSPORTS)}")
    results: dict[str, SimResult] = {}
    for name in listed:
        table = _table(
            Transport, {**scenario.transport.model_dump(exclude_none=True), "name": name}, "transport"
        )
        changed = scenario.model_copy(update={"transport": table})
        told = None if on_progress is None else _for(on_progress, name)
        try:
            results[name] = run_scenario(changed, on_progress=told)
        except SimulationStalled as stalled:
            if on_stall is None:
                raise
            on_stall(name, stalled)
            if stalled.result is not None:
                results[name] = stalled.result
    return results


def _for(on_progress: Callable[[str, Progress], None], name: str) -> OnProgress:
    return lambda progress: on_progress(name, progress)


def _carried_out(prepared: Prepared) -> SimResult:
    """Runs the engine of the level."""
    level = prepared.run.level
    if level not in get_args(Level):
        raise ConfigError(f"run.level = {quoted(level)}: no such level; valid: {names(get_args(Level))}")
    began = time.perf_counter()
    try:
        result = ENGINES[level](prepared)
    except SimulationStalled as stalled:
        if stalled.result is not None:
            _note(stalled.result, prepared, time.perf_counter() - began)
            stalled.result.meta["stalled"] = str(stalled)
        raise
    _note(result, prepared, time.perf_counter() - began)
    return result


def _note(result: SimResult, prepared: Prepared, wall_s: float) -> None:
    """Notes in a result what it is a result of."""
    level = prepared.run.level
    result.meta.update(
        {
            "level": level,
            "transport": prepared.transport.name,
            "knobs": {**prepared.transport.knobs, **prepared.switch.knobs},
            "ignored": sorted(set(prepared.ignored)),
            "seed": prepared.run.seed,
            "fabric": prepared.topology.name,
            "versions": {
                "farstep": __version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "wall_s": wall_s,
            "faults": [
                {
                    "time_ns": int(action.time_ns),
                    "kind": action.kind,
                    "value": float(action.value),
                    "links": len(action.links),
                    "text": f"{action.text or 'links'}: {action.kind}",
                }
                for action in prepared.actions
            ],
        }
    )
