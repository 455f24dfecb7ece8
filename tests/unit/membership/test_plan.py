import pytest

from farstep.membership.plan import Blocked, Plan, Standing, first_generation_members, plan_next
from farstep.membership.records import MembershipConfig
from tests.unit.membership.people import generation, names, people, person

CONFIG = MembershipConfig(groups=3, min_groups=1)
GONE, LEAVING = Standing.GONE, Standing.LEAVING


def planned(base, who, config=CONFIG, **more) -> tuple[str, str, bool]:
    plan = plan_next(base, people(*who), config, **more)
    assert isinstance(plan, Plan), plan
    return names(plan.seats), names(plan.spares), plan.is_urgent


def test_nothing_changes_while_all_are_here():
    assert plan_next(generation("abc"), people(*map(person, "abc")), CONFIG) is None


def test_seats_close_up_in_their_order_without_a_spare():
    assert planned(generation("abc"), [person("a"), person("b", GONE), person("c")]) == ("ac", "", True)


def test_spare_takes_the_very_seat():
    who = [person("a"), person("b", GONE), person("c"), person("s", wants="spare")]
    assert planned(generation("abc", "s"), who) == ("asc", "", True)


def test_spare_of_the_same_site_is_preferred():
    who = [person("a"), person("b", GONE), person("s", site="x"), person("t", site="")]
    assert planned(generation("ab", "st"), who) == ("at", "s", True)


def test_spare_that_is_not_ready_takes_no_seat():
    who = [person("a"), person("b", GONE), person("s", is_ready=False)]
    assert planned(generation("ab", "s"), who) == ("a", "s", True)


def test_newcomer_that_is_ready_fills_a_seat_that_became_empty():
    who = [person("a"), person("b", GONE), person("n")]
    assert planned(generation("ab"), who) == ("an", "", True)


def test_several_deaths_are_one_change():
    who = [person("a", GONE), person("b"), person("c", GONE), person("s"), person("t", GONE)]
    assert planned(generation("abc", "st"), who) == ("sb", "", True)


def test_somebody_unknown_counts_as_gone():
    assert planned(generation("ab"), [person("a")]) == ("a", "", True)


def test_death_of_a_spare_disturbs_no_step():
    assert planned(generation("ab", "s"), [person("a"), person("b"), person("s", GONE)]) == ("ab", "", False)


def test_planned_changes_wait_for_urgent_ones():
    who = [person("a", LEAVING), person("b", GONE), person("c"), person("n", wants="spare", is_ready=False)]
    assert planned(generation("abc"), who) == ("ac", "", True)


def test_leaver_is_replaced_at_a_boundary():
    who = [person("a", LEAVING), person("b"), person("s")]
    assert planned(generation("ab", "s"), who) == ("sb", "", False)


def test_leaver_stays_while_too_few_would_be_left():
    config = MembershipConfig(groups=2, min_groups=2)
    blocked = plan_next(generation("ab"), people(person("a", LEAVING), person("b")), config)
    assert isinstance(blocked, Blocked)
    assert "a cannot leave" in blocked.text


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (MembershipConfig(groups=2, min_groups=2), "1 of the 2 replica groups that min_groups asks for"),
        (MembershipConfig(groups=2, fixed_seats=True), "the number of seats is fixed"),
    ],
)
def test_run_waits_with_too_few_seats(config, says):
    blocked = plan_next(generation("ab"), people(person("a"), person("b", GONE)), config)
    assert isinstance(blocked, Blocked)
    assert says in blocked.text
    assert "1 (b)" in blocked.text


def test_newcomers_grow_the_run_in_the_order_they_came():
    who = [person("a"), person("y", order=2000), person("z", order=1000), person("w", is_ready=False)]
    assert planned(generation("a"), who) == ("azy", "", False)


def test_newcomers_become_spares_when_seats_or_spares_are_wanted_so():
    who = [person("a"), person("b"), person("n")]
    assert planned(generation("ab"), who, CONFIG.model_copy(update={"max_groups": 2})) == ("ab", "n", False)
    assert planned(generation("ab"), who, MembershipConfig(groups=2, spares=1)) == ("ab", "n", False)
    who = [person("a"), person("n", wants="spare")]
    assert planned(generation("a"), who) == ("a", "n", False)


def test_second_of_one_name_is_not_taken_in():
    twin = person("b")
    assert plan_next(generation("ab"), {**people(person("a"), twin), "b/2": twin}, CONFIG) is None


def test_observers_stay_outside():
    assert plan_next(generation("a"), people(person("a"), person("o", wants="observer")), CONFIG) is None


def test_seats_above_the_maximum_become_spares():
    config = MembershipConfig(groups=1, max_groups=1)
    assert planned(generation("abc"), map(person, "abc"), config) == ("a", "cb", False)


def test_retry_keeps_everybody_and_is_urgent():
    assert planned(generation("ab", "s"), map(person, "abs"), retry="step failed") == ("ab", "s", True)


def test_first_generation_sorts_by_name_and_keeps_spares_apart():
    who = [person("m-10"), person("m-2"), person("m-1"), person("s", wants="spare")]
    seats, spares = first_generation_members(who, MembershipConfig(groups=3))
    assert [member.name for member in seats] == ["m-1", "m-2", "m-10"]
    assert names(spares) == "s"
    seats, spares = first_generation_members(who[:3], MembershipConfig(groups=2, spares=1))
    assert [member.name for member in seats] == ["m-1", "m-2"]
    assert [member.name for member in spares] == ["m-10"]
    seats, spares = first_generation_members(who[:3], MembershipConfig(max_groups=1))
    assert len(seats) == 1
    assert len(spares) == 2
