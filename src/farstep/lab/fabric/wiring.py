"""What a fabric becomes on one machine: namespaces, interfaces, addresses and routes, as text for `ip`. Pure.

Every NIC and switch is a network namespace, every cable a pair of interfaces. All interfaces have the same hardware
address and ask for no neighbours, so that nothing but traffic is on a cable and a route is simply "out of there". What
consumes uSIDs hangs on `sid`, an interface of the switch itself that is always up: a route over a port would vanish
with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from farstep.fabric.addresses import PLANES_MAX, AddressPlan, Hop, TableEntry
from farstep.fabric.errors import ConfigError
from farstep.fabric.topology.model import NIC_TIER, Topology
from farstep.lab.fabric.options import LabOptions

__all__ = ["CABLES_MAX", "NODES_MAX", "Cable", "FabricWiring", "Port", "node_slug"]

NODES_MAX = 512
"""Namespaces of one lab; each costs some 0.1 MB of kernel memory and 10 ms to make."""

CABLES_MAX = 4096
"""Cables of one lab."""

CARRIED_PACKETS_MAX = 10_000
"""Packets that wait for the process that carries them; it may have to wait for a processor itself."""

MAC = "02:00:00:00:00:01"
"""Of every interface: with one address for all, and no neighbour discovery, any packet is for whoever gets it."""

SID = "sid"
"""Interface that routes of local uSIDs hang on."""

GATEWAY = "fe80::1"
"""Next hop of routes over several cables: the kernel wants one there, and nobody is asked for it."""

_NEXT_HOP = 0xFD00_0FAB_FFFF << 80
"""Addresses that stand for a cable where a uSID names it (`End.X` takes an address and no interface)."""

FLAVOR = "flavors next-csid lblen 32 nflen 16"


@dataclass(frozen=True, slots=True)
class Port:
    """An end of a cable."""

    node: int
    interface: str
    """Name within the node's namespace."""


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable: directed link `2 * number`, which leaves `ends[0]`, and the next one back."""

    number: int
    ends: tuple[Port, Port]
    rates_mbps: tuple[float, float]
    delays_ms: tuple[float, float]
    is_carried: bool
    """Packets go through a process that delays them, instead of the kernel alone."""

    def sender(self, link: int) -> Port:
        """Returns the end that a directed link leaves."""
        return self.ends[link & 1]

    def receiver(self, link: int) -> Port:
        """Returns the end that a directed link leads to."""
        return self.ends[~link & 1]


def node_slug(topology: Topology, node: int) -> str:
    """Returns the name of a node as part of a file name: `nic-3`, `t0-p1-0`."""
    tier = int(topology.node_tier[node])
    if tier == NIC_TIER:
        return f"nic-{node}"
    return f"t{tier}-p{topology.node_plane[node]}-{topology.node_number[node]}"


SLUG = re.compile(r"nic-\d+|t[01]-p\d-\d+")
"""What `node_slug` makes."""


class FabricWiring:
    """Namespaces, interfaces, addresses and routes of a network.

    Args:
        topology: the network.
        options: how it is emulated.

    Raises:
        ConfigError: it has no uSID addresses, or is too large for one machine.
    """

    def __init__(self, topology: Topology, options: LabOptions) -> None:
        self.topology = topology
        self.options = options
        for what, count, most in (
            ("NICs and switches", topology.num_nodes, NODES_MAX),
            ("cables", topology.num_cables, CABLES_MAX),
        ):
            if count > most:
                raise ConfigError(f"fabric: {count} {what}: a lab has {most} at most")
        self.plan = AddressPlan(topology)
        self.slugs = [node_slug(topology, node) for node in range(topology.num_nodes)]

    def is_switch(self, node: int) -> bool:
        """Whether a node forwards."""
        return node >= self.topology.num_nics

    @cached_property
    def interfaces(self) -> list[str]:
        """Interface that each directed link leaves by, within the namespace of its source.

        A NIC has `p0`, `p1`... for its planes, a T0 `d0`... to its NICs and `u0`... to T1s, a T1 `d0`... to the T0s
        of that number, with `d0x1` for the second of parallel cables.
        """
        topology = self.topology
        names = [""] * topology.num_links
        for node in range(topology.num_nodes):
            counts: dict[str, int] = {}
            for link in map(int, topology.out_links(node)):
                target = int(topology.link_target[link])
                if not self.is_switch(node):
                    names[link] = f"p{topology.link_plane[link]}"
                elif topology.node_tier[node] == 0:
                    kind = "u" if self.is_switch(target) else "d"
                    names[link] = f"{kind}{counts.get(kind, 0)}"
                    counts[kind] = counts.get(kind, 0) + 1
                else:
                    kind = f"d{topology.node_number[target]}"
                    parallel = counts.get(kind, 0)
                    names[link] = f"{kind}x{parallel}" if parallel else kind
                    counts[kind] = parallel + 1
        return names

    @cached_property
    def cables(self) -> list[Cable]:
        """Cables in order."""
        topology, options = self.topology, self.options
        cables = []
        for number in range(topology.num_cables):
            there, back = 2 * number, 2 * number + 1
            delays_ms = tuple(float(topology.link_latency_ns[link]) / 1e6 for link in (there, back))
            rates_mbps = tuple(
                float(topology.link_rate_gbps[link]) * 1000 * options.rate_scale for link in (there, back)
            )
            cables.append(
                Cable(
                    number,
                    tuple(
                        Port(int(topology.link_source[link]), self.interfaces[link]) for link in (there, back)
                    ),  # type: ignore[arg-type]
                    rates_mbps,  # type: ignore[arg-type]
                    delays_ms,  # type: ignore[arg-type]
                    is_carried=options.carries(max(delays_ms)),
                )
            )
        return cables

    def ports(self, node: int) -> list[str]:
        """Returns the interfaces of a node."""
        return [self.interfaces[link] for link in self.topology.out_links(node)]

    # -- configuration of a node ----------------------------------------------------------------------------

    def sysctls(self, node: int) -> dict[str, str]:
        """Returns the kernel settings of a node's namespace."""
        settings = {
            "net.ipv6.conf.all.accept_dad": "0",
            "net.ipv6.conf.default.accept_dad": "0",
            "net.ipv6.conf.default.accept_ra": "0",
            "net.ipv6.conf.default.autoconf": "0",
            "net.ipv6.conf.all.keep_addr_on_down": "1",
            "net.ipv6.conf.default.keep_addr_on_down": "1",
            "net.ipv6.conf.all.ignore_routes_with_linkdown": "1",
            "net.ipv6.conf.default.ignore_routes_with_linkdown": "1",
            "net.ipv6.fib_multipath_hash_policy": "1",
        }
        if self.is_switch(node):
            settings["net.ipv6.conf.all.forwarding"] = "1"
            settings["net.ipv6.conf.default.forwarding"] = "1"
        return settings

    def setup(self, node: int) -> list[str]:
        """Returns the commands for `ip -batch` that bring a node's interfaces up and number them."""
        lines = ["link set lo up"]
        if self.is_switch(node):
            lines += [
                f"link add {SID} type veth peer name {SID}0",
                f"link set {SID} addrgenmode none arp off up",
                f"link set {SID}0 addrgenmode none arp off up",
            ]
        for link in map(int, self.topology.out_links(node)):
            waiting = f" txqueuelen {CARRIED_PACKETS_MAX}" if self.cables[link >> 1].is_carried else ""
            lines.append(
                f"link set {self.interfaces[link]} mtu {self.options.mtu_bytes} addrgenmode none arp off{waiting} up"
            )
        if not self.is_switch(node):
            lines.append(f"address add {self.plan.host_address(node)}/128 dev lo nodad")
            for plane, interface in enumerate(self.ports(node)):
                lines.append(f"address add {self.plan.host_address(node, plane)}/128 dev {interface} nodad")
                lines.append(f"address add {self.plan.arrival(node, plane)}/128 dev {interface} nodad")
        return lines

    def mptcp(self, node: int) -> list[str]:
        """Returns the commands for `ip -batch` by which a NIC tells peers of MPTCP connections its ports' addresses.

        A connection then has a subflow in every plane, beside the one it began with.
        """
        if self.is_switch(node):
            return []
        addresses = [
            f"mptcp endpoint add {self.plan.host_address(node, plane)} dev {interface} signal"
            for plane, interface in enumerate(self.ports(node))
        ]
        return [f"mptcp limits set subflow {PLANES_MAX} add_addr_accepted {PLANES_MAX}", *addresses]

    def usid_routes(self, node: int, *, over: str | None = None) -> list[str]:
        """Returns the commands for `ip -batch` that make a node's uSID table.

        Args:
            node: the node.
            over: only what goes out of this interface, which has lost it by going down.
        """
        lines = []
        if self.is_switch(node) and over is None:
            # What no entry matches is dropped without an answer, as in a switch: nobody could be reached by it.
            lines.append(f"route replace blackhole {self._block}")
        for entry in self.plan.table(node):
            lines += [line for line in self._route(entry) if over is None or line.endswith(f" dev {over}")]
        return lines

    @property
    def _block(self) -> str:
        return f"{self.plan.block >> 16:x}:{self.plan.block & 0xFFFF:x}::/32"

    def _route(self, entry: TableEntry) -> Iterator[str]:
        if entry.hop is Hop.DELIVER:
            yield f"route replace local {entry.network} dev lo"
        elif entry.hop is Hop.SEND:
            yield f"route replace {entry.network} dev {self.interfaces[entry.link]}"
        elif entry.hop is Hop.SHIFT:
            yield f"route replace {entry.network} encap seg6local action End {FLAVOR} dev {SID}"
        else:
            cable = _next_hop(entry.link)
            yield f"route replace {cable}/128 dev {self.interfaces[entry.link]}"
            yield f"route replace {entry.network} encap seg6local action End.X nh6 {cable} {FLAVOR} dev {SID}"


def _next_hop(link: int) -> str:
    import ipaddress

    return str(ipaddress.IPv6Address(_NEXT_HOP | link + 1))
