"""Routes for traffic that says no path: every node spreads it over all cables that lead on, by a hash. Pure.

This is how the rivals travel (TCP, MPTCP, collectives over sockets): the kernel's own multipath routing, over host
addresses. What is known to be down is routed around, once routing has noticed.
"""

from __future__ import annotations

from collections.abc import Collection

from farstep.lab.fabric.wiring import GATEWAY, FabricWiring

__all__ = ["EcmpRoutes", "changes", "ecmp_routes"]

EcmpRoutes = dict[int, dict[str, tuple[str, ...]]]
"""Per node and destination network: the interfaces that lead there."""


def ecmp_routes(wiring: FabricWiring, dead_links: Collection[int] = ()) -> EcmpRoutes:
    """Returns the routes of all nodes.

    Args:
        wiring: the network.
        dead_links: directed links that are known to be down; a cable with one of them is not used at all.
    """
    return _Routing(wiring, {link >> 1 for link in dead_links}).routes()


class _Routing:
    def __init__(self, wiring: FabricWiring, dead_cables: set[int]) -> None:
        self.wiring = wiring
        self.plan = wiring.plan
        self.topology = wiring.topology
        self.dead = dead_cables
        self.leaves = sorted({place.leaf for place in self.plan.places})
        self.found: EcmpRoutes = {node: {} for node in range(self.topology.num_nodes)}

    def routes(self) -> EcmpRoutes:
        for switch in self.plan.switches(1):
            self._at_t1(switch)
        for switch in self.plan.switches(0):
            self._at_t0(switch)
        for nic in range(self.topology.num_nics):
            self._at_nic(nic)
        return self.found

    def _alive(self, node: int) -> list[tuple[int, str]]:
        """Returns (neighbour, interface) of every cable of a node that is not dead."""
        return [
            (int(self.topology.link_target[link]), self.wiring.interfaces[link])
            for link in self.topology.out_links(node)
            if int(link) >> 1 not in self.dead
        ]

    def _networks(self, leaf: int, plane: int) -> tuple[str, str]:
        return str(self.plan.host_prefix(leaf)), str(self.plan.host_prefix(leaf, plane))

    def _add(self, node: int, network: str, interfaces: list[str]) -> None:
        if interfaces:
            self.found[node][network] = tuple(interfaces)

    def _at_t1(self, switch: int) -> None:
        plane = int(self.topology.node_plane[switch])
        below: dict[int, list[str]] = {}
        for leaf, interface in self._alive(switch):
            below.setdefault(int(self.topology.node_number[leaf]), []).append(interface)
        for leaf, interfaces in below.items():
            for network in self._networks(leaf, plane):
                self._add(switch, network, interfaces)

    def _at_t0(self, switch: int) -> None:
        plane, own = int(self.topology.node_plane[switch]), int(self.topology.node_number[switch])
        above = []
        for node, interface in self._alive(switch):
            if self.wiring.is_switch(node):
                above.append((node, interface))
                continue
            for address in (self.plan.host_address(node), self.plan.host_address(node, plane)):
                self._add(switch, f"{address}/128", [interface])
        for leaf in self.leaves:
            for network in self._networks(leaf, plane) if leaf != own else ():
                self._add(
                    switch, network, [interface for node, interface in above if network in self.found[node]]
                )

    def _at_nic(self, nic: int) -> None:
        planes = {
            int(self.topology.node_plane[switch]): (switch, interface)
            for switch, interface in self._alive(nic)
        }
        for leaf in self.leaves:
            everywhere = []
            for plane, (switch, interface) in planes.items():
                network, of_plane = self._networks(leaf, plane)
                if int(self.topology.node_number[switch]) == leaf or network in self.found[switch]:
                    everywhere.append(interface)
                    self._add(nic, of_plane, [interface])
            self._add(nic, str(self.plan.host_prefix(leaf)), everywhere)
        self._exceptions(nic, planes)

    def _exceptions(self, nic: int, planes: dict[int, tuple[int, str]]) -> None:
        """Routes to single NICs that have lost a port, which its T0 tells everybody."""
        for other in range(self.topology.num_nics):
            dead = {
                int(self.topology.link_plane[link])
                for link in self.topology.nic_links(other)
                if int(link) >> 1 in self.dead
            }
            if other == nic or not dead:
                continue
            usual = self.found[nic].get(str(self.plan.host_prefix(self.plan.places[other].leaf)), ())
            lost = {interface for plane, (_, interface) in planes.items() if plane in dead}
            self._add(
                nic, f"{self.plan.host_address(other)}/128", [name for name in usual if name not in lost]
            )


def changes(wiring: FabricWiring, before: EcmpRoutes, after: EcmpRoutes) -> dict[int, list[str]]:
    """Returns per node the commands for `ip -batch` that turn some routes into others."""
    found: dict[int, list[str]] = {}
    for node, routes in after.items():
        old = before.get(node, {})
        lines = [f"route del {network}" for network in old if network not in routes]
        lines += [
            _replace(wiring, node, network, interfaces)
            for network, interfaces in routes.items()
            if old.get(network) != interfaces
        ]
        if lines:
            found[node] = lines
    return found


def _replace(wiring: FabricWiring, node: int, network: str, interfaces: tuple[str, ...]) -> str:
    source = "" if wiring.is_switch(node) else f" src {_source(wiring, node, network)}"
    if len(interfaces) == 1:
        return f"route replace {network} dev {interfaces[0]}{source}"
    hops = " ".join(f"nexthop via {GATEWAY} dev {interface} onlink" for interface in interfaces)
    return f"route replace {network}{source} {hops}"


def _source(wiring: FabricWiring, nic: int, network: str) -> str:
    """Returns the address a NIC speaks from: of itself, or of its port where the destination is one."""
    for plane in range(wiring.plan.planes):
        if network == str(wiring.plan.host_prefix(_leaf_of(network), plane)):
            return str(wiring.plan.host_address(nic, plane))
    return str(wiring.plan.host_address(nic))


def _leaf_of(network: str) -> int:
    import ipaddress

    return int(ipaddress.IPv6Network(network).network_address) >> 64 & 0xFFFF
