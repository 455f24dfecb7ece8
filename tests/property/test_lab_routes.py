"""Routes for traffic that says no path: they lead to their destination, over all that is left, and nowhere else."""

import ipaddress
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.fabric import clos, leaf_spine
from farstep.lab.fabric.ecmp import EcmpRoutes, changes, ecmp_routes
from farstep.lab.fabric.options import LabOptions
from farstep.lab.fabric.wiring import FabricWiring


class Broken(NamedTuple):
    wiring: FabricWiring
    dead: list[int]
    """Directed links."""


@st.composite
def fabrics(draw: st.DrawFn) -> Broken:
    topology = draw(
        st.one_of(
            st.builds(
                leaf_spine,
                leaves=st.integers(1, 3),
                spines=st.integers(1, 3),
                nics_per_leaf=st.just(2),
                planes=st.integers(1, 2),
            ),
            st.builds(clos, st.just(4), planes=st.integers(1, 2), radix=st.just(4)),
        )
    )
    cables = draw(st.lists(st.integers(0, topology.num_cables - 1), max_size=4, unique=True))
    return Broken(FabricWiring(topology, LabOptions()), [2 * cable for cable in cables])


def next_links(
    wiring: FabricWiring, routes: EcmpRoutes, node: int, address: ipaddress.IPv6Address
) -> list[int]:
    matching = [network for network in map(ipaddress.IPv6Network, routes[node]) if address in network]
    if not matching:
        return []
    network = max(matching, key=lambda found: found.prefixlen)
    wanted = routes[node][str(network)]
    return [int(link) for link in wiring.topology.out_links(node) if wiring.interfaces[int(link)] in wanted]


def arrives(
    wiring: FabricWiring, routes: EcmpRoutes, source: int, destination: int, plane: int | None
) -> bool:
    """Follows every choice there is; all of them, or none from the first hop on, must arrive."""
    address = wiring.plan.host_address(destination, plane)
    ahead = next_links(wiring, routes, source, address)
    if not ahead:
        return False
    for _ in range(5):
        beyond = []
        for link in ahead:
            node = int(wiring.topology.link_target[link])
            if node == destination:
                continue
            onward = next_links(wiring, routes, node, address)
            assert onward, f"{wiring.topology.node_name(node)} knows no way to {address}"
            beyond += onward
        if not beyond:
            return True
        ahead = beyond
    raise AssertionError("round in circles")


def is_reachable(broken: Broken, source: int, destination: int, plane: int) -> bool:
    topology = broken.wiring.topology
    table = topology.routes(without_links=[link ^ way for link in broken.dead for way in (0, 1)])
    return table.num_paths(source, destination, plane) > 0


@given(fabrics(), st.data())
@settings(max_examples=25, deadline=None)
def test_a_destination_is_reached_wherever_the_network_still_does(
    broken: Broken, data: st.DataObject
) -> None:
    wiring = broken.wiring
    nics = st.integers(0, wiring.topology.num_nics - 1)
    source = data.draw(nics)
    destination = data.draw(nics.filter(lambda nic: nic != source))
    routes = ecmp_routes(wiring, broken.dead)
    reachable = [is_reachable(broken, source, destination, plane) for plane in range(wiring.plan.planes)]
    if any(reachable):
        assert arrives(wiring, routes, source, destination, None)
    for plane, expected in enumerate(reachable):
        if expected:
            assert arrives(wiring, routes, source, destination, plane)
    used = {
        link
        for node in routes
        for interfaces in routes[node].values()
        for link in map(int, wiring.topology.out_links(node))
        if wiring.interfaces[link] in interfaces
    }
    assert not {link >> 1 for link in used} & {link >> 1 for link in broken.dead}


@given(fabrics())
@settings(max_examples=10, deadline=None)
def test_a_healthy_fabric_uses_every_cable(broken: Broken) -> None:
    routes = ecmp_routes(broken.wiring)
    topology = broken.wiring.topology
    for node in range(topology.num_nodes):
        used = {name for interfaces in routes[node].values() for name in interfaces}
        is_alone = len(broken.wiring.plan.switches(0)) == broken.wiring.plan.planes  # no T0 to go up for
        above = {name for name in broken.wiring.ports(node) if not (is_alone and name.startswith("u"))}
        assert above <= used


@given(fabrics(), fabrics())
@settings(max_examples=10, deadline=None)
def test_changes_turn_one_set_of_routes_into_the_other(broken: Broken, other: Broken) -> None:
    wiring = broken.wiring
    before, after = ecmp_routes(wiring), ecmp_routes(wiring, broken.dead)
    assert changes(wiring, before, before) == {}
    for node, lines in changes(wiring, before, after).items():
        result = dict(before[node])
        for line in lines:
            words = line.split()
            network = words[2]
            if words[1] == "del":
                del result[network]
            else:
                result[network] = tuple(words[at + 1] for at, word in enumerate(words) if word == "dev")
        assert result == after[node]
