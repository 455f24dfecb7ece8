"""What a fabric becomes on one machine, as text for `ip`."""

import ipaddress
import re

import pytest

from farstep.fabric import ConfigError, clos, fat_tree, leaf_spine
from farstep.lab.fabric.options import LabOptions
from farstep.lab.fabric.wiring import SLUG, FabricWiring, node_slug


@pytest.fixture
def wiring() -> FabricWiring:
    return FabricWiring(leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2), LabOptions())


def test_namespaces_have_names_of_their_own_and_labs_know_them_again(wiring: FabricWiring) -> None:
    assert wiring.slugs[:5] == ["nic-0", "nic-1", "nic-2", "nic-3", "t0-p0-0"]
    assert len(set(wiring.slugs)) == wiring.topology.num_nodes
    assert all(SLUG.fullmatch(slug) for slug in wiring.slugs)
    assert node_slug(wiring.topology, 11) == "t1-p1-1"


def test_interfaces_are_named_after_what_they_lead_to(wiring: FabricWiring) -> None:
    assert wiring.ports(0) == ["p0", "p1"]
    assert wiring.ports(4) == ["d0", "d1", "u0", "u1"]
    assert wiring.ports(6) == ["d0", "d1"]


def test_parallel_cables_have_names_of_their_own() -> None:
    wiring = FabricWiring(clos(4, planes=1, radix=4), LabOptions())
    t1 = wiring.plan.switches(1)[0]
    assert wiring.ports(t1) == ["d0", "d0x1", "d1", "d1x1"]
    for node in range(wiring.topology.num_nodes):
        assert len(set(wiring.ports(node))) == len(wiring.ports(node))


def test_the_table_of_a_t0_is_static(wiring: FabricWiring) -> None:
    flavor = "flavors next-csid lblen 32 nflen 16"
    assert wiring.usid_routes(4) == [
        "route replace blackhole fcbb:bbbb::/32",
        f"route replace fcbb:bbbb:2000::/48 encap seg6local action End {flavor} dev sid",
        "route replace fcbb:bbbb:4000::/48 dev u0",
        "route replace fcbb:bbbb:4001::/48 dev u1",
        "route replace fcbb:bbbb:c000::/48 dev d0",
        "route replace fcbb:bbbb:c001::/48 dev d1",
    ]
    assert wiring.usid_routes(4, over="u1") == ["route replace fcbb:bbbb:4001::/48 dev u1"]


def test_what_an_interface_has_lost_is_its_own_and_not_that_of_a_longer_name() -> None:
    parallel = FabricWiring(clos(4, planes=1, radix=4), LabOptions())
    t1 = parallel.plan.switches(1)[0]
    assert len(parallel.usid_routes(t1, over="d0")) == 2
    assert not any("d0x1" in line for line in parallel.usid_routes(t1, over="d0"))
    many = FabricWiring(leaf_spine(leaves=2, spines=12, nics_per_leaf=2), LabOptions())
    assert many.usid_routes(4, over="u1") == ["route replace fcbb:bbbb:4001::/48 dev u1"]


def test_a_nic_delivers_whatever_is_behind_its_downlink(wiring: FabricWiring) -> None:
    assert wiring.usid_routes(3) == [
        "route replace fcbb:bbbb:2001::/48 dev p0",
        "route replace fcbb:bbbb:2401::/48 dev p1",
        "route replace local fcbb:bbbb:c001::/48 dev lo",
        "route replace local fcbb:bbbb:c401::/48 dev lo",
    ]


def test_a_t1_with_parallel_cables_names_each_by_an_address_of_its_own() -> None:
    wiring = FabricWiring(clos(4, planes=1, radix=4), LabOptions())
    lines = wiring.usid_routes(wiring.plan.switches(1)[0])
    hops = [re.search(r"End\.X nh6 (\S+)", line) for line in lines]
    named = {found[1] for found in hops if found is not None}
    direct = {line.split()[2] for line in lines if "/128 dev d" in line}
    assert len(named) == 4
    assert direct == {f"{ipaddress.IPv6Address(hop)}/128" for hop in named}


def test_only_switches_forward(wiring: FabricWiring) -> None:
    assert wiring.sysctls(4)["net.ipv6.conf.all.forwarding"] == "1"
    assert "net.ipv6.conf.all.forwarding" not in wiring.sysctls(0)


def test_rates_are_scaled_and_long_links_are_carried() -> None:
    topology = leaf_spine(leaves=2, spines=2, nics_per_leaf=2, port_gbps=100, link_latency_ns=2e6)
    cable = FabricWiring(topology, LabOptions(rate_scale=0.001)).cables[0]
    assert cable.rates_mbps == pytest.approx((100.0, 100.0))
    assert cable.is_carried
    assert not FabricWiring(topology, LabOptions(delay="none")).cables[0].is_carried
    assert not FabricWiring(topology, LabOptions(delay="netem")).cables[0].is_carried
    short = leaf_spine(leaves=2, spines=2, nics_per_leaf=2, link_latency_ns=99_000)
    assert not FabricWiring(short, LabOptions()).cables[0].is_carried


def test_fabrics_that_do_not_fit_are_refused_with_what_does() -> None:
    with pytest.raises(ConfigError, match=r"fabric: 896 NICs and switches: a lab has 512 at most"):
        FabricWiring(clos(radix=32), LabOptions())
    with pytest.raises(ConfigError, match="valid: planes of two tiers"):
        FabricWiring(fat_tree(16), LabOptions())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rate_scale": 0.0}, "scale = 0.0: valid: 1e-09 to 1000"),
        ({"rate_scale": True}, "scale = True"),
        ({"mtu_bytes": 100}, "mtu = 100: must be a whole number from 1500 to 65000"),
        ({"queue_ms": -1.0}, "queue_ms = -1.0: valid: 0.01 to 10000"),
        ({"mark_ms": float("nan")}, "mark_ms = nan: valid: 0 to 10000"),
        ({"delay": "yes"}, 'delay = "yes": valid: netem, tunnel, none'),
    ],
)
def test_options_that_make_no_sense_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        LabOptions(**values)  # type: ignore[arg-type]
