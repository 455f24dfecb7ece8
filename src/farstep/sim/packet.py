"""The packet level: every packet of every flow through every queue, with the transport as it is shipped.

The engine is compiled; this module sets it up from a topology, a table of tasks and what happens to links, and reads
its columns off. Settings are plain: `PacketSettings` has every knob of the fabric and of MRC, 0 or -1 standing for what
the rules derive from rate and round trip.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from farstep import _native
from farstep.fabric.errors import quoted
from farstep.fabric.topology import Topology
from farstep.sim.link_actions import LinkAction
from farstep.sim.reconvergence import reroutes
from farstep.sim.result import LinkUse, SimResult
from farstep.sim.tasks import TaskTable
from farstep.sim.trace import check_flows, packets_of

if TYPE_CHECKING:
    from farstep.sim.transports import Switch, Transport

__all__ = [
    "PacketSettings",
    "PacketSettingsError",
    "PacketSimulator",
    "RunStatus",
    "SimulationCancelled",
    "SimulationStalled",
    "packet_settings",
]

NS_PER_US = 1000.0
NEVER_NS = 2**64 - 1
MPR_UNIT_PACKETS = 128
RATE_ERROR_MAX = 0.01
"""Rates of links are whole parts of the fastest one's; more than this off is told in the result."""
_SLICE_S = 0.2
"""Real time between two reports of progress."""
LINES_MAX = 8
"""Unfinished tasks a message tells of."""


class PacketSettingsError(ValueError):
    """A setting the packet level cannot use; the message names it, its value and what would be valid."""


class SimulationStalled(RuntimeError):
    """The run made no progress any more; the message names flows and what each waits for.

    Attributes:
        result: what had happened until then.
    """

    result: SimResult | None = None


class SimulationCancelled(RuntimeError):
    """The run was ended before its time by a limit of its caller.

    Attributes:
        result: what had happened until then.
    """

    result: SimResult | None = None


class RunStatus(enum.IntEnum):
    """How a run ended."""

    FINISHED = 0
    UNTIL = 1
    WALL_LIMIT = 2
    CANCELLED = 3
    STALLED = 4


class _FaultKind(enum.IntEnum):
    """Kinds of the engine's fault schedule."""

    DOWN = 0
    UP = 1
    LOSS = 2
    RATE = 3
    DELAY = 4
    PORT_KNOWN_DOWN = 5
    PORT_KNOWN_UP = 6
    SWITCH_KNOWS_DOWN = 9
    SWITCH_KNOWS_UP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketSettings:
    """Everything about a run that is not the network, the work or the faults.

    Sizes are bytes on the wire, unless they are said to be payload. A queue or a threshold left at its neutral value
    is sized by bandwidth-delay products (BDP) of its port, as NSCC assumes of switches (UET 3.6.17).

    Raises:
        PacketSettingsError: a value cannot be used.
    """

    mtu_bytes: int = 4096
    """Payload of a full packet."""
    overhead_bytes: int = 166
    """What surrounds it on the wire, preamble and gap included (MRC over SRv6)."""
    control_bytes: int = 178
    """An acknowledgement on the wire."""
    trimmed_bytes: int = 162
    """What is left of a trimmed packet."""
    queue_limit_bytes: float = 0.0
    """Room of a port's queue; 0: 1 BDP."""
    last_hop_limit_bytes: float = 0.0
    """Room of a queue that faces a NIC; 0: 1.5 BDP, or `queue_limit_bytes` where that is set."""
    ecn_min_bytes: float = -1.0
    """Queue from which on packets are marked now and then; -1: 0.2 BDP."""
    ecn_max_bytes: float = -1.0
    """Queue from which on all are marked; -1: 0.8 BDP."""
    ecn_max_share: float = 1.0
    """Share of packets marked just below that."""
    trimming: bool = True
    """Whether a packet that finds no room is cut to its header; False: it is lost."""
    last_hop_ecn: bool = False
    """Whether queues that face a NIC mark packets, too."""
    host_latency_ns: float = 0.0
    """Time every packet spends in the NIC that receives it."""
    base_rtt_ns: float = 0.0
    """Round trip of the idle network, by which windows and queues are sized; 0: of the longest path."""
    remap_delay_ns: int = 0
    """From a NIC port's failure until the NIC leaves the plane, and as long again until its peers have."""
    reconvergence_ns: float = -1.0
    """From a failure that is signalled until routing goes round it; -1: never, as with source routes."""
    sample_interval_ns: int = 0
    """Time between samples of the series; 0: no series."""
    sample_links: bool = False
    """Whether the series has a column for every link."""
    completes_at_source: bool = False
    """A flow is done when its sender knows; False: when its last byte is at the receiver."""
    stall_ns: int = 1_000_000_000
    """Nothing arrived for so long, and for `STALL_RTTS` of the longest round trip: the run is stuck."""
    transport: Mapping[str, Any] = field(default_factory=dict)
    """Knobs of the transport, see `MRC_KNOBS` for those of `mrc`."""

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise PacketSettingsError(f"{name} = {quoted(value)}; valid: {low} to {high}")
        if self.mtu_bytes + self.overhead_bytes > _WIRE_BYTES_MAX:
            raise PacketSettingsError(
                f"mtu_bytes + overhead_bytes = {self.mtu_bytes + self.overhead_bytes}; valid: up to {_WIRE_BYTES_MAX}"
            )

    def updated(self, changes: Mapping[str, Any]) -> PacketSettings:
        """Returns these settings with some changed; unknown names are taken for knobs of the transport."""
        known = {item.name for item in fields(self)} - {"transport"}
        own = {name: value for name, value in changes.items() if name in known}
        rest = {name: value for name, value in changes.items() if name not in known and name != "transport"}
        knobs = {**self.transport, **changes.get("transport", {}), **rest}
        return replace(self, **own, transport=knobs)


_WIRE_BYTES_MAX = 65_535
_LIMITS: Mapping[str, tuple[float, float]] = {
    "mtu_bytes": (64, 65_000),
    "overhead_bytes": (0, 1_024),
    "control_bytes": (1, 1_024),
    "trimmed_bytes": (1, 1_024),
    "queue_limit_bytes": (0, 2**40),
    "last_hop_limit_bytes": (0, 2**40),
    "ecn_min_bytes": (-1, 2**40),
    "ecn_max_bytes": (-1, 2**40),
    "ecn_max_share": (0, 1),
    "host_latency_ns": (0, 1e12),
    "base_rtt_ns": (0, 1e12),
    "remap_delay_ns": (0, 10**13),
    "reconvergence_ns": (-1, 1e15),
    "sample_interval_ns": (0, 10**16),
    "stall_ns": (1, 10**16),
}

MRC_KNOBS: Mapping[str, Any] = {
    "active_evs_per_plane": 64,
    "backup_evs_per_plane": 32,
    "answer_evs_per_plane": 4,
    "mpr": 0,
    "sack_threshold_bytes": 16_384,
    "rto_base_ns": 100_000,
    "rto_max_ns": 100_000_000,
    "loss_slack_min_ns": 10_000,
    "keepalive_ns": 0,
    "host_delay_ns": 100_000,
    "plane_news_ns": 100_000,
    "settle_ns": 10_000,
    "probe_interval_ns": 1_000_000,
    "restore_successes": 5,
    "skip_passes": 1,
    "quick_adapt": True,
}
"""What MRC is set to where nothing else is said. The rest of its knobs have the shipped core's values.

The times are those of NICs: hosts answer milliseconds late, which is what the shipped defaults allow for. `mpr` 0:
twice the largest window. `initial_rtt_ns` and `first_timeout_ns` follow the network's round trip.
"""
STALL_RTTS = 16
FIRST_TIMEOUT_RTTS = 10
FIRST_TIMEOUT_MIN_NS = 200_000

_SCENARIO_KNOBS: Mapping[str, tuple[str, float]] = {
    "mtu_bytes": ("mtu_bytes", 1),
    "overhead_bytes": ("overhead_bytes", 1),
    "host_latency_us": ("host_latency_ns", NS_PER_US),
    "evs": ("active_evs_per_plane", 1),
    "backup_evs": ("backup_evs_per_plane", 1),
    "probe_interval_us": ("probe_interval_ns", NS_PER_US),
    "restore_probes": ("restore_successes", 1),
    "skip_passes": ("skip_passes", 1),
    "sack_bytes": ("sack_threshold_bytes", 1),
    "mpr_packets": ("mpr", 1 / MPR_UNIT_PACKETS),
    "remap_us": ("remap_delay_ns", NS_PER_US),
    "rto_us": ("rto_base_ns", NS_PER_US),
    "target_delay_us": ("target_delay_ns", NS_PER_US),
    "window_bytes": ("max_cwnd_bytes", 1),
    "quick_adapt": ("quick_adapt", 1),
    "capacity_share": ("capacity_share", 1),
}
"""Knobs of a scenario's transport, the engine's names for them and their units."""

_SWITCH_KNOBS: Mapping[str, str] = {
    "queue_bytes": "queue_limit_bytes",
    "last_hop_queue_bytes": "last_hop_limit_bytes",
    "ecn_min_bytes": "ecn_min_bytes",
    "ecn_max_bytes": "ecn_max_bytes",
    "trimming": "trimming",
    "last_hop_ecn": "last_hop_ecn",
}
_WHOLE = frozenset(
    {
        "probe_interval_ns",
        "remap_delay_ns",
        "rto_base_ns",
        "target_delay_ns",
        "mpr",
        "mtu_bytes",
        "overhead_bytes",
    }
)


def packet_settings(transport: Transport, switch: Switch | None = None, **changes: Any) -> PacketSettings:
    """Reads settings off a scenario's transport and switches.

    Args:
        transport: the transport and its knobs.
        switch: what switches do.
        changes: settings or knobs by the engine's names, which count most.

    Raises:
        PacketSettingsError: a value cannot be used.
    """
    found: dict[str, Any] = {}
    for knob, value in transport.knobs.items():
        name, unit = _SCENARIO_KNOBS.get(knob, (knob, 1))
        scaled = value if isinstance(value, bool) or unit == 1 else value * unit
        found[name] = round(scaled) if name in _WHOLE and not isinstance(scaled, bool) else scaled
    if switch is not None:
        found.update({_SWITCH_KNOBS[knob]: value for knob, value in switch.knobs.items()})
    return PacketSettings().updated({**found, **changes})


class PacketSimulator:
    """The packet level over one network with one transport.

    Args:
        topology: the network.
        settings: fabric and transport; None: all as the rules derive it.
        transport: name of the transport.
    """

    def __init__(
        self, topology: Topology, settings: PacketSettings | None = None, *, transport: str = "mrc"
    ) -> None:
        self.topology = topology
        self.settings = PacketSettings() if settings is None else settings
        self.transport = transport

    def run(
        self,
        tasks: TaskTable,
        faults: Iterable[LinkAction] = (),
        seed: int = 0,
        *,
        until_ns: float | None = None,
        max_wall_s: float | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        trace_flows: Sequence[int] = (),
    ) -> SimResult:
        """Simulates a table to its end.

        Args:
            tasks: what is to be done.
            faults: what happens to links.
            seed: draws paths, marks and random losses; equal seeds give equal results.
            until_ns: ends the simulation there, with tasks unfinished.
            max_wall_s: gives up after so many seconds of real time.
            on_progress: is told a few times a second how many tasks are done, and the simulated time in ns.
            trace_flows: tasks whose packets are told one by one.

        Raises:
            ConfigError: what is to be followed is no flow.
            WorkloadError: the table cannot be simulated on this network.
            PacketSettingsError: a setting is not known or cannot be used.
            SimulationStalled: nothing arrives any more.
            SimulationCancelled: `max_wall_s` is over.
        """
        tasks.validate(self.topology.num_nics)
        began_s = time.perf_counter()
        engine = self._engine(seed)
        engine.add_tasks(_task_columns(tasks))
        followed = check_flows(trace_flows, tasks)
        if len(followed):
            engine.trace(followed)
        actions = list(faults)
        _add_faults(engine, self.topology, actions)
        if self.settings.reconvergence_ns >= 0:
            for time_ns, routes in reroutes(self.topology, actions, self.settings.reconvergence_ns):
                engine.add_reroute(time_ns, routes)
        built_s, cpu_s = time.perf_counter(), time.process_time()
        limit = NEVER_NS if until_ns is None else int(until_ns)
        status = self._carry_on(engine, limit, max_wall_s, on_progress)
        times = {
            "build_s": built_s - began_s,
            "wall_s": time.perf_counter() - built_s,
            "cpu_s": time.process_time() - cpu_s,
        }
        engine.settle()
        result = self._result(engine, tasks, seed, status, times)
        if len(followed):
            ends = (result.start_ns, result.finish_ns)
            result.trace.update(packets_of(engine, followed, *ends, self.topology.link_plane))
        lines = "; ".join(engine.unfinished(LINES_MAX))
        at_us = engine.now_ns / NS_PER_US
        if status is RunStatus.STALLED:
            stalled = SimulationStalled(
                f"nothing happens any more at {at_us:.1f} us, {engine.tasks_left} tasks are unfinished: {lines}"
            )
            stalled.result = result
            raise stalled
        if status in (RunStatus.CANCELLED, RunStatus.WALL_LIMIT):
            cancelled = SimulationCancelled(
                f"ended after {times['wall_s']:.1f} s at {at_us:.1f} us of simulated time,"
                f" {engine.tasks_left} tasks are unfinished: {lines}"
            )
            cancelled.result = result
            raise cancelled
        return result

    def _carry_on(
        self,
        engine: _native.PacketEngine,
        limit_ns: int,
        max_wall_s: float | None,
        on_progress: Callable[[int, int], None] | None,
    ) -> RunStatus:
        """Runs to the end, in slices of real time between which progress is told."""
        stall_ns = max(self.settings.stall_ns, round(STALL_RTTS * self._longest_round_trip_ns()))
        if on_progress is None:
            return RunStatus(engine.run(limit_ns, max_wall_s or 0.0, stall_ns))
        began_s, total = time.perf_counter(), engine.tasks_left
        while True:
            left_s = np.inf if max_wall_s is None else max_wall_s - (time.perf_counter() - began_s)
            if left_s <= 0.0:
                return RunStatus.WALL_LIMIT
            status = RunStatus(engine.run(limit_ns, min(left_s, _SLICE_S), stall_ns))
            on_progress(total - engine.tasks_left, engine.now_ns)
            if status is not RunStatus.WALL_LIMIT:
                return status

    def _engine(self, seed: int) -> _native.PacketEngine:
        settings = asdict(self.settings)
        del settings["transport"], settings["stall_ns"], settings["reconvergence_ns"]
        knobs: dict[str, Any] = {**(MRC_KNOBS if self.transport == "mrc" else {}), **self.settings.transport}
        if not settings["base_rtt_ns"]:
            settings["base_rtt_ns"] = self._longest_round_trip_ns()
        if self.transport == "mrc":
            rtt_ns = max(1, round(settings["base_rtt_ns"]))
            knobs.setdefault("initial_rtt_ns", rtt_ns)
            knobs.setdefault("first_timeout_ns", max(FIRST_TIMEOUT_MIN_NS, FIRST_TIMEOUT_RTTS * rtt_ns))
            ports = int(np.diff(self.topology.ports.offset).max(initial=1))
            knobs.update(_fitting_evs(knobs, self.settings.transport, ports))
        try:
            return _native.PacketEngine(
                self.transport, self.topology.engine_columns(), {**settings, **knobs, "seed": seed}
            )
        except (ValueError, RuntimeError) as error:
            raise PacketSettingsError(str(error)) from None

    def _longest_round_trip_ns(self) -> float:
        """Round trip over the longest of a sample of paths: out with a full packet, back with an answer."""
        topology, settings = self.topology, self.settings
        rng = np.random.default_rng(0)
        pairs = min(_PAIRS_SAMPLED, topology.num_nics * (topology.num_nics - 1))
        if not pairs:
            return 0.0
        source = rng.integers(0, topology.num_nics, pairs)
        target = (source + rng.integers(1, topology.num_nics, pairs)) % topology.num_nics
        plane = topology.ports.plane[topology.ports.offset[source]]
        paths = topology.routes().paths(source, target, plane, rng.integers(0, 2**20, pairs))
        on_path = paths >= 0
        links = np.where(on_path, paths, 0)
        one_way = np.where(
            on_path,
            topology.link_latency_ns[links] + topology.switch_latency_ns[topology.link_source[links]],
            0.0,
        ).sum(axis=1)
        bits = 8.0 * (settings.mtu_bytes + settings.overhead_bytes + settings.control_bytes)
        wire = np.where(on_path, bits / topology.link_rate_gbps[links], 0.0).sum(axis=1)
        return float((2 * one_way + wire).max() + 2 * settings.host_latency_ns)

    def _result(
        self,
        engine: _native.PacketEngine,
        tasks: TaskTable,
        seed: int,
        status: RunStatus,
        times: Mapping[str, float],
    ) -> SimResult:
        settings = self.settings
        counters = {name: int(value) for name, value in engine.counters().items()}
        series = dict(engine.series_columns())
        meta: dict[str, Any] = {
            "level": "packet",
            "transport": self.transport,
            "seed": seed,
            "fabric": self.topology.name,
            **times,
            "status": status.name.lower(),
            "end_ns": float(engine.now_ns),
            "payload_share": settings.mtu_bytes / (settings.mtu_bytes + settings.overhead_bytes),
            "slot_ns": engine.slot_ns,
            "packet_hops_per_s": (counters["data_hops"] + counters["control_hops"])
            / max(times["wall_s"], 1e-9),
            "failures": engine.failures()[:LINES_MAX],
            "unfinished": engine.unfinished(LINES_MAX) if engine.tasks_left else [],
            "settings": _plain(settings),
        }
        if engine.worst_rate_error > RATE_ERROR_MAX:
            meta["rate_error"] = engine.worst_rate_error
        if series:
            meta["sample_interval_ns"] = settings.sample_interval_ns
            groups = [f"{_tier_name(a)} -> {_tier_name(b)}" for a, b in engine.series_groups()]
            meta["series_columns"] = {"group_bytes": groups, "queue_max_bytes": groups}
        return SimResult.of(
            tasks,
            engine.task_columns(),
            LinkUse.of(self.topology, engine.link_columns()),
            series=series,
            ev_events=dict(engine.event_columns()),
            counters=counters,
            meta=meta,
        )


def _fitting_evs(knobs: Mapping[str, Any], asked: Mapping[str, Any], ports: int) -> dict[str, int]:
    """Entropy values of a plane, as far as a connection has room; what was asked for is kept or refused."""
    active, backup = int(knobs["active_evs_per_plane"]), int(knobs["backup_evs_per_plane"])
    room = _native.MAX_ENTROPY_VALUES // ports
    if active + backup > room:
        if "backup_evs_per_plane" not in asked:
            backup = min(backup, max(0, room - active) if "active_evs_per_plane" in asked else room // 3)
        if "active_evs_per_plane" not in asked:
            active = min(active, max(1, room - backup))
    if active + backup > room:
        raise PacketSettingsError(
            f"evs + backup_evs = {active} + {backup} in each plane; valid: up to {room} together,"
            f" {_native.MAX_ENTROPY_VALUES} over the {ports} ports of a NIC"
        )
    return {"active_evs_per_plane": active, "backup_evs_per_plane": backup}


_PAIRS_SAMPLED = 512


def _plain(settings: PacketSettings) -> dict[str, Any]:
    values = asdict(settings)
    return {**values, "transport": dict(settings.transport)}


def _tier_name(tier: int) -> str:
    return "NIC" if tier < 0 else f"T{tier}"


def _task_columns(tasks: TaskTable) -> dict[str, NDArray[Any]]:
    names = (
        "kind",
        "source",
        "target",
        "size_bytes",
        "start_ns",
        "delay_ns",
        "connection_key",
        "job",
        "dep_offset",
        "dep_index",
    )
    return {name: np.ascontiguousarray(getattr(tasks, name)) for name in names}


def _add_faults(engine: _native.PacketEngine, topology: Topology, faults: Iterable[LinkAction]) -> None:
    rows: list[tuple[int, _FaultKind, NDArray[np.int32], float]] = []
    for action in faults:
        rows.append((action.time_ns, _KIND_OF[action.kind], action.links, action.value))
        if action.kind in ("down", "up") and action.is_signalled:
            # One row for each port: of the cable's two directions that which leaves the NIC.
            uplinks = action.links[topology.link_source[action.links] < topology.num_nics]
            downlinks = action.links[topology.link_target[action.links] < topology.num_nics] ^ 1
            ports = np.union1d(uplinks, downlinks).astype(np.int32)
            known = _FaultKind.PORT_KNOWN_DOWN if action.kind == "down" else _FaultKind.PORT_KNOWN_UP
            rows.append((action.time_ns, known, ports, 0.0))
            own = action.links[topology.link_source[action.links] >= topology.num_nics]
            known = _FaultKind.SWITCH_KNOWS_DOWN if action.kind == "down" else _FaultKind.SWITCH_KNOWS_UP
            rows.append((action.time_ns, known, own, 0.0))
    columns = _fault_columns(rows)
    if len(columns[0]):
        engine.add_faults(*columns)


def _fault_columns(
    rows: Sequence[tuple[int, _FaultKind, NDArray[np.int32], float]],
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int32], NDArray[np.float64]]:
    sizes = [len(links) for _, _, links, _ in rows]
    return (
        np.repeat(np.array([at for at, _, _, _ in rows], np.int64), sizes),
        np.repeat(np.array([kind for _, kind, _, _ in rows], np.uint8), sizes),
        np.concatenate([links for _, _, links, _ in rows]).astype(np.int32)
        if rows
        else np.zeros(0, np.int32),
        np.repeat(np.array([value for _, _, _, value in rows], np.float64), sizes),
    )


_KIND_OF: Mapping[str, _FaultKind] = {
    "down": _FaultKind.DOWN,
    "up": _FaultKind.UP,
    "rate": _FaultKind.RATE,
    "loss": _FaultKind.LOSS,
    "delay": _FaultKind.DELAY,
}
