"""The blocking interface, over a hub of threads."""

import threading
import time

import pytest

from farstep.membership import (
    Evicted,
    GenerationOver,
    LocalHub,
    Membership,
    MembershipClosed,
    MembershipConfig,
    MembershipTimeout,
    RunEnded,
)
from farstep.membership.effects import CommandError

QUICK = MembershipConfig(groups=3, min_groups=1, settle_s=0.0, start_silence_s=1.2)


@pytest.fixture(params=[False, True], ids=["objects", "json"])
def hub(request):
    with LocalHub(QUICK, uses_json=request.param) as hub:
        yield hub


def three(hub):
    members = [hub.join(f"m-{number}") for number in range(3)]
    for member in members:
        assert member.wait_generation(0, 5).number == 1
    return members


def seats(generation):
    return [info.name for info in generation.seats]


def test_members_have_the_shape_training_asks_for(hub):
    assert isinstance(hub.join("m-0"), Membership)


def test_death_wakes_those_who_wait_and_calls_back(hub):
    members = three(hub)
    called = []
    members[0].on_generation(lambda generation: called.append(generation.number))
    threading.Timer(0.05, hub.kill, (members[1],)).start()
    assert seats(members[0].wait_generation(1, 5)) == ["m-0", "m-2"]
    assert members[0].current().is_urgent
    deadline_s = time.monotonic() + 5
    while called != [2] and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert called == [2]


def test_failing_callback_harms_nobody(hub, caplog):
    members = three(hub)
    members[0].on_generation(lambda generation: 1 / 0)
    hub.kill(members[1])
    assert members[0].wait_generation(1, 5).number == 2
    assert members[2].wait_generation(1, 5).number == 2


def test_values_reach_all_also_those_who_come_later(hub):
    members = three(hub)
    members[0].store("g1").set("address", b"\x00\xff")
    assert members[2].store("g1").get("address", 5.0) == b"\x00\xff"
    assert hub.join("n-0").store("g1").get("address", 5.0) == b"\x00\xff"
    members[0].store("g1").set("address", b"new")
    time.sleep(0.2)
    assert members[2].store("g1").get("address", 5.0) == b"new"


def test_waiting_for_a_value_ends_with_its_generation(hub):
    members = three(hub)
    threading.Timer(0.1, hub.kill, (members[1],)).start()
    with pytest.raises(GenerationOver, match="generation 1 is over"):
        members[0].store("g1", generation=1).get("never", 5.0)
    with pytest.raises(TimeoutError, match=r"nobody published 'never' of 'g2' within 0.05 s"):
        members[0].store("g2", generation=2).get("never", 0.05)


def test_values_too_long_are_refused_where_they_are_set(hub):
    with pytest.raises(ValueError, match="a store takes at most 98304"):
        hub.join("m-0").store("s").set("k", bytes(98_305))


def test_requests_go_by_name_or_identity(hub):
    members = three(hub)
    heard = []
    for member in members:
        member.on_request(
            lambda sender, payload, name=member.member.name: heard.append((name, sender, payload))
        )
    members[0].request("m-1", {"kind": "heal", "step": 3})
    members[0].request(members[2].member.member_id, {"kind": "open"})
    members[0].request("nobody", {})
    deadline_s = time.monotonic() + 5
    while len(heard) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    me = members[0].member.member_id
    assert sorted(heard, key=str) == [("m-1", me, {"kind": "heal", "step": 3}), ("m-2", me, {"kind": "open"})]


def test_failed_step_is_tried_again_and_then_the_accused_has_to_go(hub):
    members = three(hub)
    for number in range(1, 4):
        for member in members[:2]:
            member.report_failure(number, ["m-2"], "connection refused")
        generation = members[0].wait_generation(number, 5)
        assert generation.is_urgent
        assert seats(generation) == ["m-0", "m-1", "m-2"]
    members[0].report_failure(4, ["m-2"], "connection refused")
    assert seats(members[0].wait_generation(4, 5)) == ["m-0", "m-1"]
    assert "retries in a row" in members[0].current().reason


def test_progress_between_failures_starts_the_count_anew(hub):
    members = three(hub)
    for number in range(1, 6):
        members[0].report_failure(number, ["m-2"], "flaky")
        assert seats(members[1].wait_generation(number, 5)) == ["m-0", "m-1", "m-2"]
        for member in members:
            member.report_progress(number)
        time.sleep(0.25)


def test_wrong_state_is_evicted_at_once_if_most_others_say_so(hub):
    members = three(hub)
    members[0].report_failure(1, ["m-1"], "state differs", evict=True)
    members[2].report_failure(1, ["m-1"], "state differs", evict=True)
    deadline_s = time.monotonic() + 5
    while "m-1" in seats(members[0].current()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert seats(members[0].current()) == ["m-0", "m-2"]
    assert "2 of the others say: state differs" in members[0].current().reason


class Lamp:
    """Says that a thread is stuck."""

    def stuck_ns(self, now_ns: int) -> int:
        return 5_000_000_000


def make_stuck(hub, *members):
    for member in members:
        member.watch(Lamp())
    ids = {member.member.member_id for member in members}
    until(lambda: {p.member_id for p in hub.command(lambda p, now: p.people()) if p.stuck_ns} == ids)


def test_one_that_is_stuck_is_given_up_at_the_first_late_report(hub):
    members = three(hub)
    make_stuck(hub, members[1])
    members[0].report_failure(1, ["m-2"], "waiting for rank 2", late=True)
    generation = members[0].wait_generation(1, 5)
    assert seats(generation) == ["m-0", "m-2"]
    assert generation.is_urgent
    assert "its training thread is stuck, since 5.0 s" in generation.reason
    with pytest.raises(Evicted):
        members[1].wait_generation(1, 5)


def test_as_many_as_are_stuck_at_once_are_given_up_together():
    with LocalHub(QUICK.model_copy(update={"groups": 4})) as hub:
        members = [hub.join(f"m-{n}") for n in range(4)]
        assert len(members[0].wait_generation(0, 5).seats) == 4
        make_stuck(hub, members[1], members[3])
        members[0].report_failure(1, ["m-1"], "waiting for rank 1", late=True)
        assert seats(members[0].wait_generation(1, 5)) == ["m-0", "m-2"]


def test_if_most_are_stuck_the_step_is_tried_once_more(hub):
    members = three(hub)
    make_stuck(hub, *members[1:])
    members[0].report_failure(1, ["m-1"], "waiting for rank 1", late=True)
    assert seats(members[0].wait_generation(1, 5)) == ["m-0", "m-1", "m-2"]
    members[0].report_failure(2, ["m-1"], "waiting for rank 1", late=True)
    assert seats(members[0].wait_generation(2, 5)) == ["m-0"]


@pytest.mark.parametrize("case", ["all are", "nothing was late", "too few would be left"])
def test_nobody_is_given_up_as_stuck_if(case):
    config = QUICK.model_copy(update={"min_groups": 3} if case == "too few would be left" else {})
    with LocalHub(config) as hub:
        members = three(hub)
        make_stuck(hub, *(members if case == "all are" else members[1:2]))
        members[0].report_failure(1, [], "x", late=case != "nothing was late")
        assert seats(members[0].wait_generation(1, 5)) == ["m-0", "m-1", "m-2"]


def test_a_spare_takes_over_from_one_that_is_stuck():
    with LocalHub(QUICK.model_copy(update={"min_groups": 3, "spares": 1})) as hub:
        members = three(hub)
        spare = hub.join("s-0", wants="spare")
        spare.announce_ready(3)
        assert members[0].wait_generation(1, 5).spares
        make_stuck(hub, members[1])
        members[0].report_failure(2, [], "x", late=True)
        assert seats(members[0].wait_generation(2, 5)) == ["m-0", "s-0", "m-2"]


def test_late_reports_about_the_past_change_nothing(hub):
    members = three(hub)
    hub.kill(members[2])
    members[0].wait_generation(1, 5)
    members[1].report_failure(1, ["m-0"], "late")
    time.sleep(0.3)
    assert members[0].current().number == 2


def test_drained_member_is_told_and_planned_out(hub):
    members = three(hub)
    told = []
    members[1].on_drain(told.append)
    assert "is being drained" in hub.command(
        lambda proposer, now: proposer.drain("m-1", "host goes down", now)
    )
    generation = members[0].wait_generation(1, 5)
    assert not generation.is_urgent
    with pytest.raises(Evicted, match="come back as a new incarnation") as caught:
        members[1].wait_generation(1, 5)
    assert caught.value.was_asked
    assert told == ["host goes down"]


def test_commands_that_make_no_sense_say_what_would(hub):
    three(hub)
    for command, says in [
        (lambda p, now: p.drain("x", "", now), "there is no member x; valid: m-0, m-1, m-2"),
        (lambda p, now: p.override(7, ["m-0"], now), "generation 7 is not the current one"),
        (lambda p, now: p.override(1, ["x"], now), "x is no member of generation 1: m-0, m-1, m-2"),
        (lambda p, now: p.override(1, ["m-0"], now), "m-0 is here; drain or evict it"),
    ]:
        with pytest.raises(CommandError, match=says):
            hub.command(command)


def test_group_counts_change_while_the_run_goes_on(hub):
    members = three(hub)
    hub.command(lambda proposer, now: proposer.configure({"max_groups": 2}, now))
    generation = members[0].wait_generation(1, 5)
    assert seats(generation) == ["m-0", "m-1"]
    assert [info.name for info in generation.spares] == ["m-2"]


def test_end_of_the_run_reaches_all_who_wait(hub):
    members = three(hub)
    spare = hub.join("s-0", wants="spare")
    members[0].leave("all steps done", finished=True, step=9)
    for member in (members[1], spare):
        with pytest.raises(RunEnded, match="all steps done"):
            member.wait_generation(1, 5)
        assert member.final_step == 9
    members[0].close()
    with pytest.raises(RunEnded):
        hub.join("n-0").wait_generation(0, 5)
    assert members[1].current().number == 1  # whoever goes now is not missed


def test_end_is_known_although_all_have_closed_at_once(hub):
    members = three(hub)
    hub.kill(members[2])
    for member in members[:2]:
        member.wait_generation(1, 5)
    for member in members[:2]:
        member.leave("all steps done", finished=True, step=9)
        member.close()
    with pytest.raises(RunEnded) as caught:
        hub.join("m-2").wait_generation(0, 5)
    assert caught.value.step == 9


def test_who_finished_waits_for_a_coordinator_that_can_tell_others(hub):
    members = three(hub)
    hub.kill_coordinator()
    threading.Timer(0.3, hub.start_coordinator).start()
    members[0].leave("all steps done", finished=True, step=9)
    members[0].close()
    with pytest.raises(RunEnded):
        hub.join("n-0").wait_generation(0, 5)


def test_who_was_told_of_the_end_tells_the_next_coordinator(hub):
    members = three(hub)
    members[0].leave("all steps done", finished=True, step=9)
    members[0].close()
    with pytest.raises(RunEnded):
        members[1].wait_generation(1, 5)
    hub.kill_coordinator()
    hub.start_coordinator()
    with pytest.raises(RunEnded):
        hub.join("n-0").wait_generation(0, 5)


def test_seat_that_was_left_out_just_now_can_still_say_that_the_run_is_finished(hub):
    members = three(hub)
    for member in members:
        member.report_progress(9)
    hub.command(lambda proposer, now: proposer.evict("m-1", "it seemed to hang", now))
    with pytest.raises(Evicted):
        members[1].wait_generation(1, 5)
    members[1].leave("all steps done", finished=True, step=9)
    until(lambda: members[1].final_step == 9)
    with pytest.raises(RunEnded) as caught:  # it need not come back as another
        members[1].wait_generation(1, 5)
    assert caught.value.was_evicted
    with pytest.raises(RunEnded):
        members[0].wait_generation(2, 5)


@pytest.mark.parametrize("is_drained", [True, False])
def test_member_that_leaves_cannot_end_the_run(hub, is_drained):
    members = three(hub)
    if is_drained:
        hub.command(lambda proposer, now: proposer.drain("m-2", "maintenance", now))
        members[2].on_drain(lambda reason: members[2].leave(reason))
    else:
        members[2].leave("maintenance")
    assert seats(members[0].wait_generation(1, 5)) == ["m-0", "m-1"]
    members[2].leave("the run is finished", finished=True, step=9)
    members[2].close()
    with pytest.raises(MembershipTimeout):
        members[0].wait_generation(2, 0.3)
    hub.kill_coordinator()
    hub.start_coordinator()  # also the next one is told nothing else
    with pytest.raises(MembershipTimeout):
        members[0].wait_generation(2, 0.5)
    assert members[0].final_step is None


def test_member_that_is_behind_cannot_end_the_run(hub):
    members = three(hub)
    for member in members[:2]:
        member.report_progress(30)
    hub.command(lambda proposer, now: proposer.evict("m-2", "it hung", now))
    members[0].wait_generation(1, 5)
    until(lambda: max(item.step or 0 for item in hub.command(lambda p, now: p.people())) == 30)
    members[2].leave("all steps done", finished=True, step=9)
    with pytest.raises(MembershipTimeout):
        members[0].wait_generation(2, 0.3)


def until(condition):
    deadline_s = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_closed_membership_says_so(hub):
    member = hub.join("m-0")
    member.close()
    with pytest.raises(MembershipClosed):
        member.wait_generation(0, 5)
    with pytest.raises(MembershipClosed):
        member.rejoin()


def test_timeout_says_who_is_missing(hub):
    one = hub.join("m-0")
    time.sleep(0.4)
    with pytest.raises(
        MembershipTimeout, match=r"run run has not begun: 1 of 3 replica groups are here \(m-0\)"
    ):
        one.wait_generation(0, 0.3)
    hub.kill_coordinator()
    with pytest.raises(MembershipTimeout, match="the coordinator is down"):
        one.wait_generation(0, 0.1)


def test_coordinator_that_comes_back_knows_all_from_its_members(hub):
    members = three(hub)
    hub.kill_coordinator()
    members[0].store("s").set("k", b"said without a coordinator")
    members[0].event("noticed", step=3)
    hub.kill(members[2])
    hub.start_coordinator()
    assert seats(members[0].wait_generation(1, 5)) == ["m-0", "m-1"]
    assert members[1].store("s").get("k", 5.0) == b"said without a coordinator"
    assert any(kind == "noticed" and fields["step"] == 3 for kind, fields in hub.events)
