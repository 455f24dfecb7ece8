"""Coordinators, members and their lines in simulated time: one history, and it goes on."""

import pytest

from farstep.membership.quorum import QuorumRule
from farstep.membership.records import MembershipConfig
from tests.simulation.membership.ends import play_end
from tests.simulation.membership.trouble import play
from tests.simulation.membership.world import World

QUICK = MembershipConfig(groups=3, settle_s=0.1)


def run_of(num_members: int, *, seed: int = 1, **more) -> World:
    """A world whose first generation has been committed everywhere."""
    config = more.pop("config", QUICK.model_copy(update={"groups": num_members}))
    world = World(seed, config, **more)
    world.start_coordinator(0)
    for number in range(num_members):
        world.add_member(f"m-{number}")
    world.run_until(lambda: world.agree(world.members), 2.0)
    world.run(0.5)
    return world


def play_all(seeds: range) -> int:
    """Plays seeds; returns the highest number that any generation reached."""
    return max(number for seed in seeds for _, number in play(seed).world.history.by_number)


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_trouble_of_all_kinds_leaves_one_history_that_goes_on(first):
    assert play_all(range(first, first + 40)) > 4


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 13_000, 500))
def test_trouble_of_all_kinds_in_many_more(first):
    assert play_all(range(first, first + 500)) > 8


def test_check_finds_that_half_is_no_majority(monkeypatch):
    """What the check is worth: break the rule and see two histories."""
    monkeypatch.setattr(QuorumRule, "num_needed", property(lambda self: max(1, len(self.voters) // 2)))
    with pytest.raises(AssertionError, match=r"two generations|another past|another future|two histories"):
        play_all(range(300))


def test_one_seed_gives_one_history():
    def story(seed: int) -> list[str]:
        generations = play(seed).world.history.by_number.values()
        return sorted(generation.digest for generation in generations)

    assert story(21) == story(21)
    assert story(21) != story(22)


# ---- deaths ----


@pytest.mark.parametrize("witnesses", [True, False])
def test_death_is_settled_soon_after_the_line_breaks(witnesses):
    world = run_of(3, witnesses=witnesses)
    world.members[0].host = "elsewhere"
    world.kill(world.members[2])
    assert world.run_until(lambda: world.agree(world.living()), 1.0) < 0.1


def test_of_two_the_one_left_goes_on_if_a_kernel_confirms():
    world = run_of(2)
    survivor, victim = world.members
    world.places[0].host = victim.host
    world.kill(victim)
    assert world.run_until(lambda: world.agree([survivor]), 1.0) < 0.1


def test_of_two_the_one_left_waits_without_certificate_until_the_override():
    world = run_of(2, witnesses=False)
    survivor, victim = world.members
    world.kill(victim)
    world.run(5.0)
    assert survivor.generation.number == 1
    assert "farstep override --run run --generation 1 --drop m-1 --yes" in survivor.core.waiting
    world.places[0].proposer.override(1, ["m-1"], world.now_ns)
    world.run_until(lambda: world.agree([survivor]), 1.0)


def test_of_three_one_never_goes_on_alone_and_two_do():
    world = run_of(3)
    world.kill(world.members[0])
    world.kill(world.members[1])
    world.run(5.0)
    assert world.members[2].generation.number == 1
    assert "needs the votes of 2 of the 3 members" in world.members[2].core.waiting


def test_voter_that_was_silent_when_the_others_were_asked_is_asked_when_it_is_back():
    """A generation was proposed without it, and then its vote was the one that was missing."""
    world = run_of(3)
    world.add_member("s-0", wants="spare", is_ready=True)
    world.run_until(lambda: world.agree(world.members), 1.0)
    hung, victim = world.members[3], world.members[0]
    world.stop(hung, True)
    world.run_until(lambda: any(note.kind == "member_lost" for note in world.places[0].notes), 2.0)
    world.kill(victim)  # three of four were asked, and two can answer
    world.run(0.3)
    world.stop(hung, False)
    world.run_until(lambda: world.agree(world.seated()), 2.0)
    assert victim.core.info.member_id not in world.members[1].generation


def test_hung_member_is_given_up_after_the_silence_limit():
    world = run_of(3)
    world.stop(world.members[1], True)
    took_s = world.run_until(lambda: world.agree([world.members[0], world.members[2]]), 3.0)
    assert 1.0 < took_s < 1.5
    world.stop(world.members[1], False)
    world.run(0.5)
    assert world.members[1].core.is_evicted


def test_hundred_pauses_below_the_limit_evict_nobody():
    world = run_of(3, seed=5)
    for _ in range(100):
        member = world.draw.choice(world.members)
        world.stop(member, True)
        world.run(world.draw.uniform(0.1, 1.0))
        world.stop(member, False)
        world.run(0.15)
    assert {member.generation.number for member in world.members} == {1}


# ---- coordinators ----


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("witnesses", [True, False])
def test_changes_resume_within_a_second_after_a_restart(seed, witnesses):
    world = run_of(3, seed=seed, num_places=2, witnesses=witnesses)
    world.kill_coordinator(0)
    world.run(1.0)
    world.kill(world.members[seed % 3])
    world.start_coordinator(seed % 2)  # at the same or at another address
    assert world.run_until(lambda: world.agree(world.living()), 2.0) <= 1.0


def test_ten_restarts_change_nothing():
    world = run_of(3, seed=3, num_places=2)
    for number in range(10):
        world.kill_coordinator(number % 2)
        world.run(world.draw.uniform(0.0, 1.5))
        world.start_coordinator((number + 1) % 2)
        world.run(world.draw.uniform(0.5, 1.5))
    assert {member.generation.number for member in world.members} == {1}


@pytest.mark.parametrize("seed", range(10))
def test_stopped_coordinator_evicts_nobody_when_it_goes_on(seed):
    world = run_of(3, seed=seed)
    world.pause_coordinator(0, True)
    world.run(0.4 * (seed + 1))
    world.pause_coordinator(0, False)
    world.run(3.0)
    assert {member.generation.number for member in world.members} == {1}
    kinds = {note.kind for note in world.places[0].notes}
    assert "coordinator_paused" in kinds
    assert "member_lost" not in kinds


def test_two_coordinators_at_once_make_one_run():
    for seed in range(40):
        config = MembershipConfig(groups=3, min_groups=1, settle_s=0.1, join_window_s=0.4)
        world = World(seed, config, num_places=2)
        world.start_coordinator(0)
        world.start_coordinator(1)
        for number in range(3):
            member = world.add_member(f"m-{number}")
            member.next_address = world.draw.randint(0, 1)
        world.run(4.0)
        assert len(world.history.runs()) <= 1, f"seed {seed}\n{world.describe()}"


# ---- partitions ----


def test_cut_off_minority_waits_and_the_majority_goes_on():
    world = run_of(3, num_places=2)
    world.start_coordinator(1)
    lonely = world.members[2]
    world.cut(lonely, 0)
    for member in world.members[:2]:
        world.cut(member, 1)
    world.run(4.0)
    assert world.agree(world.members[:2])
    assert lonely.generation.number == 1
    assert "needs the votes of 2 of the 3 members of generation 1; here: m-2" in lonely.core.waiting
    world.heal()
    world.run(3.0)
    assert lonely.core.is_evicted


@pytest.mark.parametrize("up", [True, False])
def test_line_cut_in_one_direction_is_noticed_by_both_sides(up):
    world = run_of(3)
    world.cut(world.members[0], 0, up=up, down=not up)
    world.run_until(lambda: world.agree(world.members[1:]), 3.5)


def test_members_of_two_coordinators_find_each_other():
    """All can reach both: those that see too few voters go to look at the other one."""
    world = run_of(4, seed=6, num_places=2)
    world.start_coordinator(1)
    for member in world.members[:2]:
        member.next_address = 1
        world._close(member.line, from_member=True)
    world.run(0.05)
    world.run(5.0)
    assert world.agree(world.seated())
    assert len({member.line.place.number for member in world.seated()}) == 1


@pytest.mark.parametrize("seed", range(5))
def test_newcomer_at_a_coordinator_without_a_run_finds_it_at_the_other(seed):
    world = run_of(2, seed=seed, num_places=2)
    world.start_coordinator(1)
    newcomer = world.add_member("n-0", is_ready=True)
    newcomer.next_address = 1
    took_s = world.run_until(lambda: world.agree(world.members), 7.0)
    assert took_s > 4.0


@pytest.mark.parametrize("seed", range(5))
def test_members_of_two_coordinators_meet_to_begin_a_run(seed):
    world = World(seed, QUICK.model_copy(update={"groups": 2}), num_places=2)
    world.start_coordinator(0)
    world.start_coordinator(1)
    for number in range(2):
        world.add_member(f"m-{number}").next_address = number
    world.run_until(lambda: world.agree(world.members), 60.0)


def test_override_of_a_part_that_lives_makes_two_histories_which_stay_apart():
    """What the operator was warned of: nothing else makes two, and they never mix."""
    world = run_of(3, num_places=2)
    world.start_coordinator(1)
    lonely = world.members[2]
    world.cut(lonely, 0)
    for member in world.members[:2]:
        world.cut(member, 1)
    world.run(3.0)
    world.history.by_number = {}  # from here on there are two
    theirs = world.members[0].generation
    assert world.agree(world.members[:2])
    names = ["m-0", "m-1"]
    world.history.note = lambda generation: None
    world.places[1].proposer.override(1, names, world.now_ns)
    world.run(0.5)
    assert [info.name for info in lonely.generation.seats] == ["m-2"]
    assert lonely.generation.number == theirs.number
    assert "override" in {note.kind for note in world.places[1].notes}
    world.heal()
    world.kill_coordinator(1)
    world.run(2.0)
    assert world.agree(world.members[:2])
    assert world.members[0].generation.digest == theirs.digest
    assert "two_histories" in {note.kind for note in world.places[0].notes}
    assert "two histories" in lonely.core.waiting


# ---- the end ----


@pytest.mark.parametrize("first", range(0, 90, 30))
def test_whoever_comes_too_late_is_told_of_the_end(first):
    ends = [play_end(seed) for seed in range(first, first + 30)]
    assert sum(end.is_known for end in ends) > 15


@pytest.mark.slow
@pytest.mark.parametrize("first", range(20_000, 22_000, 500))
def test_whoever_comes_too_late_is_told_of_the_end_in_many_more(first):
    ends = [play_end(seed) for seed in range(first, first + 500)]
    assert sum(end.is_known for end in ends) > 250


def test_coordinator_started_after_all_have_gone_waits_for_a_new_run():
    """It cannot know; who comes is told what it waits for."""
    world = run_of(2)
    for member in world.members:
        world.finish(member, 9)
    world.run(2.0)
    assert not world.living()
    world.kill_coordinator(0)
    world.start_coordinator(0)
    late = world.add_member("m-0")
    world.run(2.0)
    assert not late.is_told
    assert "run run has not begun: 1 of 2 replica groups are here" in late.core.waiting


# ---- joins, leaves, spares ----


def test_spare_takes_the_seat_of_the_dead_in_one_change():
    world = run_of(3)
    spare = world.add_member("s-0", wants="spare", is_ready=True)
    world.run_until(lambda: world.agree(world.members), 1.0)
    world.kill(world.members[1])
    world.run_until(lambda: world.agree(world.living()), 1.0)
    generation = spare.generation
    assert [info.name for info in generation.seats] == ["m-0", "s-0", "m-2"]
    assert generation.is_urgent
    assert generation.number == 3


def test_newcomer_gets_a_seat_only_when_it_is_ready():
    world = run_of(3)
    newcomer = world.add_member("n-0")
    world.run(2.0)
    assert newcomer.generation.number == 1  # it sees the run, without being part of it
    newcomer.core.announce_ready(7)
    world.run_until(lambda: world.agree(world.members), 1.0)
    assert not newcomer.generation.is_urgent
    assert newcomer.generation.seats[3].name == "n-0"


def test_drain_that_was_lost_on_the_way_is_told_before_the_generation_without_the_member():
    """Else it would take itself for one that was given up, and come back."""
    world = run_of(3)
    drained = world.members[2]
    world.cut(drained, 0, up=False)
    world.places[0].proposer.drain("m-2", "the host goes down", world.now_ns)
    world.run_until(lambda: world.agree(world.members[:2]), 3.0)
    assert drained.core.leaving is None
    world.run(1.5)
    world.heal()
    world.run_until(lambda: drained.was_evicted, 2.0)
    assert drained.left_for == "the host goes down"


def test_leaver_is_planned_out():
    world = run_of(3)
    world.members[1].core.leave("maintenance")
    world.run_until(lambda: world.members[0].generation.number == 2, 1.0)
    generation = world.members[0].generation
    assert not generation.is_urgent
    assert [info.name for info in generation.seats] == ["m-0", "m-2"]
    assert world.members[1].core.is_evicted
