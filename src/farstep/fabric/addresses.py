"""The address plan of a fabric forwarded by SRv6 micro-SIDs: who has which uSID, and what every table holds.

A packet carries its whole path in its destination address: a 32-bit block, then 16-bit uSIDs, next hop first (RFC
9800, NEXT-CSID; MRC paper, sections 2.2 and 2.3). A node that finds its own uSID in front moves the others 16 bits
to the left and looks up what has become of the address. All tables are static.

| uSID | Tier, 3 bits | Plane, 3 bits | Index, 10 bits |
|---|---|---|---|
| of a T0 switch | 1 | its plane | its number in the plane |
| of a T1 switch | 2 | its plane | number of the T0's uplink that leads to it |
| of a downlink | 6 | plane | number of the NIC among those of the T0 |

So `block : T0 : T1 : T0' : downlink` leads from a NIC of T0 to one of T0', and `block : T0 : downlink` to one of the
same T0; what arrives is `block : downlink`, an address of the NIC's port. An entropy value (EV) is a plane and an
uplink number, and these two fill in the template `PathRow`. The two groups behind the downlink stay free: they arrive
unchanged, right behind it.

A T1 has an index for every uplink that leads to it, several where cables are parallel. It then also chooses the cable
down by that number, the twin of the cable up: so an EV is one path, cable by cable.

Addresses that do not say a path, for traffic that the network routes by itself, are in `HOST_BLOCK`.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.topology.model import Topology, expect_topology

__all__ = [
    "BLOCK",
    "HOST_BLOCK",
    "INDEX_MAX",
    "PLANES_MAX",
    "AddressPlan",
    "Hop",
    "PathRow",
    "Place",
    "TableEntry",
    "UsidTier",
    "ev_of",
    "fields_of_ev",
    "usid",
]

BLOCK = 0xFCBBBBBB
"""`fcbb:bbbb::/32`, the locator block of the examples in RFC 9800."""

HOST_BLOCK = 0xFD00_0FAB
"""`fd00:fab::/32`: addresses of NICs and their ports that say no path."""

PLANES_MAX = 8
"""What the three bits of a plane hold."""

INDEX_MAX = 1023
"""What the ten bits of an index hold."""

_UPLINK_SHIFT = 19
_PLANE_SHIFT = 29


class UsidTier(enum.IntEnum):
    """What a uSID names. 0 stays free, for no uSID is 0; 7 would leave the global ids."""

    T0 = 1
    T1 = 2
    DOWNLINK = 6


def usid(tier: UsidTier, plane: int, index: int) -> int:
    """Returns the 16 bits of a uSID.

    Example:
        >>> hex(usid(UsidTier.T1, 2, 7))
        '0x4807'
    """
    return tier << 13 | plane << 10 | index


def ev_of(plane: int, uplink: int) -> int:
    """Returns the 32 bits of an EV: plane (3 bits), number of the T0's uplink (10 bits), zeros.

    Raises:
        ConfigError: a number is out of range.

    Example:
        >>> hex(ev_of(5, 3))
        '0xa0180000'
    """
    for name, value, most in (("plane", plane, PLANES_MAX - 1), ("uplink", uplink, INDEX_MAX)):
        if not 0 <= value <= most:
            raise ConfigError(f"{name} = {value}: valid: 0 to {most}")
    return plane << _PLANE_SHIFT | uplink << _UPLINK_SHIFT


def fields_of_ev(ev: int) -> tuple[int, int]:
    """Returns plane and uplink number of an EV.

    Raises:
        ConfigError: it is none.
    """
    if not 0 <= ev < 2**32 or ev & (1 << _UPLINK_SHIFT) - 1:
        raise ConfigError(f"ev = {ev:#x}: valid: 32 bits, of which the lowest 19 are zero")
    return ev >> _PLANE_SHIFT, ev >> _UPLINK_SHIFT & INDEX_MAX


class Place(NamedTuple):
    """Where a NIC is, in every plane alike."""

    leaf: int
    """Number of its T0."""
    downlink: int
    """Its number among the NICs of that T0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRow:
    """All paths from one NIC to another: the numbers from which an EV makes an address.

    Plain numbers, for those who send. Plane goes into every uSID, uplink into that of the T1.
    """

    block: int
    source_leaf: int
    destination_leaf: int
    downlink: int
    planes: int
    """EVs have planes below this..."""
    uplinks: int
    """...and uplink numbers below this; between NICs of one T0 the uplink changes nothing, and it is 1."""

    @property
    def evs(self) -> tuple[int, ...]:
        """Every EV, each a path of its own."""
        return tuple(ev_of(plane, uplink) for plane in range(self.planes) for uplink in range(self.uplinks))

    def usids(self, ev: int) -> tuple[int, ...]:
        """Returns the uSIDs of a path, next hop first.

        Raises:
            ConfigError: there is no such path.
        """
        plane, uplink = fields_of_ev(ev)
        for name, value, count in (("plane", plane, self.planes), ("uplink", uplink, self.uplinks)):
            if value >= count:
                raise ConfigError(f"ev = {ev:#x}: {name} = {value}: valid: 0 to {count - 1}")
        last = usid(UsidTier.DOWNLINK, plane, self.downlink)
        if self.source_leaf == self.destination_leaf:
            return usid(UsidTier.T0, plane, self.source_leaf), last
        return (
            usid(UsidTier.T0, plane, self.source_leaf),
            usid(UsidTier.T1, plane, uplink),
            usid(UsidTier.T0, plane, self.destination_leaf),
            last,
        )

    def address(self, ev: int) -> ipaddress.IPv6Address:
        """Returns the destination address of a path.

        Raises:
            ConfigError: there is no such path.

        Example:
            >>> row = PathRow(block=BLOCK, source_leaf=3, destination_leaf=5, downlink=17, planes=2, uplinks=8)
            >>> row.address(ev_of(0, 7))
            IPv6Address('fcbb:bbbb:2003:4007:2005:c011::')
        """
        return _address(self.block, self.usids(ev))


class Hop(enum.Enum):
    """What a node does with a packet that matches an entry."""

    SHIFT = "shift"
    """Consumes the first uSID and looks up again (behaviour uN: End with NEXT-CSID)."""
    SHIFT_AND_SEND = "shift_and_send"
    """Consumes the first uSID and sends over a given link (uA: End.X with NEXT-CSID)."""
    SEND = "send"
    """Sends over a given link."""
    DELIVER = "deliver"
    """Has arrived."""


@dataclass(frozen=True, slots=True, order=True)
class TableEntry:
    """An entry of a forwarding table; of those that match, the one with the longest prefix counts."""

    network: ipaddress.IPv6Network
    hop: Hop
    link: int = -1
    """Directed link it is sent over; -1 if the hop needs none."""


class AddressPlan:
    """uSIDs, addresses and tables of a network.

    Args:
        topology: one site, planes of T0 and T1 switches in which every T0 has a cable to every T1, and every NIC a
            port in every plane, at a T0 of the same number.
        block: the 32 bits that all uSID addresses begin with.

    Raises:
        ConfigError: the network has another shape, or more of something than uSIDs can count.

    Example:
        >>> from farstep.fabric import leaf_spine
        >>> plan = AddressPlan(leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2))
        >>> row = plan.row(0, 3)
        >>> [str(row.address(ev)) for ev in row.evs][:2]
        ['fcbb:bbbb:2000:4000:2001:c001::', 'fcbb:bbbb:2000:4001:2001:c001::']
        >>> [plan.topology.link_name(link) for link in plan.path(0, 3, row.evs[1])]
        ['nic/0->t0/p0/0', 't0/p0/0->t1/p0/1', 't1/p0/1->t0/p0/1', 't0/p0/1->nic/3']
    """

    def __init__(self, topology: Topology, *, block: int = BLOCK) -> None:
        expect_topology("topology", topology)
        if not 0 <= block < 2**32:
            raise ConfigError(f"block = {block:#x}: valid: 32 bits")
        self.topology = topology
        self.block = block
        self._check_shape()
        leaves = topology.node_number[topology.ports.switch].reshape(topology.num_nics, -1)
        self.places: tuple[Place, ...] = tuple(self._place(nic, leaves[nic]) for nic in range(len(leaves)))
        """Per NIC: its T0 and its number there."""
        self._uplinks = {switch: self._up(switch) for switch in self.switches(0)}
        self.uplinks: int = max(len(links) for links in self._uplinks.values())
        """Uplinks of a T0."""
        self._check_uplinks()

    # -- names and numbers ----------------------------------------------------------------------------------

    @property
    def planes(self) -> int:
        """Planes, which is also the number of ports of a NIC."""
        return self.topology.num_planes

    def switches(self, tier: int) -> list[int]:
        """Returns the switches of a tier, of all planes."""
        return [int(node) for node in np.flatnonzero(self.topology.node_tier == tier)]

    def row(self, source: int, destination: int) -> PathRow:
        """Returns the paths from a NIC to another; to itself, those that turn round at its T0.

        Raises:
            ConfigError: there is no such NIC.
        """
        here, there = self._place_of("source", source), self._place_of("destination", destination)
        return PathRow(
            block=self.block,
            source_leaf=here.leaf,
            destination_leaf=there.leaf,
            downlink=there.downlink,
            planes=self.planes,
            uplinks=1 if here.leaf == there.leaf else self.uplinks,
        )

    def returning(self, nic: int, plane: int, uplink: int | None = None) -> ipaddress.IPv6Address:
        """Returns an address that leads back to the sender, through its T0, or to a T1 and back.

        No other host takes part, so what comes back tells of switches and cables alone.

        Raises:
            ConfigError: there is no such NIC, plane or uplink.
        """
        place = self._place_of("nic", nic)
        self._check_ev(plane, uplink or 0)
        leaf = usid(UsidTier.T0, plane, place.leaf)
        last = usid(UsidTier.DOWNLINK, plane, place.downlink)
        way = (leaf, last) if uplink is None else (leaf, usid(UsidTier.T1, plane, uplink), leaf, last)
        return _address(self.block, way)

    def arrival(self, nic: int, plane: int) -> ipaddress.IPv6Address:
        """Returns the address at which uSID packets arrive at a port: what is left of every path to it.

        It is unique within a NIC and a T0 only, hence no address to send to.

        Raises:
            ConfigError: there is no such NIC or plane.
        """
        place = self._place_of("nic", nic)
        self._check_ev(plane, 0)
        return _address(self.block, (usid(UsidTier.DOWNLINK, plane, place.downlink),))

    def host_address(self, nic: int, plane: int | None = None) -> ipaddress.IPv6Address:
        """Returns the address of a NIC, or of its port in a plane, for traffic that says no path.

        Raises:
            ConfigError: there is no such NIC or plane.

        Example:
            >>> from farstep.fabric import leaf_spine
            >>> plan = AddressPlan(leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2))
            >>> str(plan.host_address(3)), str(plan.host_address(3, 0))
            ('fd00:fab:0:1::2', 'fd00:fab:1:1::2')
        """
        place = self._place_of("nic", nic)
        if plane is not None:
            self._check_ev(plane, 0)
        return ipaddress.IPv6Address(int(self.host_prefix(place.leaf, plane)[0]) + place.downlink + 1)

    def host_prefix(self, leaf: int, plane: int | None = None) -> ipaddress.IPv6Network:
        """Returns the network of the host addresses at a T0: of NICs, or of their ports in a plane."""
        group = 0 if plane is None else plane + 1
        return ipaddress.IPv6Network((HOST_BLOCK << 96 | group << 80 | leaf << 64, 64))

    # -- tables ---------------------------------------------------------------------------------------------

    def table(self, node: int) -> list[TableEntry]:
        """Returns the uSID table of a node, sorted.

        A T0 has an entry for itself and one per port; a T1 one or more for itself and one per T0.

        Raises:
            ConfigError: there is no such node.
        """
        if not 0 <= node < self.topology.num_nodes:
            raise ConfigError(f"node = {node}: valid: 0 to {self.topology.num_nodes - 1}")
        tier = int(self.topology.node_tier[node])
        entries = {-1: self._nic_entries, 0: self._t0_entries, 1: self._t1_entries}[tier](node)
        return sorted(entries, key=lambda entry: (entry.network, entry.hop.value, entry.link))

    def _nic_entries(self, nic: int) -> Iterator[TableEntry]:
        place = self.places[nic]
        for plane, link in enumerate(self.topology.nic_links(nic)):
            yield self._entry((usid(UsidTier.T0, plane, place.leaf),), Hop.SEND, int(link))
            yield self._entry((usid(UsidTier.DOWNLINK, plane, place.downlink),), Hop.DELIVER)

    def _t0_entries(self, switch: int) -> Iterator[TableEntry]:
        plane, number = int(self.topology.node_plane[switch]), int(self.topology.node_number[switch])
        yield self._entry((usid(UsidTier.T0, plane, number),), Hop.SHIFT)
        for uplink, link in enumerate(self._uplinks[switch]):
            yield self._entry((usid(UsidTier.T1, plane, uplink),), Hop.SEND, link)
        for downlink, link in enumerate(self._downlinks(switch)):
            yield self._entry((usid(UsidTier.DOWNLINK, plane, downlink),), Hop.SEND, link)

    def _t1_entries(self, switch: int) -> Iterator[TableEntry]:
        plane = int(self.topology.node_plane[switch])
        own = sorted({number for _, number, _ in self._arriving[switch]})
        cables: dict[int, list[int]] = {}
        for leaf, _, link in self._arriving[switch]:
            cables.setdefault(leaf, []).append(link ^ 1)
        for number in own:
            yield self._entry((usid(UsidTier.T1, plane, number),), Hop.SHIFT)
        for leaf, links in cables.items():
            below = usid(UsidTier.T0, plane, int(self.topology.node_number[leaf]))
            yield self._entry((below,), Hop.SEND, links[0])
            if len(links) > 1:
                for number in own:
                    way = (usid(UsidTier.T1, plane, number), below)
                    yield self._entry(way, Hop.SHIFT_AND_SEND, self._down(switch, leaf, number))

    def path(self, source: int, destination: int, ev: int) -> tuple[int, ...]:
        """Returns the directed links of a path, from the NIC's uplink to the downlink into the destination.

        Raises:
            ConfigError: there is no such NIC or path.
        """
        self.row(source, destination).usids(ev)
        plane, uplink = fields_of_ev(ev)
        up = int(self.topology.nic_links(source)[plane])
        down = int(self.topology.nic_links(destination)[plane]) ^ 1
        here, there = int(self.topology.link_target[up]), int(self.topology.link_source[down])
        if here == there:
            return up, down
        over = self._uplinks[here][uplink]
        return up, over, self._down(int(self.topology.link_target[over]), there, uplink), down

    # -- wiring ---------------------------------------------------------------------------------------------

    @cached_property
    def _arriving(self) -> dict[int, list[tuple[int, int, int]]]:
        """Per T1: (T0, uplink number, link) of every cable that leads to it, in order."""
        found: dict[int, list[tuple[int, int, int]]] = {switch: [] for switch in self.switches(1)}
        for leaf, links in self._uplinks.items():
            for number, link in enumerate(links):
                found[int(self.topology.link_target[link])].append((leaf, number, link))
        return found

    @cached_property
    def _twins(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Per T1 and T0: (uplink number, link down) of the cables between them, in order."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for switch, cables in self._arriving.items():
            for leaf, number, link in cables:
                found.setdefault((switch, leaf), []).append((number, link ^ 1))
        return found

    def _down(self, switch: int, leaf: int, uplink: int) -> int:
        """Returns the link from a T1 down to a T0: the twin of the cable that the packet came up by."""
        cables = self._twins[switch, leaf]
        return dict(cables).get(uplink, cables[uplink % len(cables)][1])

    def _up(self, switch: int) -> list[int]:
        links = self.topology.out_links(switch)
        return [int(link) for link in links if self.topology.node_tier[self.topology.link_target[link]] == 1]

    def _downlinks(self, switch: int) -> list[int]:
        links = self.topology.out_links(switch)
        return [int(link) for link in links if self.topology.link_target[link] < self.topology.num_nics]

    def _place(self, nic: int, leaves: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Place:
        if (leaves != leaves[0]).any():
            raise ConfigError(
                f"nic/{nic} is at T0s of different numbers, {', '.join(map(str, leaves))};"
                " valid: the same in every plane, so that one template fits all"
            )
        numbers = {
            [int(self.topology.link_target[link]) for link in self._downlinks(int(switch))].index(nic)
            for switch in self.topology.link_target[self.topology.nic_links(nic)]
        }
        if len(numbers) > 1:
            raise ConfigError(f"nic/{nic} has different numbers at its T0s; valid: the same in every plane")
        return Place(int(leaves[0]), numbers.pop())

    def _place_of(self, key: str, nic: int) -> Place:
        if not 0 <= nic < self.topology.num_nics:
            raise ConfigError(f"{key} = {nic}: no such NIC; valid: 0 to {self.topology.num_nics - 1}")
        return self.places[nic]

    def _check_ev(self, plane: int, uplink: int) -> None:
        for name, value, count in (("plane", plane, self.planes), ("uplink", uplink, self.uplinks)):
            if not 0 <= value < count:
                raise ConfigError(f"{name} = {value}: valid: 0 to {count - 1}")

    def _entry(self, usids: tuple[int, ...], hop: Hop, link: int = -1) -> TableEntry:
        network = ipaddress.IPv6Network((int(_address(self.block, usids)), 32 + 16 * len(usids)))
        return TableEntry(network, hop, link)

    # -- what the plan can describe -------------------------------------------------------------------------

    def _check_shape(self) -> None:
        topology = self.topology
        if topology.num_planes > PLANES_MAX:
            raise ConfigError(f"planes = {topology.num_planes}: a uSID counts up to {PLANES_MAX}")
        if len(topology.site_names) > 1:
            raise ConfigError(f"sites = {list(topology.site_names)}: uSIDs are for one site")
        tiers = {int(tier) for tier in np.unique(topology.node_tier[topology.num_nics :])}
        if tiers != {0, 1} or (topology.node_plane < 0).any() or topology.via_switches is not None:
            raise ConfigError(
                f"{quoted(topology.name)} has no uSID addresses; valid: planes of two tiers that no switch joins,"
                ' such as a fabric of kind "leaf-spine" or "clos"'
            )
        ports = topology.ports
        wanted = np.tile(np.arange(topology.num_planes), topology.num_nics)
        if not np.array_equal(ports.plane, wanted):
            counts = np.diff(ports.offset)
            odd = (
                int(np.flatnonzero(counts != topology.num_planes)[0])
                if (counts != topology.num_planes).any()
                else 0
            )
            raise ConfigError(
                f"nic/{odd} has {counts[odd]} ports; valid: one in each of the {topology.num_planes} planes"
            )
        for tier, name in ((0, "T0"), (1, "T1")):
            chosen = topology.node_number[topology.node_tier == tier]
            if chosen.max(initial=0) > INDEX_MAX:
                raise ConfigError(f"{chosen.max() + 1} {name} switches in a plane: a uSID counts up to 1024")
        sides = topology.node_tier[topology.link_source], topology.node_tier[topology.link_target]
        flat = np.flatnonzero((sides[0] == sides[1]) | (np.abs(sides[0] - sides[1]) > 1))
        if len(flat):
            raise ConfigError(f"{topology.link_name(int(flat[0]))}: valid: cables NIC-T0 and T0-T1")

    def _check_uplinks(self) -> None:
        topology = self.topology
        if max(self.uplinks, *(place.downlink + 1 for place in self.places)) > INDEX_MAX + 1:
            raise ConfigError(f"a T0 has more than {INDEX_MAX + 1} uplinks or NICs: a uSID counts up to that")
        for leaf, links in self._uplinks.items():
            if len(links) != self.uplinks:
                raise ConfigError(
                    f"{topology.node_name(leaf)} has {len(links)} uplinks; valid: {self.uplinks}, as others have"
                )
            for switch in self.switches(1):
                if (
                    topology.node_plane[switch] == topology.node_plane[leaf]
                    and (switch, leaf) not in self._twins
                ):
                    raise ConfigError(
                        f"no cable between {topology.node_name(leaf)} and {topology.node_name(switch)};"
                        " valid: every T0 is joined to every T1 of its plane"
                    )


def _address(block: int, usids: tuple[int, ...]) -> ipaddress.IPv6Address:
    number = block
    for value in usids:
        number = number << 16 | value
    return ipaddress.IPv6Address(number << 96 - 16 * len(usids))
