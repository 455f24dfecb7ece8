"""Commands of operators, and what a coordinator answers when it cannot carry them out at once."""

import pytest

from farstep.coordinator.status import status_of
from farstep.membership import messages as wire
from farstep.membership.effects import CommandError, Send
from tests.unit.coordinator.crew import Crew


def started(*names, **values):
    crew = Crew(groups=len(names), **values)
    links = [crew.join(name) for name in names]
    crew.pass_time(0.01)
    assert crew.proposer.generation.number == 1
    return crew, links


def beat(crew, links, seconds, **more):
    """Lets time pass while these members are heard."""
    for _ in range(round(seconds * 10)):
        for link in links:
            crew.say(link, wire.Heartbeat(step=5, rtt_ns=2_000_000, **more))
        crew.pass_time(0.1)


def kinds(crew):
    return [note.kind for note in crew.notes]


def state(crew, name):
    found = status_of(crew.proposer, crew.now_ns, started_ns=crew.now_ns).members
    return next((member.state, member.cause) for member in found if member.name == name)


def test_last_member_is_evicted_once_somebody_can_take_over():
    crew, links = started("a-0")
    text = crew.proposer.evict("a-0", "its disk is full", crew.now_ns)
    assert "it goes when the run can go on without it: 0 of the 1 replica groups" in text
    beat(crew, links, 3)
    assert state(crew, "a-0") == ("leaving", "evicted: its disk is full")
    assert kinds(crew).count("member_lost") == 1
    heir = crew.join("b-0")
    crew.say(heir, wire.Ready(step=5))
    beat(crew, [*links, heir], 0.2)
    assert [info.name for info in crew.proposer.generation.seats] == ["b-0"]
    assert crew.proposer.generation.number == 2


def test_drain_that_has_to_wait_says_for_what():
    crew, _ = started("a-0")
    text = crew.proposer.drain("a-0", "", crew.now_ns)
    assert "a-0 cannot leave before somebody has taken over: min_groups is 1" in text


@pytest.mark.parametrize("is_evicted", [False, True])
def test_nobody_who_is_heard_can_be_dropped(is_evicted):
    crew, links = started("a-0")
    if is_evicted:
        crew.proposer.evict("a-0", "", crew.now_ns)
        beat(crew, links, 0.5)
    with pytest.raises(CommandError, match="a-0 is here"):
        crew.proposer.override(1, ["a-0"], crew.now_ns)
    crew.join("b-0")
    beat(crew, links, 2)
    assert crew.proposer.generation.number == 1  # one history
    assert "run_dropped" not in kinds(crew)


def test_override_says_what_it_has_decided():
    crew, links = started("a-0", "b-0", "c-0")
    beat(crew, links[:1], 3)  # the others are silent, so that there is no majority
    text = crew.proposer.override(1, ["b-0"], crew.now_ns)
    assert text.startswith("generation 2 will be decided without b-0: ")
    silent = crew.infos[links[1]]
    assert crew.proposer.roster.get(silent.member_id).link is None  # what it says from now on does not count
    with pytest.raises(CommandError, match="generation 7 is not the current one"):
        crew.proposer.override(7, ["b-0"], crew.now_ns)


def test_override_of_all_gives_the_run_up():
    crew, _ = started("a-0")
    crew.pass_time(3)
    run_id = crew.proposer.run_id
    assert crew.proposer.override(1, ["a-0"], crew.now_ns).startswith(f"run {run_id} is given up: ")
    assert crew.proposer.generation is None


def test_only_whoever_is_not_on_its_way_out_knows_the_end():
    crew, links = started("a-0", "b-0")
    crew.proposer.drain("b-0", "maintenance", crew.now_ns)
    crew.settle()
    crew.say(links[1], wire.Leave(reason="the run is finished", finished=True, step=5))
    assert crew.proposer.ended is None
    beat(crew, links[:1], 0.3)
    crew.say(links[0], wire.Leave(reason="the run is finished", finished=True, step=4))
    assert crew.proposer.ended is None  # one that is behind does not know it either
    crew.proposer.take_effects()
    crew.say(links[0], wire.Leave(reason="the run is finished", finished=True, step=5))
    assert crew.proposer.ended == "the run is finished"


def test_short_pauses_are_told_together():
    crew, _ = started("a-0")

    def pause(seconds):
        crew.now_ns += round(seconds * 1e9)
        crew.proposer.on_tick(crew.now_ns)
        crew.settle()

    def told():
        return [note.fields for note in crew.notes if note.kind == "coordinator_paused"]

    for _ in range(20):
        pause(0.3)
    assert len(told()) == 1
    pause(0.8)
    assert told()[1:] == [{"pause_s": pytest.approx(0.8, abs=0.1), "num_pauses": 20}]
    assert not any(isinstance(effect, Send) for effect in crew.proposer.take_effects())
