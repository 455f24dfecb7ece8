"""Ways and constraints of flows against an enumeration link by link, on every kind of fabric."""

import numpy as np
import pytest

from farstep.fabric.topology import (
    clos,
    dragonfly,
    dual_tor,
    fat_tree,
    leaf_spine,
    rail_optimised,
    torus,
)
from farstep.sim.faults import LinkAction
from farstep.sim.flow import FlowSettings, LoadMatrix, max_min_rates
from farstep.sim.flow.bundles import BundleTable
from farstep.sim.flow.network import FlowNetwork
from farstep.sim.flow.plan import FlowPlan
from farstep.sim.flow.rows import hashed_rows, sprayed_rows
from farstep.sim.flow.walk import RoutingView
from farstep.sim.tasks import TaskTable

FABRICS = {
    "fat tree": lambda: fat_tree(54, radix=6),
    "oversubscribed": lambda: fat_tree(30, tiers=2, radix=12, oversubscription=2.0),
    "planes": lambda: clos(32, planes=4),
    "leaf-spine with parallel links": lambda: leaf_spine(
        leaves=3, spines=2, nics_per_leaf=3, links_per_spine=2
    ),
    "rails": lambda: rail_optimised(64, rails=4, radix=16),
    "dual ToR": lambda: dual_tor(2, hosts_per_segment=4, rails=2, uplinks=4, core_uplinks=2),
    "torus": lambda: torus((4, 3, 2)),
    "dragonfly": lambda: dragonfly(routers_per_group=4, nics_per_router=2, global_links=2),
    "dragonfly, Valiant": lambda: dragonfly(
        routers_per_group=2, nics_per_router=1, global_links=1, routing="valiant"
    ),
}


@pytest.fixture(scope="module", params=list(FABRICS))
def fabric(request):
    return FABRICS[request.param]()


def some_pairs(fabric, count, seed=0):
    rng = np.random.default_rng(seed)
    source = rng.integers(0, fabric.num_nics, count)
    return source, (source + rng.integers(1, fabric.num_nics, count)) % fabric.num_nics


def planes_of(fabric, source):
    """Planes of a NIC, most often all."""
    return np.unique(fabric.ports.plane[fabric.ports.offset[source] : fabric.ports.offset[source + 1]])


def shares_by_links(fabric, source, target, flows):
    """Shares of links by the route table's own enumeration, every plane weighing the same."""
    dense = np.zeros((flows, fabric.num_links))
    for flow in range(flows):
        planes = planes_of(fabric, source[flow])
        for plane in planes:
            found = fabric.routes().link_shares([source[flow]], [target[flow]], [plane])
            dense[flow, found.link] += found.share / len(planes)
    return dense


def dense_of(rows, table, num_links):
    dense = np.zeros((len(rows.offset) - 1, num_links))
    owner, link, share = table.expand(rows.bundle)
    row = np.repeat(np.arange(len(dense)), np.diff(rows.offset))
    np.add.at(dense, (row[owner], link), share * rows.share[owner])
    return dense


def test_sprayed_flows_load_the_links_of_all_paths(fabric):
    source, target = some_pairs(fabric, 30)
    table = BundleTable(fabric.num_links)
    rows = sprayed_rows(RoutingView(fabric, fabric.routes()), table, source, target)
    assert rows.survival == pytest.approx(1.0)
    expected = shares_by_links(fabric, source, target, 30)
    assert dense_of(rows, table, fabric.num_links) == pytest.approx(expected, abs=1e-9)


def test_hashed_flows_take_whole_paths(fabric):
    source, target = some_pairs(fabric, 50)
    table = BundleTable(fabric.num_links)
    entropy = np.arange(50, dtype=np.uint64)
    rows = hashed_rows(RoutingView(fabric, fabric.routes()), table, source, target, entropy)
    if fabric.via_switches is None:  # a detour may use a link twice
        assert rows.share == pytest.approx(1.0)
    for row in range(50):
        links = rows.bundle[rows.offset[row] : rows.offset[row + 1]]
        assert (links < fabric.num_links).all()
        # Each node is left as often as it is entered, but for the ends.
        balance = np.zeros(fabric.num_nodes)
        share = rows.share[rows.offset[row] : rows.offset[row + 1]]
        np.add.at(balance, fabric.link_source[links], share)
        np.subtract.at(balance, fabric.link_target[links], share)
        assert balance[source[row]] == pytest.approx(1.0)
        assert balance[target[row]] == pytest.approx(-1.0)
        assert np.abs(np.delete(balance, [source[row], target[row]])).max() == pytest.approx(0.0, abs=1e-9)


def test_hashed_paths_are_spread_like_sprayed_ones(fabric):
    source, target = some_pairs(fabric, 1, seed=3)
    view, table = RoutingView(fabric, fabric.routes()), BundleTable(fabric.num_links)
    many = hashed_rows(view, table, source, target, np.arange(1, dtype=np.uint64), paths=4000)
    sprayed = sprayed_rows(view, table, source, target)
    difference = dense_of(many, table, fabric.num_links) - dense_of(sprayed, table, fabric.num_links)
    assert np.abs(difference).max() < 0.05


def network_of(fabric, source, target, faults=(), **changes):
    tasks = TaskTable.from_columns(source=source, target=target, size_bytes=1000)
    settings = FlowSettings(collisions=0.0, detection_ns=0.0, ack_every_bytes=None, **changes)
    plan = FlowPlan.of(tasks, settings, 0)
    return plan, FlowNetwork(fabric, plan, faults)


def test_bundles_give_the_rates_of_single_links(fabric):
    source, target = some_pairs(fabric, 40, seed=1)
    plan, network = network_of(fabric, source, target)
    expected = single_link_rates(fabric, source, target)
    for matrix in (network.matrix, network.tight_matrix):
        assert rates_of(plan, network, matrix) == pytest.approx(expected, rel=1e-6)
    assert network.capacity.shape[0] <= fabric.num_links


def test_without_oversubscription_only_nics_can_fill_links():
    fabric = fat_tree(54, radix=6)
    _, network = network_of(fabric, *some_pairs(fabric, 200))
    assert network.can_fill.sum() <= 2 * 54
    narrow = fat_tree(30, tiers=2, radix=12, oversubscription=2.0)
    _, network = network_of(narrow, *some_pairs(narrow, 200))
    assert network.can_fill.all()


def rates_of(plan, network, matrix):
    row = plan.first_row
    offset = np.concatenate(([0], np.cumsum(np.diff(matrix.offset)[row])))
    entries = np.concatenate([np.arange(matrix.offset[r], matrix.offset[r + 1]) for r in row])
    chosen = LoadMatrix(offset, matrix.constraint[entries], matrix.share[entries])
    return max_min_rates(chosen, network.capacity)


def single_link_rates(fabric, source, target):
    dense = shares_by_links(fabric, source, target, len(source))
    flow, link = np.nonzero(dense)
    single = LoadMatrix(np.searchsorted(flow, np.arange(len(source) + 1)), link, dense[flow, link])
    return max_min_rates(single, fabric.link_rate_gbps)


def test_without_dead_links_nothing_is_lost_or_left_out(fabric):
    """Links die and senders leave them out at once: every pair with a path left still brings all of its bytes over."""
    source, target = some_pairs(fabric, 30, seed=2)
    between = (fabric.link_source >= fabric.num_nics) & (fabric.link_target >= fabric.num_nics)
    dead = np.random.default_rng(0).choice(np.flatnonzero(between), 3, replace=False).astype(np.int32)
    plan, network = network_of(
        fabric, source, target, [LinkAction(time_ns=0, links=np.sort(dead), kind="down")]
    )
    rows = network.rows
    row = plan.first_row
    routed = rows.is_routed[row]
    assert rows.survival[row][routed] == pytest.approx(1.0)
    dense = dense_of(rows, network.table, fabric.num_links)
    assert dense[:, dead].max() == 0.0
    # What enters a switch leaves it.
    for each in np.unique(row[routed]):
        balance = np.zeros(fabric.num_nodes)
        np.add.at(balance, fabric.link_source, dense[each])
        np.subtract.at(balance, fabric.link_target, dense[each])
        inner = np.abs(balance[fabric.num_nics :]).max()
        assert inner == pytest.approx(0.0, abs=1e-9)


def test_dead_links_take_what_is_sent_into_them(fabric):
    source, target = some_pairs(fabric, 30, seed=2)
    between = (fabric.link_source >= fabric.num_nics) & (fabric.link_target >= fabric.num_nics)
    dead = np.sort(np.random.default_rng(1).choice(np.flatnonzero(between), 3, replace=False)).astype(
        np.int32
    )
    plan, network = network_of(
        fabric, source, target, [LinkAction(time_ns=0, links=dead, kind="down")], failover="none"
    )
    dense = dense_of(network.rows, network.table, fabric.num_links)
    lost = 1.0 - network.rows.survival
    assert dense[:, dead].sum(axis=1) == pytest.approx(lost, abs=1e-9)
    assert plan.parts == 1
