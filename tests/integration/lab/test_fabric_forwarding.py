"""Packets in a lab: their paths are those their addresses say, and links are as fast and as slow as described."""

import ipaddress
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farstep.fabric import clos, leaf_spine
from farstep.fabric.addresses import ev_of
from farstep.lab.fabric import FabricLab, LabFaults
from tests.integration.lab.lab_kit import (
    QUIET,
    WAIT_S,
    built,
    has_carrier,
    link_number,
    needs_lab,
    send,
)

pytestmark = [pytest.mark.netns, needs_lab]

COUNT = 200


@pytest.fixture(scope="module")
def lab() -> Iterator[FabricLab]:
    with built(leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2, port_gbps=0.1), "plain") as lab:
        yield lab


@pytest.mark.parametrize(("source", "destination"), [(0, 3), (2, 1), (0, 1)])
def test_each_ev_goes_over_its_own_links_and_no_others(lab: FabricLab, source: int, destination: int) -> None:
    plan = lab.wiring.plan
    for ev in plan.row(source, destination).evs:
        got = send(lab, source, destination, plan.row(source, destination).address(ev), count=COUNT)
        assert got.count == COUNT
        assert set(got.links) == set(plan.path(source, destination, ev))
        assert all(COUNT <= packets < COUNT + QUIET for packets in got.links.values())
        plane = ev >> 29
        assert got.to == [str(plan.arrival(destination, plane))]


def test_parallel_cables_are_told_apart() -> None:
    """One T1 with two cables to every T0: an EV is a cable up, and its twin down."""
    with built(clos(4, planes=1, radix=4, port_gbps=0.1), "parallel") as lab:
        plan = lab.wiring.plan
        seen = set()
        for ev in plan.row(0, 3).evs:
            got = send(lab, 0, 3, plan.row(0, 3).address(ev), count=COUNT)
            assert got.count == COUNT
            assert set(got.links) == set(plan.path(0, 3, ev))
            seen |= set(got.links)
        assert len(seen) == 2 + 2 * 2


def test_what_is_behind_the_downlink_arrives_unchanged(lab: FabricLab) -> None:
    plan = lab.wiring.plan
    marked = ipaddress.IPv6Address(int(plan.row(0, 3).address(ev_of(1, 1))) | 0xBEEF_8001)
    got = send(lab, 0, 3, marked)
    expected = ipaddress.IPv6Address(int(plan.arrival(3, 1)) | 0xBEEF_8001 << 48)
    assert (got.count, got.to) == (COUNT, [str(expected)])


def test_returning_packets_need_no_other_host(lab: FabricLab) -> None:
    plan = lab.wiring.plan
    near = send(lab, 2, 2, plan.returning(2, 1), count=COUNT)
    far = send(lab, 2, 2, plan.returning(2, 1, 0), count=COUNT)
    assert (near.count, far.count) == (COUNT, COUNT)
    up = int(lab.record.topology.nic_links(2)[1])
    over = link_number(lab, "t0/p1/1->t1/p1/0")
    assert set(near.links) == {up, up ^ 1}
    assert set(far.links) == {up, up ^ 1, over, over ^ 1}


def test_traffic_that_says_no_path_is_spread_over_all(lab: FabricLab) -> None:
    topology = lab.record.topology
    got = send(lab, 0, 3, lab.wiring.plan.host_address(3), count=3200, flows=64, no_checksum=False)
    assert got.count == 3200
    firsts = ("t0/p0/0->t1", "t0/p1/0->t1")
    uplinks = {link for link in range(topology.num_links) if topology.link_name(link).startswith(firsts)}
    assert uplinks <= set(got.links)
    of_a_port = send(lab, 0, 3, lab.wiring.plan.host_address(3, 1), count=3200, flows=64, no_checksum=False)
    assert of_a_port.count == 3200
    assert {topology.link_plane[link] for link in of_a_port.links} == {1}


MPTCP = """
import socket, sys
IPPROTO_MPTCP = 262
box = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, IPPROTO_MPTCP)
if sys.argv[1] == "listen":
    box.bind(("::", 5000))
    box.listen()
    print("ready", flush=True)
    peer, _ = box.accept()
    while peer.recv(1 << 20):
        pass
else:
    box.connect((sys.argv[1], 5000))
    for _ in range(400):
        box.sendall(bytes(65536))
"""


def test_mptcp_has_a_subflow_in_every_plane(lab: FabricLab) -> None:
    if not Path("/proc/sys/net/mptcp").exists():
        pytest.skip("the kernel has no MPTCP")
    before = lab.counters()
    server = lab.popen(3, [sys.executable, "-c", MPTCP, "listen"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        client = lab.run(0, [sys.executable, "-c", MPTCP, str(lab.wiring.plan.host_address(3))])
        assert client.returncode == 0, client.stderr
        server.communicate(timeout=WAIT_S)
    finally:
        server.kill()
        server.wait()
    after = lab.counters()
    for link in map(int, lab.record.topology.nic_links(0)):
        assert after[link][1] - before[link][1] > 400 * 65536 / 10


def test_links_keep_to_their_rate_and_mark_what_is_too_much(lab: FabricLab) -> None:
    address = lab.wiring.plan.row(0, 3).address(ev_of(0, 0))
    got = send(lab, 0, 3, address, count=3000, size_bytes=4000, tclass=2, pause_s=0.0)
    assert 0 < got.count <= 3000
    assert got.rate_mbps < 110
    assert got.marked > 0


def test_a_link_with_room_to_spare_marks_nothing(lab: FabricLab) -> None:
    address = lab.wiring.plan.row(0, 3).address(ev_of(0, 0))
    got = send(lab, 0, 3, address, count=100, size_bytes=1000, tclass=2, burst=5, pause_s=0.005)
    assert (got.count, got.marked) == (100, 0)


def test_long_links_take_their_time() -> None:
    """With or without help of the kernel: no packet is early, none is lost, and carrier comes and goes."""
    topology = leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=1, port_gbps=0.1, link_latency_ns=3e6)
    with built(topology, "long") as lab:
        plan = lab.wiring.plan
        for ev in plan.row(0, 3).evs:
            got = send(lab, 0, 3, plan.row(0, 3).address(ev), count=COUNT)
            assert got.count == COUNT
            assert set(got.links) == set(plan.path(0, 3, ev))
            assert got.delay_s is not None
            assert got.delay_s >= 4 * 0.003
        cut = link_number(lab, "t0/p0/0->t1/p0/1")
        with LabFaults(lab) as faults:
            faults.set("link:t0/p0/0-t1/p0/1", is_down=True, is_signalled=True)
            assert not has_carrier(lab, cut)
            assert not has_carrier(lab, cut ^ 1)
            assert send(lab, 0, 3, plan.row(0, 3).address(ev_of(0, 1))).count == 0
            faults.set("link:t0/p0/0-t1/p0/1", delay_ns=20e6)
            slow = send(lab, 0, 3, plan.row(0, 3).address(ev_of(0, 1)))
            assert slow.count == COUNT
            assert slow.delay_s is not None
            assert slow.delay_s >= 4 * 0.003 + 0.020
            faults.set("link:t0/p0/0-t1/p0/1", loss=1.0)
            assert send(lab, 0, 3, plan.row(0, 3).address(ev_of(0, 1))).count == 0
            faults.clear()
        assert has_carrier(lab, cut)
        assert send(lab, 0, 3, plan.row(0, 3).address(ev_of(0, 1))).count == COUNT
