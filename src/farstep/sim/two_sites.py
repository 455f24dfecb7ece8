"""Two sites joined by emulated paths, as the packet level sees them.

A network as the path emulator takes it becomes a topology with a NIC at each site and a plane for each path; its fault
script becomes what happens to links. So one file runs over real sockets and in the simulator, and both can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from farstep.fabric import ConfigError, EmulatedNetwork, Fault, FaultScript, FaultTimeline
from farstep.fabric.channels import HEADER_BYTES, Channel, ChannelState
from farstep.fabric.errors import quoted
from farstep.fabric.tables import Table
from farstep.fabric.topology.draft import TopologyDraft
from farstep.fabric.topology.model import Topology
from farstep.sim.faults import LinkAction
from farstep.sim.packet import PacketSettings, PacketSimulator
from farstep.sim.result import SimResult
from farstep.sim.tasks import TaskBuilder

__all__ = ["HOST_KNOBS", "SiteFlow", "TwoSites", "simulated_sites"]

MTU_BYTES = 4_096
"""Payload of a packet: few and large ones, so that little of what is compared is the time of a processor."""
TRANSPORT_HEADER_BYTES = 44
CONTROL_BYTES = 100
NEVER_MARKED_BYTES = 2.0**39

HOST_KNOBS: Mapping[str, Any] = {
    "active_evs_per_plane": 8,
    "backup_evs_per_plane": 4,
    "mpr": 64,
    "rto_base_ns": 67_108_864,
    "rto_max_ns": 2_000_000_000,
    "loss_slack_min_ns": 3_000_000,
    "initial_rtt_ns": 1_000_000,
    "first_timeout_ns": 250_000_000,
    "host_delay_ns": 20_000_000,
    "plane_news_ns": 2_000_000,
    "settle_ns": 1_000_000,
    "probe_interval_ns": 0,
    "send_queue": 1024,
}
"""What an endpoint on a host is set to, unlike a NIC."""


class SiteFlow(Table):
    """Messages from one site to the other, all posted at once."""

    sender: str
    """Site that sends; the other one receives."""
    size_bytes: Annotated[int, Field(ge=1, le=2**32)] = 4_000_000
    """Payload of each message."""
    messages: Annotated[int, Field(ge=1, le=1_000)] = 5
    """Messages that follow each other."""


class TwoSites(Table):
    """A network of two sites and what they send each other."""

    network: EmulatedNetwork
    flows: tuple[SiteFlow, ...] = Field(min_length=1, max_length=2)

    @model_validator(mode="after")
    def _is_simple(self) -> TwoSites:
        network = self.network
        if len(network.sites) != 2:
            raise ValueError(f"sites = {list(network.sites)}: there must be two of them")
        planes = [path.plane for path in network.paths]
        if sorted(planes) != list(range(len(planes))):
            raise ValueError(f"planes of the paths are {planes}: each path must have its own, from 0 on")
        for path in network.paths:
            if path.rate_mbps is None:
                raise ValueError(f"path {quoted(path.name)}: rate_mbps is required here")
            for key in ("jitter_ms", "reorder_percent", "duplicate_percent", "corrupt_percent"):
                if getattr(path, key):
                    raise ValueError(
                        f"path {quoted(path.name)}: {key}: the simulator has no such thing; leave it out"
                    )
        senders = [flow.sender for flow in self.flows]
        for sender in senders:
            if sender not in network.sites:
                raise ValueError(
                    f"sender = {quoted(sender)}: no such site; sites: {', '.join(network.sites)}"
                )
        if len(set(senders)) != len(senders):
            raise ValueError("flows: a site can have one entry")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """A topology and the link of each channel on which its faults happen."""

    topology: Topology
    link_of: Mapping[Channel, int]


def _built(network: EmulatedNetwork) -> _Built:
    """A switch at either end of every path; NICs are joined to it at the path's rate."""
    paths = sorted(network.paths, key=lambda path: path.plane)
    count = len(paths)
    plane = np.arange(count)
    rates = np.array([(path.rate_mbps or 0.0) / 1000 for path in paths])
    delays = np.array([path.delay_ms * 1e6 for path in paths])
    draft = TopologyDraft(2, num_planes=count, nic_site=[0, 1])
    near = draft.add_switches(count, tier=0, plane=plane, site=0)
    far = draft.add_switches(count, tier=0, plane=plane, site=1)
    draft.add_cables(np.zeros(count), near, rate_gbps=rates, latency_ns=0.0, plane=plane)
    draft.add_cables(np.ones(count), far, rate_gbps=rates, latency_ns=0.0, plane=plane)
    draft.add_cables(near, far, rate_gbps=rates, latency_ns=delays, plane=plane)
    topology = draft.build("two sites", kind="two-sites", site_names=network.sites)
    link_of = {}
    for channel in network.channels:
        is_forth = channel.from_site == network.sites[0]
        ends = (near, far) if is_forth else (far, near)
        source, target = int(ends[0][channel.plane]), int(ends[1][channel.plane])
        found = np.flatnonzero((topology.link_source == source) & (topology.link_target == target))
        link_of[channel] = int(found[0])
    return _Built(topology=topology, link_of=link_of)


def _actions(
    network: EmulatedNetwork, faults: FaultScript | Iterable[Fault], built: _Built
) -> list[LinkAction]:
    """What the paths' own loss, and the script, do to links."""
    actions: list[LinkAction] = []
    state = dict(network.states)
    for channel, first in state.items():
        if first.loss_percent:
            actions.append(_action(0, built.link_of[channel], "loss", first.loss_percent / 100))
    timeline = FaultTimeline(faults, network)
    while (due := timeline.next_ns) is not None:
        for change in timeline.advance_to(due):
            for channel, now in change.states:
                link = built.link_of[channel]
                actions += _changes(due, link, state[channel], now, network.states[channel])
                state[channel] = now
    return actions


def _changes(
    at_ns: int, link: int, before: ChannelState, now: ChannelState, calm: ChannelState
) -> list[LinkAction]:
    found = []
    if now.is_down != before.is_down:
        found.append(_action(at_ns, link, "down" if now.is_down else "up", 0.0))
    if now.loss_percent != before.loss_percent:
        found.append(_action(at_ns, link, "loss", now.loss_percent / 100))
    if now.rate_mbps != before.rate_mbps and now.rate_mbps and calm.rate_mbps:
        found.append(_action(at_ns, link, "rate", now.rate_mbps / calm.rate_mbps))
    if now.delay_ms != before.delay_ms:
        found.append(_action(at_ns, link, "delay", (now.delay_ms - calm.delay_ms) * 1e6))
    return found


def _action(at_ns: int, link: int, kind: Any, value: float) -> LinkAction:
    links = np.array([link], np.int32)
    return LinkAction(time_ns=at_ns, links=links, kind=kind, value=value, is_signalled=False)


def simulated_sites(
    scenario: TwoSites, faults: FaultScript | Iterable[Fault] = (), *, seed: int = 1
) -> tuple[SimResult, Sequence[str]]:
    """Simulates two sites.

    Args:
        scenario: network and flows.
        faults: what happens to paths; their times count from the first packet.
        seed: draws paths and losses.

    Returns:
        The result, with a task for every message in the order of the flows, and the site that sends each.

    Raises:
        ConfigError: the script names nothing of the network.
        SimulationStalled: no path works any more.
    """
    network = scenario.network
    built = _built(network)
    build, senders = TaskBuilder(), []
    for index, flow in enumerate(scenario.flows):
        source = network.sites.index(flow.sender)
        for _ in range(flow.messages):
            build.flows([source], [1 - source], flow.size_bytes, connection_key=index)
            senders.append(flow.sender)
    rates = [path.rate_mbps or 0.0 for path in network.paths]
    queues = [state.queue_bytes_max or 0 for state in network.states.values()]
    if len(set(queues)) > 1 and len(set(rates)) == 1:
        raise ConfigError("paths of one rate need queues of one size here")
    base_rtt_ns = 2e6 * max(path.delay_ms for path in network.paths)
    settings = PacketSettings(
        mtu_bytes=MTU_BYTES,
        overhead_bytes=HEADER_BYTES + TRANSPORT_HEADER_BYTES,
        control_bytes=CONTROL_BYTES,
        queue_limit_bytes=float(max(queues)),
        last_hop_limit_bytes=float(max(queues)),
        ecn_min_bytes=NEVER_MARKED_BYTES,
        ecn_max_bytes=NEVER_MARKED_BYTES,
        trimming=False,
        base_rtt_ns=base_rtt_ns + MTU_BYTES * 8e3 / min(rates),
        completes_at_source=True,
        stall_ns=60_000_000_000,
        transport={**HOST_KNOBS, "rate_bytes_per_s": sum(rates) * 1e6 / 8},
    )
    actions = sorted(_actions(network, faults, built), key=lambda action: action.time_ns)
    result = PacketSimulator(built.topology, settings).run(build.table(), actions, seed)
    return result, senders
