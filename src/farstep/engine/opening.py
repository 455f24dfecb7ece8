"""From two descriptors to what the compiled core opens a connection with."""

from __future__ import annotations

import ipaddress
import random
from typing import TYPE_CHECKING

from farstep import _native
from farstep.engine.descriptor import ConnectionDescriptor
from farstep.engine.errors import EngineError
from farstep.engine.interface import EMULATED_SITE_MTU_BYTES, SITE_MTU_BYTES
from farstep.engine.profile import PROTECTION_MORE_BYTES
from farstep.engine.security import Agreement, Protection, agree
from farstep.engine.srv6_paths import check_path_modes, set_srv6_paths
from farstep.mrc.profiles import ALGORITHM_NONE, CongestionProfile, EvProfile

if TYPE_CHECKING:
    from farstep.engine.endpoint import Endpoint

__all__ = ["agreement_of", "join_ports", "parameters_for"]

HOST_NOISE_NS = 500_000
"""How late a busy host may answer without that being a queue in the network. Sizes the window of short round trips."""
SLOW_LINE_HOST_NOISE_NS = 4_000_000
"""The same on a line so slow that this is no more than `HOST_NOISE_BYTES`. Sending is paced at the configured rate, so
the wider window does not stand in a queue; it outlasts what delays acknowledgements: the host, and traffic the other
way. At 0.5 ms one direction of an all-reduce over 2 x 200 Mbit/s fell behind the other; at 4 ms both fill the line."""
HOST_NOISE_BYTES = 262_144
PLANES_MAX = 32


def join_ports(own_planes: list[int], peer_planes: list[int]) -> list[tuple[int, int]]:
    """Pairs of (local port, remote port) that paths run between.

    Ports of the same plane are joined. Where no plane number is shared, every port is joined to every other.

    >>> join_ports([0, 1], [1, 0])
    [(0, 1), (1, 0)]
    >>> join_ports([0, 1], [7])
    [(0, 0), (1, 0)]
    """
    joined = [(i, k) for i, a in enumerate(own_planes) for k, b in enumerate(peer_planes) if a == b]
    if not joined:
        joined = [(i, k) for i in range(len(own_planes)) for k in range(len(peer_planes))]
    return joined[:PLANES_MAX]


def agreement_of(own: ConnectionDescriptor, peer: ConnectionDescriptor) -> Agreement:
    """Returns what protection a connection between the two ends needs; both come to the same answer.

    Raises:
        SecurityError: one end asks for what the other cannot do.
    """
    is_same_site = own.site == peer.site
    return agree(own.security, peer.security, is_same_site=is_same_site, is_local=_is_loopback(own, peer))


def parameters_for(
    endpoint: Endpoint, own: ConnectionDescriptor, peer: ConnectionDescriptor, agreement: Agreement
) -> _native.ConnectionParameters:
    """Returns the parameters of a connection between the two ends, all but the secrets."""
    profile = endpoint.profile
    is_protected = agreement.protection is not Protection.OFF
    check_path_modes(own, peer)
    links = join_ports([p.plane for p in own.ports], [p.plane for p in peer.ports])
    mtu_bytes = mtu_between(own, peer, is_protected=is_protected)
    p = _native.ConnectionParameters()
    p.peer_id = peer.peer_id
    p.links = links
    p.peer_addresses = [port.address_for(own.site, peer.site) for port in peer.ports]
    _check_families(own, p.peer_addresses)
    p.peer_qpn, p.peer_start_psn = peer.qpn, peer.start_psn
    p.mtu_bytes = p.cc_mtu_bytes = mtu_bytes
    p.burst_packets = profile.burst_packets(mtu_bytes, is_protected=is_protected)
    p.mpr, p.peer_mpr = own.mpr, peer.mpr
    p.wimm = min(profile.wimm, peer.wimm)
    p.send_queue, p.immediate_queue = profile.send_queue, profile.immediate_queue
    p.sack_threshold_bytes = profile.sack_threshold_bytes
    p.rto_base_ns, p.rto_max_ns = profile.rto_base_ns, profile.rto_max_ns
    p.linear_count, p.exponential_count = profile.linear_count, profile.exponential_count
    p.loss_slack_min_ns = profile.loss_slack_min_ns
    seed = endpoint._random.getrandbits(64)
    p.seed = p.paths_seed = seed
    _set_life_cycle(p, profile.ev, len(links))
    if own.path_mode == "srv6":
        set_srv6_paths(p, own, peer, links, profile.ev, random.Random(seed))
    else:
        _set_source_ports(p, endpoint, links, random.Random(seed))
    _set_congestion(p, profile.congestion, _link_rate(own, peer, links))
    if is_local(own, peer) and not p.max_cwnd_bytes:
        # No line between the two, so the socket's queue is all that holds a window, in units twice the payload.
        p.max_cwnd_bytes = max(sum(port.receive_buffer_bytes for port in peer.ports) // 4, 4 * mtu_bytes)
    return p


def _is_loopback(own: ConnectionDescriptor, peer: ConnectionDescriptor) -> bool:
    return all(ipaddress.ip_address(port.host).is_loopback for end in (own, peer) for port in end.ports)


def is_local(own: ConnectionDescriptor, peer: ConnectionDescriptor) -> bool:
    """Whether both ends are on this machine with nothing between them."""
    return own.site == peer.site and _is_loopback(own, peer)


def mtu_between(own: ConnectionDescriptor, peer: ConnectionDescriptor, *, is_protected: bool = False) -> int:
    """Payload of a full packet in bytes; both ends come to the same answer.

    Protection makes packets longer. What was found out leaves room for that; what the user has set is taken as it is.
    """
    around = PROTECTION_MORE_BYTES if is_protected and not _is_loopback(own, peer) else 0
    limits = [
        end.mtu_bytes if end.is_mtu_fixed or not around else (end.mtu_bytes - around) // 16 * 16
        for end in (own, peer)
    ]
    if own.site != peer.site:
        is_local = all(
            ipaddress.ip_address(port.host).is_loopback for end in (own, peer) for port in end.ports
        )
        between = EMULATED_SITE_MTU_BYTES if is_local else SITE_MTU_BYTES
        if around:
            between = (between - around) // 16 * 16
        limits += [between for end in (own, peer) if not end.is_mtu_fixed]
    return min(limits)


def _check_families(own: ConnectionDescriptor, addresses: list[tuple[str, int]]) -> None:
    families = {":" in port.host for port in own.ports}
    if not families & {":" in host for host, _ in addresses}:
        raise EngineError("one end has IPv4 addresses only, the other IPv6 addresses only")


def _set_life_cycle(p: _native.ConnectionParameters, ev: EvProfile, num_planes: int) -> None:
    p.num_planes = num_planes
    p.min_active = ev.min_active or 0
    p.skip_passes = ev.skip_passes
    p.capacity_share = ev.share == "capacity"
    p.probe_interval_ns = ev.probe_interval_ns or 0
    p.restore_successes = ev.restore_successes
    p.restore_max = ev.damping.successes_max
    p.damping_window_ns, p.damping_reset_ns = ev.damping.window_ns, ev.damping.reset_ns


def _set_source_ports(
    p: _native.ConnectionParameters, endpoint: Endpoint, links: list[tuple[int, int]], rng: random.Random
) -> None:
    ev = endpoint.profile.ev
    # A peer with many ports makes many planes: the table of entropy values is shared out among them.
    room = _native.MAX_ENTROPY_VALUES // len(links)
    p.active_per_plane = min(ev.active_per_plane, room)
    p.backup_per_plane = min(ev.backup_per_plane, room - p.active_per_plane)
    values = []
    for plane, (local, _) in enumerate(links):
        sources = list(range(endpoint._sources_per_port))
        rng.shuffle(sources)  # senders do not coordinate, so their choices must differ
        for n, source in enumerate(sources[: p.active_per_plane + p.backup_per_plane]):
            values.append(
                (plane, source, endpoint._native.source_port(local, source), n < p.active_per_plane)
            )
    p.entropy_values = values


def _link_rate(
    own: ConnectionDescriptor, peer: ConnectionDescriptor, links: list[tuple[int, int]]
) -> float | None:
    """Line rate toward the peer in bytes per second; None where a port does not know its own."""

    def total(ports: set[int], end: ConnectionDescriptor) -> float | None:
        rates = [end.ports[i].rate_mbps for i in ports]
        known = [r for r in rates if r is not None]
        return sum(known) if len(known) == len(rates) else None

    ends = (total({a for a, _ in links}, own), total({b for _, b in links}, peer))
    known = [r for r in ends if r is not None]
    return min(known) * 125_000 if known else None


def host_noise_ns(rate_bytes_per_s: float) -> int:
    """Lateness of answers that the window allows for at a configured rate.

    >>> [host_noise_ns(mbps * 125_000) // 1000 for mbps in (10, 400, 1000, 100_000)]
    [4000, 4000, 2097, 500]
    """
    return max(HOST_NOISE_NS, min(SLOW_LINE_HOST_NOISE_NS, int(HOST_NOISE_BYTES / rate_bytes_per_s * 1e9)))


def _set_congestion(
    p: _native.ConnectionParameters, profile: CongestionProfile, rate_bytes_per_s: float | None
) -> None:
    if profile.rate_gbps is not None:
        rate_bytes_per_s = profile.rate_gbps * 1e9 / 8
    p.rate_bytes_per_s = rate_bytes_per_s or 0.0
    p.base_rtt_ns = profile.base_rtt_ns or 0
    p.trimming = profile.trimming
    p.quick_adapt = profile.quick_adapt
    p.qa_gate = profile.qa_gate
    p.qa_threshold_ns = profile.qa_threshold_ns or 0
    p.max_cwnd_bytes = profile.max_cwnd_bytes or 0
    p.target_delay_ns = profile.target_delay_ns or 0
    p.adjust_bytes = profile.adjust_bytes or 0
    p.adjust_period_ns = profile.adjust_period_ns or 0
    p.fi_bytes = -1.0 if profile.fi_bytes is None else profile.fi_bytes
    p.fi_scale = -1.0 if profile.fi_scale is None else profile.fi_scale
    p.eta_bytes = -1.0 if profile.eta_bytes is None else profile.eta_bytes
    p.gamma, p.max_md_jump = profile.gamma, profile.max_md_jump
    if rate_bytes_per_s and profile.algorithm != ALGORITHM_NONE:
        p.host_noise_ns = host_noise_ns(rate_bytes_per_s)
