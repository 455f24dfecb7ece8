"""Bisection in closed form against the largest flow between the two halves."""

import pytest

from farstep.fabric import clos, dragonfly, dual_tor, fat_tree, rail_optimised, torus


def largest_flow_gbps(topology):
    """Edmonds-Karp between the first and the second half of the NICs, capacities in Gb/s."""
    source, sink = -1, -2
    residual = {}

    def add(one, other, rate):
        residual.setdefault(one, {})[other] = residual.get(one, {}).get(other, 0.0) + rate
        residual.setdefault(other, {}).setdefault(one, 0.0)

    half = topology.num_nics // 2

    def node(number):
        return number if number >= topology.num_nics else source if number < half else sink

    for link in range(topology.num_links):
        ends = node(int(topology.link_source[link])), node(int(topology.link_target[link]))
        add(*ends, float(topology.link_rate_gbps[link]))
    total = 0.0
    while True:
        came = {source: source}
        queue = [source]
        for here in queue:
            for there, rate in residual[here].items():
                if rate > 1e-9 and there not in came:
                    came[there] = here
                    queue.append(there)
        if sink not in came:
            return total
        path = [sink]
        while path[-1] != source:
            path.append(came[path[-1]])
        steps = list(zip(path[1:], path, strict=False))
        most = min(residual[here][there] for here, there in steps)
        for here, there in steps:
            residual[here][there] -= most
            residual[there][here] += most
        total += most


@pytest.mark.parametrize(
    "network",
    [
        clos(32, planes=2),
        clos(48, radix=16, planes=1, oversubscription=3.0),
        clos(32, planes=1, uplink_gbps=50.0),
        fat_tree(16),
        fat_tree(32, tiers=2),
        fat_tree(128, pod_oversubscription=2.0),
        fat_tree(128, oversubscription=2.0),
        rail_optimised(32, rails=2, radix=8),
        dual_tor(2, hosts_per_segment=4, rails=2, uplinks=2),
        torus((4, 4, 2)),
        torus((6, 3)),
        torus((4, 2), wrap=False),
        dragonfly(routers_per_group=3, nics_per_router=1, global_links=1, groups=4),
    ],
    ids=lambda network: network.name,
)
def test_bisection_is_the_largest_flow_between_halves(network):
    assert network.bisection_gbps is not None
    assert largest_flow_gbps(network) == pytest.approx(min(network.bisection_gbps, _nics_gbps(network)))


def _nics_gbps(network):
    return float(network.link_rate_gbps[network.ports.link].sum()) / 2


def test_no_closed_form_is_claimed_where_there_is_none():
    assert torus((5, 3)).bisection_gbps is None
