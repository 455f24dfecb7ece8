"""Coordinators that die, hang and come back, over real sockets: nobody leaves, nothing is lost."""

import signal
import threading
import time

import pytest

from farstep.membership import MembershipTimeout, RunEnded, desk
from tests.integration.coordinator.processes import free_port, wait_until


def start_three(stage, addresses):
    members = [stage.client(addresses, f"m-{number}") for number in range(3)]
    assert {member.wait_generation(0, 20).number for member in members} == {1}
    return members


@pytest.mark.parametrize("num_deaths", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_deaths_on_two_addresses_change_nothing(stage, num_deaths):
    ports = [free_port(), free_port()]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    coordinator, _ = stage.coordinator(ports[0], groups=3)
    members = start_three(stage, addresses)
    for number in range(num_deaths):
        members[0].store("s").set(f"key {number}", b"before")
        coordinator.kill()
        members[1].event("noticed", number=number)  # said when there is a coordinator again
        coordinator, _ = stage.coordinator(ports[number % 2], groups=3)
        wait_until(lambda: all(member.is_connected for member in members))
        coordinator.wait_for(
            lambda said, number=number: said.get("kind") == "noticed" and said["number"] == number
        )
        assert members[2].store("s").get(f"key {number}", 5.0) == b"before"
    assert {member.current().number for member in members} == {1}
    # And it can still decide.
    members[2].leave("maintenance")
    wait_until(lambda: members[0].current().number == 2)
    assert [info.name for info in members[1].current().seats] == ["m-0", "m-1"]


def test_member_that_died_meanwhile_is_taken_out_after_a_restart(stage):
    port = free_port()
    coordinator, address = stage.coordinator(port, groups=3)
    members = [stage.client(address, f"m-{number}") for number in range(2)]
    victim = stage.member(address, "m-2")
    members[0].wait_generation(0, 20)
    coordinator.kill()
    victim.kill()
    stage.coordinator(port, groups=3)
    for member in members:
        assert [info.name for info in member.wait_generation(1, 5).seats] == ["m-0", "m-1"]


def test_coordinator_stopped_for_three_seconds_evicts_nobody(stage):
    coordinator, address = stage.coordinator(groups=3)
    members = start_three(stage, address)
    coordinator.signal(signal.SIGSTOP)
    time.sleep(3.0)
    coordinator.signal(signal.SIGCONT)
    wait_until(lambda: all(member.is_connected for member in members))
    time.sleep(1.5)
    assert {member.current().number for member in members} == {1}
    kinds = {said.get("kind") for said in coordinator.said}
    assert "coordinator_paused" in kinds
    assert "member_lost" not in kinds


def test_members_move_to_another_address_while_the_first_hangs(stage):
    first, one = stage.coordinator(groups=3)
    _, other = stage.coordinator(groups=3)
    members = start_three(stage, [one, other])
    first.signal(signal.SIGSTOP)
    members[0].leave("maintenance")  # nobody hears it, before they have moved
    assert members[1].wait_generation(1, 10).number == 2
    assert members[2].wait_generation(1, 10).number == 2
    first.signal(signal.SIGCONT)
    time.sleep(0.5)
    assert members[1].current().number == 2


def test_end_without_a_coordinator_is_told_to_the_next_one(stage, monkeypatch):
    monkeypatch.setattr(desk, "FAREWELL_S", 60.0)  # however long a coordinator takes to start here
    port = free_port()
    coordinator, address = stage.coordinator(port, groups=3)
    members = start_three(stage, address)
    coordinator.kill()
    members[0].leave("all steps done", finished=True, step=9)
    closing = threading.Thread(target=members[0].close)
    closing.start()
    stage.coordinator(port, groups=3)
    late = stage.client(address, "late")
    with pytest.raises(RunEnded, match="all steps done") as caught:
        late.wait_generation(0, 20)
    assert caught.value.step == 9
    closing.join(20)
    assert not closing.is_alive()


def test_address_in_a_file_is_read_again(stage, tmp_path):
    file = tmp_path / "coordinator"
    client = stage.client(f"file:{file}", "m-0")
    with pytest.raises(MembershipTimeout, match="no coordinator answers at file:"):
        client.wait_generation(0, 0.3)
    coordinator, address = stage.coordinator()
    file.write_text(f"# where it is now\n{address}\n")
    assert client.wait_generation(0, 5).number == 1
    coordinator.kill()
    _, address = stage.coordinator()
    file.write_text(f"{address}\n")
    wait_until(lambda: client.is_connected)


def test_clean_end_of_the_coordinator_is_like_a_death(stage):
    port = free_port()
    coordinator, address = stage.coordinator(port, groups=3)
    members = start_three(stage, address)
    coordinator.signal(signal.SIGTERM)
    coordinator.child.wait(timeout=10)
    wait_until(lambda: not any(member.is_connected for member in members))
    stage.coordinator(port, groups=3)
    wait_until(lambda: all(member.is_connected for member in members))
    time.sleep(1.0)
    assert {member.current().number for member in members} == {1}
