"""Two endpoints of this machine, joined by emulated paths, and how long messages between them take."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from farstep.fabric import Fault, FaultScript
    from farstep.sim.two_sites import TwoSites

__all__ = ["WireRun", "measured_sites"]

WAIT_S = 300.0
WARM_BYTES = 1_000_000
"""Sent on every connection before the clock starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRun:
    """What a run over real sockets came to.

    Attributes:
        finish_s: since the first write, of every message in the order of the flows.
        retransmitted: packets sent again.
        packets: data packets sent, those sent again counted.
        losses: packets the emulated paths lost, answers included.
        bad_evs: entropy values given up.
    """

    finish_s: np.ndarray
    retransmitted: int
    packets: int
    losses: int
    bad_evs: int


def measured_sites(
    scenario: TwoSites, faults: FaultScript | Iterable[Fault] = (), *, seed: int = 1
) -> WireRun:
    """Runs two sites over the path emulator.

    Args:
        scenario: network and flows.
        faults: what happens to paths; their times count from the first write.
        seed: draws paths.

    Raises:
        EmulatorError: the emulator cannot be started.
        EngineError: a connection fails.
    """
    from farstep.engine import Endpoint, EndpointProfile, PortConfig
    from farstep.lab import Emulator
    from farstep.sim.two_sites import MTU_BYTES

    network = scenario.network
    paths = sorted(network.paths, key=lambda path: path.plane)
    with ExitStack() as stack:
        emulator = stack.enter_context(Emulator(network))
        ports = [PortConfig(plane=path.plane, rate_mbps=path.rate_mbps) for path in paths]
        profile = EndpointProfile(mtu_bytes=MTU_BYTES, seed=seed)
        ends = [
            stack.enter_context(Endpoint(ports, profile=profile, name=site, site=site))
            for site in network.sites
        ]
        for site, end in zip(network.sites, ends, strict=True):
            for plane, address in enumerate(end.ports):
                public = emulator.expose(site, plane, address)
                end.set_public_addresses(plane, {name: to for name, to in public.items() if name != site})
        connections, posts = _connected(scenario, ends, stack)
        for there, mine, theirs in dict.fromkeys(posts):
            # A connection that has not sent yet has the round trip to learn; the simulator is told it.
            there.write(mine, 0, min(WARM_BYTES, mine.length_bytes), theirs.remote, 0).wait(WAIT_S)
        before = _lost(emulator.stats())
        warmed = [connection.stats() for connection in connections]
        warm = sum(w.retransmitted_packets for w in warmed), sum(w.tx_packets for w in warmed)
        finished = np.zeros(len(posts))
        if faults:
            emulator.load(faults)
        began_s = time.monotonic()
        completions = [
            there.write(mine, 0, mine.length_bytes, theirs.remote, 0) for there, mine, theirs in posts
        ]
        for index, completion in enumerate(completions):
            completion.add_done_callback(lambda _, index=index: _note(finished, index, began_s))
        for completion in completions:
            completion.wait(WAIT_S)
        deadline_s = time.monotonic() + 1.0
        while not finished.all() and time.monotonic() < deadline_s:
            time.sleep(0.001)
        stats = [connection.stats() for connection in connections]
        lost = emulator.stats()
    return WireRun(
        finish_s=finished,
        retransmitted=sum(each.retransmitted_packets for each in stats) - warm[0],
        packets=sum(each.tx_packets for each in stats) - warm[1],
        losses=_lost(lost) - before,
        bad_evs=sum(plane.bad_evs for each in stats for plane in each.planes),
    )


def _connected(
    scenario: TwoSites, ends: Sequence[Any], stack: ExitStack
) -> tuple[list[Any], list[tuple[Any, Any, Any]]]:
    """Connections of the flows, and for each message its connection and the regions it goes from and to."""
    sites = scenario.network.sites
    connections, posts = [], []
    for flow in scenario.flows:
        source = sites.index(flow.sender)
        there = ends[source].create_connection(peer_name=sites[1 - source])
        back = ends[1 - source].create_connection(peer_name=flow.sender)
        there.connect(back.descriptor)
        back.connect(there.descriptor)
        connections.append(there)
        held = [np.zeros(flow.size_bytes, np.uint8) for _ in range(2)]
        mine = stack.enter_context(ends[source].register(held[0]))
        theirs = stack.enter_context(ends[1 - source].register(held[1]))
        posts += [(there, mine, theirs)] * flow.messages
    return connections, posts


def _note(finished: np.ndarray, index: int, began_s: float) -> None:
    finished[index] = time.monotonic() - began_s


def _lost(stats: dict[str, Any]) -> int:
    """Packets that paths lost, for whatever reason."""
    return sum(int(sum(channel["drops"].values())) for channel in stats["channels"])
