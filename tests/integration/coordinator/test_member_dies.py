"""Members that die or hang, as processes of their own."""

import signal
import time

import pytest

from farstep.membership import Evicted, MemberInfo, MembershipTimeout
from farstep.membership.client import MembershipClient
from tests.integration.coordinator.processes import wait_until


def is_generation(number):
    return lambda said: said.get("number") == number and "seats" in said


def start(stage, address, names, **more):
    members = [stage.member(address, name, **more) for name in names]
    for member in members:
        member.wait_for(is_generation(1))
    return members


def test_killed_member_is_gone_at_once(stage):
    _, address = stage.coordinator(groups=3)
    members = start(stage, address, ["m-0", "m-1", "m-2"])
    members[1].kill()
    for member in (members[0], members[2]):
        said = member.wait_for(is_generation(2), 5.0)
        assert said["seats"] == ["m-0", "m-2"]
        assert said["urgent"]


def test_of_two_on_one_host_the_other_goes_on_and_so_does_the_last(stage):
    _, address = stage.coordinator(groups=2)
    members = start(stage, address, ["m-0", "m-1"])
    members[0].kill()
    assert members[1].wait_for(is_generation(2), 5.0)["seats"] == ["m-1"]


def test_member_whose_child_holds_its_socket_is_gone_all_the_same(stage):
    """A forked data loader survives its parent for seconds."""
    _, address = stage.coordinator(groups=3)
    members = start(stage, address, ["m-0", "m-1"], forks=False)[:0] if False else []
    members = [
        stage.member(address, "m-0"),
        stage.member(address, "m-1"),
        stage.member(address, "m-2", forks=True),
    ]
    for member in members:
        member.wait_for(is_generation(1))
    time.sleep(0.5)  # it forks after generation 1
    members[2].kill()
    began_s = time.monotonic()
    members[0].wait_for(is_generation(2), 5.0)
    assert time.monotonic() - began_s < 1.0  # silence alone would take 1.2 s


def test_stopped_member_is_given_up_and_may_come_back_as_another(stage):
    _, address = stage.coordinator(groups=3)
    hung = stage.member(address, "m-1")
    members = [stage.client(address, name) for name in ("m-0", "m-2")]
    hung.wait_for(is_generation(1))
    hung.signal(signal.SIGSTOP)
    assert [info.name for info in members[0].wait_generation(1, 5).seats] == ["m-0", "m-2"]
    hung.signal(signal.SIGCONT)
    assert hung.wait_for(is_generation(2), 5.0)["seats"] == ["m-0", "m-2"]


def test_evicted_client_comes_back_as_a_new_incarnation(stage):
    _, address = stage.coordinator(groups=2)
    staying, leaving = stage.client(address, "m-0"), stage.client(address, "m-1")
    staying.wait_generation(0, 10)
    leaving.leave("maintenance")
    with pytest.raises(Evicted, match="m-1 is not in generation 2: m-0") as caught:
        leaving.wait_generation(1, 5)
    assert caught.value.was_asked
    old_id = leaving.member.member_id
    leaving.rejoin()
    leaving.announce_ready(3)
    generation = leaving.wait_generation(2, 5)
    assert generation.seats[1].member_id == leaving.member.member_id != old_id


def test_survivor_says_what_it_waits_for_until_an_agent_certifies(stage):
    """Two hosts: nobody can see whether the other's process has exited, until somebody there says so."""
    _, address = stage.coordinator(groups=2)
    survivor = stage.client(address, "m-0")
    info = MemberInfo.create("m-1").model_copy(update={"process": "", "host": "far"})
    victim = MembershipClient(address, info)
    stage.clients.append(victim)
    survivor.wait_generation(0, 10)
    connection = victim._socket
    victim._is_leaving = True
    victim._loop.call_soon_threadsafe(connection.transport.abort)
    with pytest.raises(MembershipTimeout) as caught:
        survivor.wait_generation(1, 1.5)
    assert "here: m-0; missing: m-1" in str(caught.value)
    assert "farstep override --run run --generation 1 --drop m-1 --yes" in str(caught.value)
    agent_info = MemberInfo.create("agent").model_copy(update={"host": "far"})
    agent = MembershipClient(address, agent_info, wants="observer")
    stage.clients.append(agent)
    wait_until(lambda: agent.current() is not None)
    agent.certify_death(info.member_id)
    assert [member.name for member in survivor.wait_generation(1, 5).seats] == ["m-0"]


def test_certificates_from_another_host_are_worth_nothing(stage):
    coordinator, address = stage.coordinator(groups=2)
    members = [stage.client(address, name) for name in ("m-0", "m-1")]
    members[0].wait_generation(0, 10)
    info = MemberInfo.create("agent").model_copy(update={"host": "elsewhere"})
    agent = MembershipClient(address, info, wants="observer")
    stage.clients.append(agent)
    agent.certify_death(members[1].member.member_id)
    coordinator.wait_for(lambda said: said.get("kind") == "certificate_refused")
    time.sleep(0.2)
    assert members[0].current().number == 1
