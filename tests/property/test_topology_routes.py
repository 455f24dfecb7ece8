"""Routes of any network: valid, shortest, all of them, and each number a path."""

import heapq
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.fabric import (
    ConfigError,
    clos,
    dragonfly,
    dual_tor,
    fat_tree,
    leaf_spine,
    multi_site,
    rail_optimised,
    torus,
)
from farstep.fabric.topology import describe, parse_graph

# Networks whose paths all meet sets of equal sizes, so that each path has one number.
REGULAR = st.one_of(
    st.builds(
        lambda down, t0s, planes: clos(down * t0s, planes=planes, radix=2 * down),
        down=st.sampled_from([2, 4]),
        t0s=st.integers(1, 4),
        planes=st.integers(1, 3),
    ),
    st.builds(
        lambda radix, pods, planes: fat_tree(radix * radix // 4 * pods, radix=radix, planes=planes),
        radix=st.sampled_from([4, 6]),
        pods=st.integers(1, 4),
        planes=st.integers(1, 2),
    ),
    st.builds(
        leaf_spine,
        leaves=st.integers(1, 4),
        spines=st.integers(1, 3),
        nics_per_leaf=st.integers(2, 3),
        links_per_spine=st.integers(1, 3),
        planes=st.integers(1, 2),
    ),
    st.builds(
        lambda rails, tiers: rail_optimised(32 * (tiers - 1), rails=rails, radix=8, tiers=tiers),
        rails=st.sampled_from([1, 2, 4]),
        tiers=st.integers(2, 3),
    ),
    st.builds(
        lambda pods, uplinks: dual_tor(
            2, hosts_per_segment=2, rails=2, uplinks=uplinks, pods=pods, core_uplinks=2, core_radix=8
        ),
        pods=st.integers(1, 2),
        uplinks=st.integers(1, 3),
    ),
)


@st.composite
def graphs(draw):
    """Any graph of switches, with parallel cables, in planes that may be in pieces."""
    planes = draw(st.integers(1, 2))
    switches, links, attached = [], [], []
    for plane in range(planes):
        count = draw(st.integers(1, 6))
        names = [f"s{plane}-{number}" for number in range(count)]
        switches += [{"name": name, "plane": plane} for name in names]
        pairs = st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(
            lambda pair: pair[0] != pair[1]
        )
        if count > 1:
            cost = st.sampled_from([1, 1, 1, 2, 3])
            links += [{"between": pair, "cost": draw(cost)} for pair in draw(st.lists(pairs, max_size=10))]
        attached.append(names)
    nics = [
        {"switches": [draw(st.sampled_from(names)) for names in attached], "count": draw(st.integers(1, 2))}
        for _ in range(draw(st.integers(2, 4)))
    ]
    return parse_graph({"switches": switches, "links": links, "nics": nics})


IRREGULAR = st.one_of(
    graphs(),
    st.builds(
        lambda shape, wrap: torus(shape, wrap=wrap),
        shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda shape: np.prod(shape) > 1),
        wrap=st.booleans(),
    ),
    st.builds(
        lambda h, groups, routing: dragonfly(
            routers_per_group=2, nics_per_router=1, global_links=h, groups=groups, routing=routing
        ),
        h=st.integers(1, 2),
        groups=st.integers(2, 3),
        routing=st.sampled_from(["minimal", "valiant"]),
    ),
    st.builds(
        lambda links, join: multi_site(
            {"a": clos(8, planes=2, radix=4), "b": fat_tree(16, planes=2)},
            [{"between": ["a", "b"], "fibre_km": 80, "links": links}],
            borders=2,
            join_planes=join,
        ),
        links=st.integers(2, 5),
        join=st.booleans(),
    ),
)


def pairs_of(network, draw):
    nic = st.integers(0, network.num_nics - 1)
    source = draw(nic)
    return (
        source,
        draw(nic.filter(lambda other: other != source)),
        draw(st.integers(0, network.num_planes - 1)),
    )


def costs_to(network, goal, dead):
    """Dijkstra over switches, the other way round."""
    into = defaultdict(list)
    for link in set(range(network.num_links)) - dead:
        if network.link_source[link] >= network.num_nics and network.link_target[link] >= network.num_nics:
            into[int(network.link_target[link])].append(link)
    cost, queue = {goal: 0}, [(0, goal)]
    while queue:
        spent, node = heapq.heappop(queue)
        if spent > cost[node]:
            continue
        for link in into[node]:
            there, more = int(network.link_source[link]), spent + int(network.link_cost[link])
            if more < cost.get(there, more + 1):
                cost[there] = more
                heapq.heappush(queue, (more, there))
    return cost


def all_shortest(network, source, destination, plane, dead=frozenset()):
    """Every shortest path between the NICs' ports in a plane, by search."""
    found = []
    for down in network.nic_links(destination):
        goal = int(network.link_target[down])
        if network.link_plane[down] != plane or int(down) ^ 1 in dead:
            continue
        cost = costs_to(network, goal, dead)
        for up in network.nic_links(source):
            if network.link_plane[up] != plane or up in dead or int(network.link_target[up]) not in cost:
                continue
            walks = [[int(up)]]
            while walks:
                walk = walks.pop()
                here = int(network.link_target[walk[-1]])
                if here == goal:
                    found.append((*walk, int(down) ^ 1))
                    continue
                for link in network.out_links(here):
                    there = int(network.link_target[link])
                    if (
                        link not in dead
                        and cost.get(there, np.inf) + int(network.link_cost[link]) == cost[here]
                    ):
                        walks.append([*walk, int(link)])
    return found


@settings(max_examples=60)
@given(network=st.one_of(REGULAR, IRREGULAR))
def test_links_come_in_pairs_of_opposite_directions(network):
    links = np.arange(network.num_links)
    assert np.array_equal(network.link_source[links ^ 1], network.link_target)
    for column in (network.link_rate_gbps, network.link_latency_ns, network.link_plane):
        assert np.array_equal(column[links ^ 1], column)
    inner = np.flatnonzero(
        (network.link_source >= network.num_nics) & (network.link_target >= network.num_nics)
    )
    if network.kind != "multi-site":
        ends = network.node_plane[network.link_source[inner]], network.node_plane[network.link_target[inner]]
        assert np.array_equal(ends[0], ends[1])
        assert np.array_equal(ends[0], network.link_plane[inner])


@settings(max_examples=80)
@given(network=REGULAR, data=st.data())
def test_in_regular_networks_each_number_is_a_path_and_each_path_has_one_number(network, data):
    source, destination, plane = pairs_of(network, data.draw)
    routes = network.routes()
    paths = [
        tuple(routes.path(source, destination, plane, index))
        for index in range(routes.num_paths(source, destination, plane))
    ]
    assert len(set(paths)) == len(paths)
    assert sorted(paths) == sorted(all_shortest(network, source, destination, plane))
    product = 1
    switch, goal = int(network.link_target[paths[0][0]]), int(network.link_source[paths[0][-1]])
    for link in paths[0][1:-1]:
        product *= len(routes.next_links(switch, goal))
        switch = int(network.link_target[link])
    assert product == len(paths)


@settings(max_examples=120)
@given(network=IRREGULAR, data=st.data())
def test_numbers_reach_all_shortest_paths_and_no_other(network, data):
    if network.via_switches is not None:
        return
    source, destination, plane = pairs_of(network, data.draw)
    routes = network.routes()
    expected = all_shortest(network, source, destination, plane)
    count = routes.num_paths(source, destination, plane)
    if not expected:
        assert count == 0
        with pytest.raises(ConfigError, match="no path"):
            routes.path(source, destination, plane, 0)
        with pytest.raises(ConfigError, match="no path"):
            routes.paths(source, destination, plane, 0)
        return
    got = {tuple(routes.path(source, destination, plane, index)) for index in range(min(count, 5000))}
    if count <= 5000:
        assert got == set(expected)
    assert got <= set(expected)


@settings(max_examples=80)
@given(network=st.one_of(REGULAR, IRREGULAR), data=st.data())
def test_many_paths_at_once_are_the_same_paths(network, data):
    routes = network.routes()
    wanted = [pairs_of(network, data.draw) for _ in range(5)]
    flows = [flow for flow in wanted if routes.num_paths(*flow)]
    if not flows:
        return
    indices = [data.draw(st.integers(0, 2**31)) for _ in flows]
    source, destination, plane = (list(column) for column in zip(*flows, strict=True))
    rows = routes.paths(source, destination, plane, indices)
    for row, flow, index in zip(rows, flows, indices, strict=True):
        assert [int(link) for link in row if link >= 0] == routes.path(*flow, index)


@settings(max_examples=60)
@given(network=st.one_of(REGULAR, IRREGULAR), data=st.data())
def test_even_shares_conserve_the_flow_at_every_node(network, data):
    flow = pairs_of(network, data.draw)
    if not network.routes().num_paths(*flow):
        return
    shares = network.routes().link_shares(*flow)
    net = Counter()
    for link, share in zip(shares.link, shares.share, strict=True):
        assert share > 0
        net[int(network.link_source[link])] -= share
        net[int(network.link_target[link])] += share
    assert net[flow[0]] == pytest.approx(-1)
    assert net[flow[1]] == pytest.approx(1)
    assert all(abs(rest) < 1e-9 for node, rest in net.items() if node not in flow[:2])


@settings(max_examples=60)
@given(network=REGULAR, data=st.data())
def test_planes_share_no_switch_and_no_link(network, data):
    source, destination, plane = pairs_of(network, data.draw)
    routes = network.routes()
    index = data.draw(st.integers(0, 1000))
    path = np.array(routes.path(source, destination, plane, index))
    assert set(network.link_plane[path]) == {plane}
    assert set(network.node_plane[network.link_target[path[:-1]]]) == {plane}


def engine_path(columns, source, destination, plane, number):
    """The walk of a compiled engine, by the columns alone."""

    def ports(nic):
        low, high = columns["port_offset"][nic : nic + 2]
        return range(low, high)

    def row(switch, goal):
        block = columns["node_block"][switch]
        at = columns["node_row"][switch] * columns["block_columns"][block] + columns["node_column"][goal]
        return block, columns["next_set"][columns["block_next"][block] + at]

    pairs = []
    for up in (port for port in ports(source) if columns["port_plane"][port] == plane):
        for down in [port for port in ports(destination) if columns["port_plane"][port] == plane] or ports(
            destination
        ):
            ends = columns["port_switch"][up], columns["port_switch"][down]
            if columns["node_block"][ends[0]] == columns["node_block"][ends[1]] and row(*ends)[1] != -1:
                pairs.append((columns["port_link"][up], columns["port_link"][down] ^ 1))
    number, digit = divmod(number, len(pairs))
    up, down = pairs[digit]
    path, here = [up], columns["link_target"][up]
    stops = [columns["link_source"][down]]
    if len(columns["via_switch"]):
        number, digit = divmod(number, len(columns["via_switch"]))
        stops.insert(0, columns["via_switch"][digit])
    for stop in stops:
        while here != stop:
            block, chosen = row(here, stop)
            low, high = columns["set_offset"][columns["block_set"][block] + chosen :][:2]
            number, digit = divmod(number, high - low)
            path.append(columns["set_links"][low + digit])
            here = columns["link_target"][path[-1]]
    return [int(link) for link in [*path, down]]


@settings(max_examples=80)
@given(network=st.one_of(REGULAR, IRREGULAR), data=st.data())
def test_an_engine_finds_the_same_paths_by_the_columns_alone(network, data):
    flow = pairs_of(network, data.draw)
    if not network.routes().num_paths(*flow):
        return
    columns = network.engine_columns()
    assert all(column.flags.c_contiguous for column in columns.values())
    index = data.draw(st.integers(0, 10**6))
    assert engine_path(columns, *flow, index) == network.routes().path(*flow, index)
    link = data.draw(st.integers(0, network.num_links - 1))
    source = network.link_source[link]
    assert columns["out_links"][columns["out_offset"][source] + columns["link_port"][link]] == link


@settings(max_examples=60)
@given(network=IRREGULAR, data=st.data())
def test_routes_around_dead_links_are_the_shortest_of_what_is_left(network, data):
    if network.via_switches is not None:
        return
    source, destination, plane = pairs_of(network, data.draw)
    dead = data.draw(st.sets(st.integers(0, network.num_links - 1), max_size=6))
    routes = network.routes(without_links=sorted(dead))
    count = routes.num_paths(source, destination, plane)
    expected = set(all_shortest(network, source, destination, plane, dead))
    assert bool(expected) == bool(count)
    for index in range(min(count, 20)):
        path = routes.path(source, destination, plane, index)
        assert tuple(path) in expected
        assert [int(link) for link in routes.paths(source, destination, plane, index)[0] if link >= 0] == path


@settings(max_examples=40)
@given(network=st.one_of(REGULAR, IRREGULAR), data=st.data())
def test_a_network_written_down_and_read_again_has_the_same_paths(network, data):
    if network.via_switches is not None:
        return
    again = parse_graph(describe(network))
    flow = pairs_of(network, data.draw)
    assert again.num_links == network.num_links
    assert again.routes().num_paths(*flow) == network.routes().num_paths(*flow)


@settings(max_examples=40)
@given(network=st.one_of(REGULAR, IRREGULAR))
def test_counts_of_paths_are_those_found_one_by_one(network):
    if network.num_nics > 12 or network.kind == "multi-site" or network.num_planes > 1:
        return
    found = defaultdict(list)
    for source in range(network.num_nics):
        for destination in range(network.num_nics):
            if source != destination:
                paths = all_shortest(network, source, destination, 0)
                if paths:
                    found[min(map(len, paths))].append(len(paths))
    classes = {entry.links: entry for entry in network.summary().paths}
    assert set(classes) == set(found)
    for links, counts in found.items():
        assert (classes[links].fewest, classes[links].most) == (min(counts), max(counts))
        assert classes[links].share == pytest.approx(len(counts) / sum(map(len, found.values())))


@settings(max_examples=30)
@given(network=REGULAR, data=st.data())
def test_a_plane_without_dead_links_keeps_its_very_table(network, data):
    plane = data.draw(st.integers(0, network.num_planes - 1))
    inner = np.flatnonzero(
        (network.link_plane == plane)
        & (network.link_source >= network.num_nics)
        & (network.link_target >= network.num_nics)
    )
    if not len(inner):
        return
    routes = network.routes(without_links=[data.draw(st.sampled_from(inner.tolist()))])
    for before, after in zip(network.routes().blocks, routes.blocks, strict=True):
        assert (before is after) == (before.planes != (plane,))
