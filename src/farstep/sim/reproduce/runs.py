"""Runs of the packet level as the experiments need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.fabric.topology import Topology
from farstep.sim.faults import LinkAction
from farstep.sim.packet import PacketSettings, PacketSimulator
from farstep.sim.packet_knobs import engine_changes
from farstep.sim.result import SimResult
from farstep.sim.tasks import TaskBuilder, TaskTable
from farstep.sim.transports import Switch, Transport

__all__ = ["both_ways", "bundle", "flow_times_us", "goodput_gbps", "link_action", "run", "streams"]


def run(
    topology: Topology,
    tasks: TaskTable,
    transport: str = "mrc",
    *,
    seed: int = 1,
    actions: Sequence[LinkAction] = (),
    until_ns: float | None = None,
    **settings: Any,
) -> SimResult:
    """Simulates a table with settings by the engine's names.

    Args:
        topology: the network.
        tasks: what is to be done.
        transport: one of a scenario's.
        seed: draws what is left to chance.
        actions: what happens to links.
        until_ns: end of the simulation.
        settings: of `PacketSettings` or of the transport.

    Raises:
        SimulationStalled: nothing happens any more.
        PacketSettingsError: a setting cannot be used.
    """
    name, changes, _ = engine_changes(Transport(name=transport, engine=settings), Switch())
    simulator = PacketSimulator(topology, PacketSettings().updated(changes), transport=name)
    return simulator.run(tasks, actions, seed, until_ns=until_ns)


def flow_times_us(result: SimResult, chosen: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """Duration of every finished flow in µs."""
    done = result.finished & result.tasks.is_flow
    if chosen is not None:
        done &= chosen
    return np.asarray((result.finish_ns[done] - result.start_ns[done]) / 1000.0, np.float64)


def link_action(
    at_us: float, links: ArrayLike, kind: Any, value: float = 0.0, *, is_signalled: bool = True
) -> LinkAction:
    """Something that happens to directed links."""
    return LinkAction(
        time_ns=round(at_us * 1000),
        links=np.sort(np.asarray(links, np.int32)),
        kind=kind,
        value=value,
        is_signalled=is_signalled,
    )


def streams(
    source: ArrayLike,
    target: ArrayLike,
    size_bytes: int,
    *,
    queue_pairs: int = 1,
    messages: int = 1,
    start_ns: ArrayLike = 0,
) -> TaskTable:
    """Messages that follow each other without waiting, on one or more connections of each pair.

    Args:
        source: NIC that sends.
        target: NIC that receives, one for each source.
        size_bytes: payload of a message.
        queue_pairs: connections of each pair, each with messages of its own.
        messages: messages of each connection, all posted at once.
        start_ns: when each pair starts.
    """
    sources, targets = np.atleast_1d(source), np.atleast_1d(target)
    starts = np.broadcast_to(np.asarray(start_ns, np.int64), sources.shape)
    build = TaskBuilder()
    for _ in range(messages):
        for pair in range(queue_pairs):
            key = np.arange(len(sources)) * queue_pairs + pair
            build.flows(sources, targets, size_bytes, start_ns=starts, connection_key=key)
    return build.table()


def bundle(values: Mapping[Any, Sequence[float]]) -> tuple[list[float], list[float], list[float]]:
    """Median, 5th and 95th percentile of several series of figures."""
    quantiles = [np.percentile(series, (50, 5, 95)) for series in values.values()]
    middle, low, high = (list(map(float, column)) for column in zip(*quantiles, strict=True))
    return middle, low, high


def goodput_gbps(result: SimResult, from_us: float, until_us: float) -> float:
    """Payload delivered per time between two instants, of all flows together, from the sampled series."""
    ends_us = np.asarray(result.series["time_ns"], np.float64) / 1000.0
    starts_us = np.concatenate(([0.0], ends_us[:-1]))
    inside = (starts_us >= from_us - 1e-6) & (ends_us <= until_us + 1e-6)
    if not inside.any():
        raise ValueError(f"no sample lies between {from_us} and {until_us} us")
    lasted_us = (ends_us - starts_us)[inside].sum()
    return float(np.asarray(result.series["goodput_bytes"])[inside].sum() * 8e-3 / lasted_us)


def both_ways(links: ArrayLike) -> NDArray[np.int32]:
    """Links and their opposite directions."""
    given = np.asarray(links, np.int32)
    return np.unique(np.concatenate((given, given ^ 1)))
