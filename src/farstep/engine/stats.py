"""Counters of endpoints, connections, planes and paths."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

__all__ = [
    "CongestionStats",
    "ConnectionStats",
    "EndpointStats",
    "EvState",
    "PathEvent",
    "PathStats",
    "PlaneStats",
    "PortStats",
]


class EvState(IntEnum):
    """State of an entropy value, in the order of its life cycle (MRC, section 4.3)."""

    GOOD = 0
    SKIP = 1
    ASSUMED_BAD = 2
    DENIED = 3


@dataclass(frozen=True, slots=True)
class PathStats:
    """One entropy value: `ev` is its index, `value` the 32 bits on the wire (in udp mode the UDP source port)."""

    ev: int
    plane: int
    local_port: int
    remote_port: int
    source: int
    value: int
    state: EvState
    active: bool
    tx_packets: int
    tx_bytes: int
    acked_bytes: int
    lost: int
    ecn: int
    trims: int
    condemned: int
    restores: int
    rtt_ns: int


@dataclass(frozen=True, slots=True)
class PlaneStats:
    """All paths between one local and one remote port."""

    plane: int
    local_port: int
    remote_port: int
    usable: bool
    down: bool
    active_evs: int
    good_evs: int
    bad_evs: int
    tx_bytes: int
    acked_bytes: int
    lost: int
    inflight_bytes: int
    weight: float
    rtt_ns: int

    @property
    def state(self) -> EvState:
        """The plane in one word: DENIED if a port is down, ASSUMED_BAD if none of its paths is good."""
        if not self.usable:
            return EvState.DENIED
        if self.down or self.active_evs == 0:
            return EvState.ASSUMED_BAD
        return EvState.GOOD if self.good_evs else EvState.SKIP


@dataclass(frozen=True, slots=True)
class CongestionStats:
    """The congestion context of one destination, shared by all connections to it."""

    cwnd_bytes: int
    max_cwnd_bytes: int
    inflight_bytes: int
    base_rtt_ns: int
    avg_delay_ns: int
    quick_adapts: int
    rate_bytes_per_s: float
    remote_ports: int


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """One connection. Packets and bytes count from its start."""

    tx_packets: int
    tx_bytes: int
    retransmitted_packets: int
    lost_order: int
    lost_late: int
    lost_timeout: int
    trimmed: int
    spurious_losses: int
    soft_timeouts: int
    timeouts: int
    sacks_received: int
    nacks_received: int
    acks_received: int
    invalid_sacks: int
    inflight_bytes: int
    srtt_ns: int
    rttvar_ns: int
    retries: int
    posted: int
    completed: int
    probes_sent: int
    probes_answered: int
    probes_lost: int
    planes_inferred_down: int
    rx_packets: int
    rx_bytes: int
    duplicates: int
    out_of_order: int
    out_of_window: int
    ecn_marked: int
    refused: int
    messages_received: int
    immediates_received: int
    sacks_sent: int
    nacks_sent: int
    acks_sent: int
    congestion: CongestionStats
    planes: tuple[PlaneStats, ...]
    paths: tuple[PathStats, ...] = ()

    @classmethod
    def from_native(cls, values: dict[str, Any]) -> ConnectionStats:
        """Builds from what the compiled endpoint reports; all zero for a connection not opened yet."""
        if not values:
            values = {f.name: 0 for f in fields(cls)}
            values |= {"congestion": {f.name: 0 for f in fields(CongestionStats)}, "planes": [], "paths": []}
        paths = tuple(PathStats(**{**p, "state": EvState(p["state"])}) for p in values.pop("paths", ()))
        planes = tuple(PlaneStats(**p) for p in values.pop("planes"))
        congestion = CongestionStats(**values.pop("congestion"))
        return cls(**values, congestion=congestion, planes=planes, paths=paths)


@dataclass(frozen=True, slots=True)
class PortStats:
    """One local port."""

    tx_bytes: int
    rx_bytes: int
    up: bool


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """The endpoint as a whole.

    Attributes:
        rejected: unusable datagrams by reason. Of protected connections also `forged` (wrong key, or changed on the
            way), `replayed` (came before) and `unprotected` (in the clear to one that takes nothing in the clear).
        sealed: packets that were sent protected.
        opened: protected packets that were genuine and new.
        key_updates: keys that took the place of others, in either direction.
    """

    rx_datagrams: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    tx_bursts: int
    unknown_qpn: int
    port_updates: int
    receive_overflow: int
    rejected: dict[str, int]
    sealed: int
    opened: int
    key_updates: int
    ports: tuple[PortStats, ...]
    thread_cpu_ns: int
    loop_iterations: int
    loop_sleeps: int
    send_blocked: int
    send_failed: int
    receive_calls: int
    messages: int

    @classmethod
    def from_native(cls, values: dict[str, Any]) -> EndpointStats:
        """Builds from what the compiled endpoint reports."""
        ports = tuple(PortStats(**p) for p in values.pop("ports"))
        return cls(**values, ports=ports)


@dataclass(frozen=True, slots=True)
class PathEvent:
    """An entropy value changed its state (MRC, section 4.7). `at_ns` is the monotonic clock."""

    peer_name: str
    at_ns: int
    ev: int
    plane: int
    state: EvState
    drop_count: int
    peer_site: str = ""
