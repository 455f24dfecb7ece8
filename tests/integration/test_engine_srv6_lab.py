"""Path mode `srv6` over a fabric of namespaces, in which the kernel forwards by micro-SIDs."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farstep.fabric import AddressPlan, leaf_spine
from farstep.fabric.addresses import ev_of
from farstep.lab.fabric import FabricLab, LabFaults

pytestmark = [pytest.mark.netns, pytest.mark.timeout(180)]

HOST = Path(__file__).with_name("lab_host.py")
SOURCE, DESTINATION, NEIGHBOUR = 0, 3, 1
LENGTH = 4_000_000
MANY_PACKETS = 300
FEW_PACKETS = 20
"""Of neighbours that look for each other, on a link that carries no path."""
WAIT_S = 60.0


class Host:
    """The program of one NIC."""

    def __init__(self, lab: FabricLab, nic: int, **profile: Any) -> None:
        command = [sys.executable, str(HOST), json.dumps(profile)]
        self.process = lab.popen(nic, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.offer = self.heard()

    def heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program at the NIC has ended"
        facts: dict[str, Any] = json.loads(line)
        return facts

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def ask(self, **order: Any) -> dict[str, Any]:
        self.tell(**order)
        return self.heard()

    def states(self) -> dict[int, str]:
        return {value: state for value, state, _, _ in self.ask()["paths"]}

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def joined(lab: FabricLab, source: int, destination: int, **profile: Any) -> Iterator[tuple[Host, Host]]:
    with contextlib.ExitStack() as ends:
        hosts = [Host(lab, nic, **profile) for nic in (source, destination)]
        for host in hosts:
            ends.callback(host.end)
        for host, peer in (hosts, hosts[::-1]):
            host.ask(connect=peer.offer["descriptor"], region=peer.offer["region"])
        yield hosts[0], hosts[1]


def send(a: Host, b: Host, length: int = LENGTH) -> None:
    a.tell(write=length)
    b.tell(read=length)
    assert a.heard()["digest"] == b.heard()["digest"]


def wait_for(host: Host, ev: int, state: str) -> None:
    end = time.monotonic() + WAIT_S
    while host.states()[ev] != state and time.monotonic() < end:
        time.sleep(0.05)
    assert host.states()[ev] == state


@pytest.fixture(scope="module")
def lab() -> Iterator[FabricLab]:
    built = FabricLab.up(
        leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2, port_gbps=1), name="srv6_test"
    )
    yield built
    built.down()


@pytest.fixture(scope="module")
def plan(lab: FabricLab) -> AddressPlan:
    return AddressPlan(lab.record.topology)


def links_of(plan: AddressPlan, source: int, destination: int) -> set[int]:
    return {link for ev in plan.row(source, destination).evs for link in plan.path(source, destination, ev)}


def test_packets_take_all_paths_and_no_other_link(lab: FabricLab, plan: AddressPlan) -> None:
    before = lab.counters()
    with joined(lab, SOURCE, DESTINATION, path_mode="srv6", mtu_bytes=1024) as (a, b):
        assert a.offer["mode"] == b.offer["mode"] == "srv6"
        end = time.monotonic() + WAIT_S
        while min(packets for _, _, packets, _ in a.ask()["paths"]) < MANY_PACKETS and time.monotonic() < end:
            send(a, b)
        facts, facts_b = a.ask(), b.ask()
    evs = set(plan.row(SOURCE, DESTINATION).evs)
    sent = {value: packets - lost for value, _, packets, lost in facts["paths"]}
    assert set(sent) == evs
    assert min(sent.values()) > MANY_PACKETS / 2
    # The receiver saw each entropy value in a flow label, and said so.
    assert set(facts["echoes"]) == evs
    assert not any(facts["rejected"].values())
    assert not any(facts_b["rejected"].values())
    after = lab.counters()
    carried = {link: after[link][0] - before[link][0] for link in after}
    for ev, packets in sent.items():
        _, up, down, _ = plan.path(SOURCE, DESTINATION, ev)
        assert carried[up] >= packets
        assert carried[down] >= packets
    used = links_of(plan, SOURCE, DESTINATION) | links_of(plan, DESTINATION, SOURCE)
    assert all(packets < FEW_PACKETS for link, packets in carried.items() if link not in used)


def test_neighbours_at_one_leaf_meet_there(lab: FabricLab, plan: AddressPlan) -> None:
    before = lab.counters()
    with joined(lab, SOURCE, NEIGHBOUR, path_mode="srv6") as (a, b):
        send(a, b)
        assert set(a.states()) == {ev_of(plane, 0) for plane in range(2)}
    after = lab.counters()
    used = links_of(plan, SOURCE, NEIGHBOUR) | links_of(plan, NEIGHBOUR, SOURCE)
    assert all(after[link][0] - before[link][0] < FEW_PACKETS for link in after if link not in used)


def test_a_blackholed_link_is_left_and_comes_back(lab: FabricLab, plan: AddressPlan) -> None:
    dead = ev_of(0, 1)
    with joined(lab, SOURCE, DESTINATION, path_mode="srv6") as (a, b), LabFaults(lab) as faults:
        send(a, b)
        wait_for(a, dead, "GOOD")
        faults.set("link:t0/p0/0-t1/p0/1", is_down=True)
        end = time.monotonic() + WAIT_S
        while a.states()[dead] != "ASSUMED_BAD" and time.monotonic() < end:
            send(a, b)
        assert a.states()[dead] == "ASSUMED_BAD"
        for other in plan.row(SOURCE, DESTINATION).evs:
            if other != dead:
                wait_for(a, other, "GOOD")
        before = {value: packets for value, _, packets, _ in a.ask()["paths"]}
        send(a, b)
        after = {value: packets for value, _, packets, _ in a.ask()["paths"]}
        assert after[dead] == before[dead]
        faults.clear()
        wait_for(a, dead, "GOOD")
        send(a, b)


def test_udp_works_over_the_same_fabric(lab: FabricLab) -> None:
    with joined(lab, SOURCE, DESTINATION, path_mode="udp") as (a, b):
        assert a.offer["mode"] == "udp"
        send(a, b)


def test_perf_finds_its_ports_in_the_lab(lab: FabricLab, plan: AddressPlan) -> None:
    perf = [sys.executable, "-m", "farstep", "perf"]
    server = lab.popen(DESTINATION, [*perf, "server", "--one-off"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("listening at ")
    host = str(plan.host_address(DESTINATION))
    done = lab.run(SOURCE, [*perf, "client", host, "-n", "4M", "--json"])
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["path_mode"] == "srv6"
    assert [plane["paths"] for plane in report["planes"]] == [2, 2]
    assert report["peer"]["total"]["received_bytes"] == 4 << 20
    assert "received 4.19 MB" in server.communicate(timeout=WAIT_S)[0]


def test_a_host_says_which_route_it_lacks(lab: FabricLab) -> None:
    program = (
        "from dataclasses import replace\n"
        "from farstep.engine import *\n"
        "ports = [replace(p, attachment=replace(p.attachment, leaf=77)) for p in fabric_ports_here()]\n"
        "try:\n"
        "    Endpoint(ports, profile=EndpointProfile(path_mode='srv6'))\n"
        "except EngineError as error:\n"
        "    print(error)\n"
    )
    said = lab.run(SOURCE, [sys.executable, "-c", program]).stdout
    assert "no route leads to fcbb:bbbb:204d::, the T0 switch of plane 0 (Network is unreachable)" in said
