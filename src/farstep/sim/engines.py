"""The levels of simulation behind one call: a prepared simulation in, a result out.

Each engine has settings of its own; here the knobs of a scenario become those settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from farstep.fabric.errors import ConfigError

if TYPE_CHECKING:
    from farstep.sim.result import SimResult
    from farstep.sim.run import Prepared

__all__ = ["ENGINES"]


def _run_flow(prepared: Prepared) -> SimResult:
    """Runs the flow level."""
    from farstep.sim.flow import (
        FlowSettingsError,
        FlowSimulator,
        FlowsStalled,
        ignored_knobs,
        settings_of,
    )
    from farstep.sim.run import SimulationStalled

    try:
        settings = settings_of(prepared.transport, prepared.switch)
        settings = settings.updated({"completion": prepared.run.completion})
    except FlowSettingsError as error:
        raise ConfigError(f"transport.{error}") from error
    prepared.ignored.extend(ignored_knobs(prepared.transport, prepared.switch))
    prepared.ignored.extend(["run.trace_flows"] if prepared.run.trace_flows else [])
    simulator = FlowSimulator(prepared.topology, settings)
    run, tasks = prepared.run, prepared.tasks
    try:
        result = simulator.run(
            tasks,
            prepared.actions,
            run.seed,
            until_ns=run.until_ns,
            sample_interval_ns=run.sample_interval_ns or None,
            on_progress=_telling(prepared),
        )
    except FlowsStalled as error:
        error.result.meta["limits"] = _limits(prepared)
        raise SimulationStalled(str(error), error.result) from error
    result.meta["limits"] = _limits(prepared)
    return result


def _limits(prepared: Prepared) -> list[str]:
    """What is known of the flow level's accuracy here."""
    from farstep.sim.flow import limits_of

    sizes = prepared.tasks.size_bytes[prepared.tasks.is_flow]
    return limits_of(
        prepared.transport.name,
        prepared.workloads,
        flow_bytes=float(np.median(sizes)) if len(sizes) else None,
        has_faults=bool(prepared.actions),
        topology=prepared.topology,
    )


def _run_packet(prepared: Prepared) -> SimResult:
    """Runs the packet level."""
    from farstep.sim import packet
    from farstep.sim.packet_knobs import engine_changes
    from farstep.sim.run import SimulationStalled

    run = prepared.run
    name, changes, ignored = engine_changes(prepared.transport, prepared.switch)
    prepared.ignored.extend(ignored)
    changes["sample_interval_ns"] = run.sample_interval_ns
    changes["completes_at_source"] = run.completion == "sender"
    try:
        settings = packet.PacketSettings().updated(changes)
        simulator = packet.PacketSimulator(prepared.topology, settings, transport=name)
        return simulator.run(
            prepared.tasks,
            prepared.actions,
            run.seed,
            until_ns=run.until_ns,
            max_wall_s=run.max_wall_s,
            on_progress=_telling(prepared),
            trace_flows=run.trace_flows,
        )
    except packet.PacketSettingsError as error:
        raise ConfigError(f"transport: {error}") from error
    except packet.SimulationStalled as error:
        raise SimulationStalled(str(error), error.result) from error
    except packet.SimulationCancelled as error:
        raise SimulationStalled(str(error), error.result) from error


def _telling(prepared: Prepared) -> Callable[[int, int], None] | None:
    """What tells of progress, as an engine counts it."""
    from farstep.sim.run import Progress

    told = prepared.on_progress
    if told is None:
        return None
    tasks, until_ns = len(prepared.tasks), prepared.run.until_ns
    return lambda done, now_ns: told(Progress(done=done, tasks=tasks, now_ns=now_ns, until_ns=until_ns))


ENGINES: Mapping[str, Callable[[Prepared], SimResult]] = {"flow": _run_flow, "packet": _run_packet}
"""Engines by level."""
