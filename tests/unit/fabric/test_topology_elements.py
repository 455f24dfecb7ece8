"""Names of elements: which links each means, and what is said about a wrong one."""

import numpy as np
import pytest

from farstep.fabric import ConfigError, clos, fat_tree, multi_site, torus
from farstep.fabric.topology import cage_numbers, parse_graph, resolve_nodes

TREE = fat_tree(128)
CLOS = clos(128, planes=2)


def touching(network, node):
    return set(np.flatnonzero((network.link_source == node) | (network.link_target == node)))


@pytest.mark.parametrize("network", [TREE, CLOS, torus((3, 4))], ids=lambda network: network.name)
def test_every_node_and_link_is_found_by_its_name(network):
    for node in range(network.num_nodes):
        name = network.node_name(node)
        kind, rest = ("nic", name.removeprefix("nic/")) if name.startswith("nic/") else ("switch", name)
        assert list(resolve_nodes(network, f"{kind}:{rest}")) == [node]
        assert set(network.resolve(f"{kind}:{rest}")) == touching(network, node)
    for link in range(0, network.num_links, 7):
        found = network.resolve(f"link:{network.link_name(link)}")
        ends = network.link_source[link], network.link_target[link]
        assert link in found
        assert all((network.link_source[other], network.link_target[other]) == ends for other in found)


@pytest.mark.parametrize(
    ("target", "count"),
    [
        ("nic:12", 2),
        ("nic:1?", 20),
        ("nic:*", 256),
        ("nic-port:12/0", 2),
        ("switch:t1/p0/5", 16),
        ("switch:t2/*/*", 256),
        ("link:t0/p0/3-t1/p0/*", 8),
        ("link:t0/p0/3->t1/p0/*", 4),
        ("link:t1/p0/*->t0/p0/3", 4),
        ("link:nic/0-*", 2),
        ("link:t0/p0/3-t1/p0/3#0", 2),
        ("plane:0", 768),
        ("site:loc*", 768),
    ],
)
def test_a_target_means_so_many_directed_links(target, count):
    links = TREE.resolve(target)
    assert links.dtype == np.int32
    assert len(links) == count == len(set(links))
    assert list(links) == sorted(links)


def test_a_plane_of_several_is_its_links_alone():
    assert set(CLOS.link_plane[CLOS.resolve("plane:1")]) == {1}
    assert len(CLOS.resolve("plane:*")) == CLOS.num_links
    assert set(CLOS.resolve("switch:*/p1/*")) == set(CLOS.resolve("plane:1"))


def test_a_cage_holds_neighbouring_ports_and_its_loss_takes_both_directions():
    # Eight ports of 100G share a cage: T0 3 of radix 16 has one of NIC ports and one of uplinks.
    uplinks = CLOS.resolve("transceiver:t0/p0/3/1")
    node = int(resolve_nodes(CLOS, "switch:t0/p0/3")[0])
    assert set(uplinks) == {way for link in CLOS.out_links(node)[8:] for way in (int(link), int(link) ^ 1)}
    assert set(CLOS.resolve("transceiver:nic/12/0")) == set(CLOS.resolve("nic:12"))
    assert (cage_numbers(clos(128, nic_copper=True))[:10] == -1).all()


def test_one_of_several_parallel_cables_can_be_named():
    network = clos(64, planes=1, radix=32)
    both = network.resolve("link:t0/p0/0-t1/p0/0")
    one, other = (network.resolve(f"link:t0/p0/0-t1/p0/0#{number}") for number in (0, 1))
    assert len(both) > 4
    assert len(one) == len(other) == 2
    assert not set(one) & set(other)


def test_names_given_by_a_file_can_be_used():
    network = parse_graph(
        {
            "switches": [{"name": "left"}, {"name": "right"}],
            "links": [{"between": ["left", "right"], "count": 2}],
            "nics": [{"switches": ["left"]}, {"switches": ["right"]}],
        }
    )
    assert len(network.resolve("link:left-right")) == 4
    assert len(network.resolve("switch:left")) == 6
    assert network.link_name(int(network.resolve("link:left->right")[0])) == "left->right#0"


def test_names_with_dashes_of_their_own_are_told_apart():
    network = parse_graph(
        {
            "switches": [{"name": "leaf-1"}, {"name": "leaf-2"}],
            "links": [{"between": ["leaf-1", "leaf-2"]}],
            "nics": [{"switches": ["leaf-1"]}, {"switches": ["leaf-2"]}],
        }
    )
    assert len(network.resolve("link:leaf-1-leaf-2")) == 2
    assert len(network.resolve("link:leaf-1-nic/0")) == 2
    assert network.resolve(f"link:{network.link_name(0)}").tolist() == [0]


def test_all_switches_of_a_tier_are_named_in_two_parts():
    assert np.array_equal(CLOS.resolve("link:t0/*-t1/*"), CLOS.resolve("link:t0/p*/*-t1/p*/*"))
    assert np.array_equal(CLOS.resolve("switch:t1/*"), CLOS.resolve("switch:t1/*/*"))
    with pytest.raises(ConfigError, match=r't0/3" is no node; write .* t0/\* for a tier'):
        CLOS.resolve("switch:t0/3")


def test_every_link_has_a_name_of_its_own():
    network = clos(64, planes=1, radix=32)
    names = [network.link_name(link) for link in range(network.num_links)]
    assert len(set(names)) == network.num_links
    assert [network.resolve(f"link:{name}").tolist() for name in names[:200]] == [
        [link] for link in range(200)
    ]


def test_a_switch_of_all_planes_is_named_with_an_x():
    network = multi_site(
        {"a": clos(8, planes=2, radix=4), "b": clos(8, planes=2, radix=4)},
        [{"between": ["a", "b"], "delay_ms": 1}],
        join_planes=True,
    )
    assert len(network.resolve("link:t2/px/0-t2/px/1")) == 2
    assert len(network.resolve("site:a")) < network.num_links
    wan = network.resolve("link:t2/*/*-t2/*/*")
    assert set(network.link_plane[wan]) == {-1}
    assert not set(network.resolve("plane:*")) ^ set(range(network.num_links))


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("t1/p0/5", "names nothing of a network; valid: nic:..., nic-port:..., switch:..., link:..., "),
        ("rack:3", "names nothing of a network"),
        ("nic:128", 'no such NIC "128"; valid: 0 to 127'),
        ("nic:x", 'no such NIC "x"'),
        ("nic:99999999999999999999", "no such NIC"),
        ("nic-port:12", "write it as NIC/PORT"),
        ("nic-port:12/4", 'no such port "4"; valid: 0 to 0'),
        ("switch:nic/3", "is no switch; write nic:NUMBER"),
        ("switch:t7/p0/0", 'no such tier "t7"; known tiers: t0, t1, t2'),
        ("switch:t0/p4/0", 'no such plane "p4" in that tier; known planes: p0'),
        ("switch:t0/p0/99", 'no such switch "t0/p0/99"; valid: t0/p0/0 to 31'),
        ("switch:t0", '"t0" is no node; write nic/NUMBER or tTIER/pPLANE/NUMBER'),
        ("link:t0/p0/3", "write it as NODE-NODE"),
        (
            "link:t0/p0/0-t1/p0/31",
            'no cable between "t0/p0/0" and "t1/p0/31"; t0/p0/0 is joined to nic/0, nic/1,',
        ),
        ("link:t0/p0/0-t1/p0/0#3", 'no such parallel cable "#3"; valid: #0 to #0'),
        ("transceiver:t0", "write it as NODE/CAGE"),
        ("transceiver:t0/p0/0/9", 'no such cage "9"; valid: 0 to 0'),
        ("plane:3", "no such plane; known planes: 0"),
        ("site:east", "no such site; known sites: local"),
    ],
)
def test_a_wrong_target_is_told_with_what_is_valid(target, told):
    with pytest.raises(ConfigError) as caught:
        TREE.resolve(target)
    assert str(caught.value).startswith(f'target = "{target}": ')
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_copper_has_no_transceiver_to_name():
    with pytest.raises(ConfigError, match="nic/3 has no transceiver: its cables are copper"):
        clos(128, nic_copper=True).resolve("transceiver:nic/3/0")


def test_a_link_is_no_node():
    with pytest.raises(ConfigError, match=r"is no node; valid: nic:..., switch:..."):
        resolve_nodes(TREE, "link:t0/p0/0-t1/p0/0")
