"""Published sizes and ratios of networks, and how long the largest takes to build."""

import json
import subprocess
import sys

import pytest

from farstep.fabric import (
    clos,
    cube_torus,
    dragonfly,
    dual_tor,
    fat_tree,
    leaf_spine,
    preset,
    rail_optimised,
    torus,
    torus_connections,
)


def parts(topology):
    summary = topology.summary()
    return summary.nics, summary.num_switches, summary.transceivers


def test_two_tiers_of_512_ports_hold_131072_nics_and_build_in_a_minute_and_4_gb():
    # Not ru_maxrss: that of a child begins at what its parent held.
    program = """
import json, re, time
from farstep.fabric import clos
start = time.perf_counter()
network = clos(radix=512, planes=8)
routes = network.routes()
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "kib": int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]),
    "nics": network.num_nics, "switches": network.num_switches, "cables": network.num_cables,
    "paths": routes.num_paths(0, 131071, 7), "local": routes.num_paths(0, 255, 7),
    "hops": len(routes.path(0, 131071, 7, 255)), "tables": len({id(block.next_set) for block in routes.blocks})}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert measured.pop("seconds") < 60
    assert measured.pop("kib") * 1024 < 4e9
    assert measured == {
        "nics": 131_072,
        "switches": 8 * (512 + 256),
        "cables": 8 * 2 * 131_072,
        "paths": 256,
        "local": 1,
        "hops": 4,
        "tables": 1,
    }


def test_three_tiers_of_64_ports_hold_65536_nics():
    network = preset("three-tier-65536")
    summary = network.summary()
    assert summary.nics == 65_536
    assert summary.switches == {"T0": 2048, "T1": 2048, "T2": 1024}
    assert [(entry.links, entry.fewest, entry.most) for entry in summary.paths] == [
        (2, 1, 1),
        (4, 32, 32),
        (6, 1024, 1024),
    ]
    assert summary.bisection_gbps == 65_536 / 2 * 800


def test_at_equal_size_two_tiers_take_two_thirds_of_the_optics_and_three_fifths_of_the_switches():
    for size, radix_two, radix_three in ((65_536, 512, 64), (1024, 128, 16)):
        nics, switches, optics = parts(clos(size, planes=8, radix=radix_two, port_gbps=100.0))
        assert nics == size
        three = parts(fat_tree(size, radix=radix_three, port_gbps=800.0))
        assert three[0] == size
        assert switches * 5 == three[1] * 3
        assert optics * 3 == three[2] * 2


def test_the_loss_of_a_part_costs_what_the_paper_says():
    blast = {part.element: part for part in clos(2048, planes=8, radix=64).summary().blast}
    assert blast["NIC port"].nic_share == pytest.approx(1 / 8)
    assert blast["T0 switch"].nic_share == pytest.approx(1 / 8)
    assert blast["T0-T1 link"].t0_share == pytest.approx(1 / 32)
    assert blast["T1 switch"].t0_share == pytest.approx(1 / 32)
    assert blast["T1 switch"].nic_share == 0
    assert blast["T1 switch"].fabric_share == pytest.approx(1 / 256)
    assert blast["plane"].fabric_share == pytest.approx(1 / 8)
    assert blast["T0 transceiver"].t0_share == pytest.approx(8 / 32)
    single = {part.element: part for part in fat_tree(128).summary().blast}
    assert single["NIC port"].nic_share == 1
    dual = {part.element: part for part in dual_tor(2, hosts_per_segment=4, uplinks=4).summary().blast}
    assert dual["T0 switch"].nic_share == pytest.approx(1 / 2)


def test_copper_to_the_nics_saves_their_transceivers():
    optical, copper = clos(512).summary(), clos(512, nic_copper=True).summary()
    assert (optical.transceivers, copper.transceivers) == (4 * 512, 2 * 512)
    assert copper.links[0].optical == 0


@pytest.mark.parametrize(
    ("name", "nics", "switches"),
    [
        ("mrc-32768", 32_768, 1536),
        ("mrc-512", 512, 384),
        ("rail-2048", 2048, 96),
        ("hpn-7.0", 15_360, 2 * (120 + 60)),
        ("tpu-v5e", 256, 256),
    ],
)
def test_presets_have_the_published_sizes(name, nics, switches):
    network = preset(name)
    assert (network.num_nics, network.num_switches) == (nics, switches)


def test_a_pod_of_hpn_has_the_published_ratios():
    network = preset("hpn-7.0")
    summary = network.summary()
    assert network.num_planes == 2
    assert summary.nic_gbps == (400, 400)
    # 1,024 GPUs a segment on 16 ToRs; 128 x 200G down and 60 x 400G up.
    down = [link for link in summary.links if link.upper == "T0"]
    assert down[0].cables == 2 * 15_360
    routes = network.routes()
    assert len(routes.path(0, 8 * 127, 0, 0)) == 2  # same rail, same segment
    assert len(routes.path(0, 1, 0, 0)) == 4
    assert routes.num_paths(0, 1, 0) == 60
    three = dual_tor(2, hosts_per_segment=4, uplinks=4, core_uplinks=2, pods=2)
    assert len(three.routes().path(0, three.num_nics - 1, 1, 0)) == 6


def test_a_tpu_v4_pod_joins_64_cubes_by_optical_links():
    network = preset("tpu-v4")
    summary = network.summary()
    assert network.num_nics == 4096
    assert [(link.cables, link.optical) for link in summary.links if link.lower == "T0"] == [
        (3 * 4096, 3 * 16 * 64)
    ]
    assert summary.transceivers == 96 * 64
    assert summary.paths[-1].links == 24 + 2  # 8 hops in each of three rings of 16


def test_cubes_joined_as_a_torus_are_that_torus():
    joined, plain = cube_torus(8, torus_connections((2, 2, 2)), cube_size=2), torus((4, 4, 4))
    assert [entry.links for entry in joined.summary().paths] == [
        entry.links for entry in plain.summary().paths
    ]
    assert [entry.most for entry in joined.summary().paths] == [entry.most for entry in plain.summary().paths]


def test_other_faces_may_be_joined_and_those_left_out_are_dark():
    row = cube_torus(3, [("x", 0, 1), ("x", 1, 2)])
    assert row.num_cables == 3 * 64 + 3 * 144 + 2 * 16
    assert len(row.routes().path(0, 2 * 64, 0, 0)) == 2 + 8
    lonely = cube_torus(2, [])
    assert lonely.routes().num_paths(0, 64, 0) == 0


def test_a_balanced_dragonfly_has_one_cable_between_groups_and_at_most_three_hops():
    network = dragonfly(routers_per_group=4, nics_per_router=2, global_links=2)
    assert (network.num_nics, network.num_switches) == (72, 36)
    groups = network.node_group[network.link_source], network.node_group[network.link_target]
    crossing = {tuple(sorted(pair)) for pair in zip(*groups, strict=True) if pair[0] != pair[1]}
    assert len(crossing) == 9 * 8 / 2
    assert [entry.links for entry in network.summary().paths] == [2, 3, 4, 5]
    fewer = dragonfly(routers_per_group=4, nics_per_router=1, global_links=2, groups=5)
    per_group = (fewer.link_cost[::2] == 3).sum() * 2 / 5
    assert per_group == 8  # all global ports in use: two cables to each other group


def test_rails_keep_a_rail_on_one_leaf_of_its_unit():
    network = rail_optimised(512, rails=8, radix=32)
    routes = network.routes()
    assert len(routes.path(3, 3 + 8 * 15, 0, 0)) == 2
    assert len(routes.path(3, 4, 0, 0)) == 4
    assert len(routes.path(3, 3 + 8 * 16, 0, 0)) == 4
    assert network.node_group[3 + 8 * 5] == 3
    three = rail_optimised(512, rails=4, radix=16, tiers=3)
    assert sorted({len(three.routes().path(0, nic, 0, 0)) for nic in range(1, 512)}) == [2, 4, 6]


def test_leaves_may_have_several_cables_to_a_spine():
    network = leaf_spine(leaves=3, spines=2, nics_per_leaf=4, links_per_spine=3, planes=2)
    assert network.routes().num_paths(0, 11, 1) == 2 * 3 * 3
    assert network.summary().bisection_gbps == 3 / 2 * min(4, 6) * 100 * 2


def test_a_summary_reads_as_text():
    text = str(clos(128, planes=2).summary())
    assert "128 of 200 Gb/s in 2 planes" in text
    assert "T0 - T1" in text
    assert "NIC port" in text
    assert "1 to 51,480 of 3 to 18 links" in str(preset("tpu-v5e").summary())
