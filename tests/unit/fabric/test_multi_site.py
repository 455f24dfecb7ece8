"""Sites joined by long fibres: unequal, with parallel links, with planes apart or joined."""

import numpy as np
import pytest

from farstep.fabric import WanLink, clos, dragonfly, fat_tree, leaf_spine, multi_site, torus
from farstep.fabric.topology import FIBRE_NS_PER_KM


def two_sites(**more):
    return multi_site(
        {"east": clos(32, planes=2), "west": fat_tree(16, planes=2)},
        [WanLink(between=("east", "west"), fibre_km=1000, links=5, rate_gbps=800)],
        **more,
    )


def test_nics_are_numbered_site_by_site_and_keep_their_networks():
    network = two_sites()
    assert network.site_names == ("east", "west")
    assert list(np.bincount(network.node_site[:48])) == [32, 16]
    alone = clos(32, planes=2)
    path = network.routes().path(0, 31, 1, 3)
    assert len(path) == len(alone.routes().path(0, 31, 1, 3))
    assert network.routes().num_paths(0, 31, 1) == alone.routes().num_paths(0, 31, 1)


def test_planes_stay_apart_and_share_the_links_in_turn():
    network = two_sites()
    routes = network.routes()
    assert len(routes.blocks) == 2
    wan = network.resolve("link:t3/*/*-t3/*/*")[::2]
    assert list(np.bincount(network.link_plane[wan])) == [3, 2]
    for plane, links in ((0, 3), (1, 2)):
        crossed = {
            link
            for index in range(routes.num_paths(0, 40, plane))
            for link in routes.path(0, 40, plane, index)
            if link // 2 * 2 in wan
        }
        assert len(crossed) == links


def test_delay_follows_from_the_length_of_the_fibre():
    network = two_sites()
    path = network.routes().path(0, 40, 0, 0)
    long = network.link_latency_ns[path].max()
    assert long == pytest.approx(1000 * FIBRE_NS_PER_KM)
    assert 2 * long / 1e6 == pytest.approx(9.8, rel=0.001)  # ms of round trip for 1,000 km
    assert WanLink(between=("a", "b"), delay_ms=2.5).latency_ns == 2.5e6


def test_joined_planes_let_sites_differ_in_planes():
    network = multi_site(
        {"big": clos(32, planes=4), "small": leaf_spine(leaves=2, spines=1, nics_per_leaf=2)},
        [{"between": ["big", "small"], "delay_ms": 1, "links": 2}],
        join_planes=True,
        borders=2,
    )
    routes = network.routes()
    assert len(routes.blocks) == 1
    for plane in range(4):
        path = routes.path(0, 33, plane, 1)
        assert network.link_plane[path[0]] == plane
        assert network.link_target[path[-1]] == 33
        assert [int(link) for link in routes.paths(0, 33, plane, 1)[0]] == path
        # Within a site, a flow stays in its plane.
        assert set(network.link_plane[routes.path(0, 31, plane, 0)]) == {plane}
    assert routes.num_paths(33, 0, 3) == 0
    assert network.summary().wan_gbps == {("big", "small"): 800}


def test_no_route_within_a_site_leaves_it_even_where_it_would_be_shorter():
    for site in (torus((9,), wrap=False), dragonfly(routers_per_group=4, nics_per_router=1, global_links=1)):
        network = multi_site({"a": site, "b": fat_tree(16)}, [{"between": ["a", "b"], "delay_ms": 1}])
        last = site.num_nics - 1
        path = network.routes().path(0, last, 0, 0)
        assert len(path) == len(site.routes().path(0, last, 0, 0))
        assert set(network.node_site[network.link_target[path]]) == {0}


def test_three_sites_take_the_direct_link():
    network = multi_site(
        {name: fat_tree(16) for name in "abc"},
        [{"between": pair, "delay_ms": 1} for pair in (["a", "b"], ["b", "c"], ["a", "c"])],
    )
    path = network.routes().path(0, 47, 0, 0)
    assert set(network.node_site[network.link_target[path]]) == {0, 2}
    row = multi_site(
        {name: fat_tree(16) for name in "abc"},
        [{"between": pair, "delay_ms": 1} for pair in (["a", "b"], ["b", "c"])],
    )
    assert 1 in row.node_site[row.link_target[row.routes().path(0, 47, 0, 0)]]
