"""What a coordinator says about the run: every state a member can be in, and what all wait for."""

import json
import math

from farstep.coordinator.status import status_of
from farstep.membership import messages as wire
from tests.unit.coordinator.crew import Crew


def status(crew):
    return status_of(crew.proposer, crew.now_ns, started_ns=crew.now_ns - 3 * 10**9)


def states(crew):
    return {member.name: member.state for member in status(crew).members}


def test_before_anybody_came():
    found = status(Crew())
    assert (found.run, found.generation, found.members, found.step) == ("run", None, [], None)
    assert found.uptime_s == 3.0


def test_the_run_waits_and_says_for_whom():
    crew = Crew(groups=3, min_groups=3)
    crew.join("a-0")
    crew.pass_time(0.5)
    found = status(crew)
    assert found.generation is None
    assert "3" in (found.waiting or "")


def test_every_state_of_a_member():
    crew = Crew(groups=2)
    links = [crew.join("a-0"), crew.join("b-0")]
    crew.pass_time(0.01)
    crew.join("w-0", wants="observer")
    spare, late = crew.join("s-0", wants="spare"), crew.join("c-0")
    assert states(crew) == {
        "a-0": "training",
        "b-0": "training",
        "w-0": "observer",
        "s-0": "healing",
        "c-0": "healing",
    }
    crew.say(spare, wire.Ready(step=3))
    crew.pass_time(0.01)
    assert states(crew)["s-0"] == "spare"
    crew.proposer.drain("b-0", "upgrade", crew.now_ns)
    found = {member.name: member for member in status(crew).members}
    assert (found["b-0"].state, found["b-0"].cause) == ("leaving", "upgrade")
    assert late in crew.infos
    crew.die(links[0])
    gone = {member.name: member for member in status(crew).members}.get("a-0")
    assert gone is None or gone.state == "gone"


def test_a_run_without_members_is_told_to_be_lost_until_there_is_another():
    crew = Crew(groups=2)
    links = [crew.join("a-0"), crew.join("b-0")]
    crew.pass_time(0.01)
    for link in links:
        crew.say(link, wire.Heartbeat(step=1_234))
    name = status(crew).run_id
    for link in links:
        crew.say(link, wire.Leave(reason="preempted"))
        crew.die(link)
    crew.pass_time(30)
    found = status(crew)
    assert found.generation is None
    assert (
        found.lost == f"{name} has no member left, at step 1,234; a new run begins from the newest checkpoint"
    )
    for name in ("a-0", "b-0"):
        crew.join(name)
    crew.pass_time(1)
    assert status(crew).generation is not None
    assert status(crew).lost is None


def test_after_the_end_the_step_is_the_last_one():
    crew = Crew(groups=1)
    link = crew.join("a-0")
    crew.pass_time(0.01)
    crew.say(link, wire.Heartbeat(step=190))
    crew.say(link, wire.Leave(reason="the run is finished", finished=True, step=192))
    assert status(crew).step == 192


def test_a_training_thread_that_is_stuck_is_told():
    crew = Crew(groups=2)
    links = [crew.join("a-0"), crew.join("b-0")]
    crew.say(links[1], wire.Heartbeat(step=3, stuck_ns=4_200_000_000))
    causes = {member.name: member.cause for member in status(crew).members}
    assert causes == {"a-0": "", "b-0": "its training thread is stuck, since 4.2 s"}
    crew.say(links[1], wire.Heartbeat(step=4))
    assert {member.cause for member in status(crew).members} == {""}


def test_members_come_in_the_order_of_their_seats():
    crew = Crew(groups=3)
    for name in ("c-0", "a-0", "b-0"):
        crew.join(name)
    crew.pass_time(0.01)
    found = status(crew)
    assert [member.seat for member in found.members] == [0, 1, 2]
    assert [member.name for member in found.members] == found.generation.seats


def test_a_member_that_is_gone_says_why():
    crew = Crew(groups=2, fixed_seats=True)
    links = [crew.join("a-0"), crew.join("b-0")]
    crew.pass_time(0.01)
    crew.die(links[1])
    found = {member.name: member for member in status(crew).members}
    assert found["b-0"].state == "gone"
    assert found["b-0"].silent_s is None
    assert "exited" in found["b-0"].cause


def test_figures_that_are_not_finite_are_null():
    crew = Crew(groups=1)
    link = crew.join("a-0")
    figures = {"loss": math.nan, "step_time_ns": 2e6, "wait_ns": math.inf}
    crew.say(link, wire.Heartbeat(step=7, figures=figures))
    found = status(crew)
    assert found.step == 7
    assert found.members[0].figures == {"loss": None, "step_time_ns": 2e6, "wait_ns": None}
    assert json.loads(found.model_dump_json())["members"][0]["figures"]["loss"] is None


def test_times_are_in_their_units():
    crew = Crew(groups=1)
    crew.join("a-0")
    crew.pass_time(0.25)
    (member,) = status(crew).members
    assert member.rtt_ms == 2.0
    assert 0.24 < member.silent_s < 0.27
