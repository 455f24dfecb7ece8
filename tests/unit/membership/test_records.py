import pytest
from pydantic import ValidationError

from farstep.membership import messages as wire
from farstep.membership.records import Ballot, Generation, MemberInfo, MembershipConfig, natural_key
from tests.unit.membership.people import generation, info


def test_records_survive_their_json_form_and_keep_their_digest():
    member = info("a").model_copy(update={"labels": {"b": "2", "a": "1"}})
    record = generation("a").model_copy(update={"seats": (member,)})
    again = Generation.model_validate_json(record.model_dump_json())
    assert again == record
    assert again.digest == record.digest
    assert record.digest != generation("a").digest


def test_generation_knows_who_sits_where():
    record = generation("abc", "s")
    assert record.seat_of(info("b").member_id) == 1
    assert record.seat_of(info("s").member_id) is None
    assert info("s").member_id in record
    assert info("x").member_id not in record
    assert record.describe() == "generation 1: a, b, c; spares s"


@pytest.mark.parametrize("seats", ["aa", "aba"])
def test_nobody_has_two_seats(seats):
    with pytest.raises(ValidationError, match="names a member twice"):
        generation(seats)


def test_two_incarnations_of_one_group_are_never_in_one_generation():
    with pytest.raises(ValidationError, match="names a member twice"):
        Generation(run_id="r/00000000", number=1, ballot=Ballot(0, "c"), seats=(info("a", 1), info("a", 2)))


def test_identity_belongs_to_the_name():
    with pytest.raises(ValidationError, match="is not an incarnation of 'b'"):
        MemberInfo(member_id="a/00000001", name="b")
    member = MemberInfo.create("a-0", site="x")
    assert member.reborn().member_id != member.member_id
    assert member.reborn().name == "a-0"


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "x" * 65, "a\n"])
def test_names_are_plain(name):
    with pytest.raises(ValidationError, match="name"):
        MemberInfo(member_id="a/00000001", name=name)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"min_groups": 3, "max_groups": 2}, "max_groups = 2 is below min_groups = 3"),
        ({"groups": 1, "min_groups": 2}, "groups = 1 is below min_groups = 2"),
        ({"silence_s": 0.2}, "silence_s = 0.2 must be at least three heartbeats"),
        ({"surplus": 1}, "Extra inputs"),
    ],
)
def test_configuration_that_makes_no_sense_is_refused(settings, says):
    with pytest.raises(ValidationError, match=says):
        MembershipConfig(**settings)


@pytest.mark.parametrize(
    ("groups", "min_groups", "to_form"), [(None, 1, 1), (2, 1, 2), (3, 1, 2), (4, 1, 3), (5, 4, 4)]
)
def test_more_than_half_of_the_expected_groups_form_a_run(groups, min_groups, to_form):
    assert MembershipConfig(groups=groups, min_groups=min_groups).groups_to_form == to_form


def test_names_sort_as_people_count():
    assert sorted(["a-10", "a-2", "b-1", "a"], key=natural_key) == ["a", "a-2", "a-10", "b-1"]


def test_messages_survive_their_json_form():
    beat = wire.Heartbeat(sequence=3, step=7, figures={"loss": float("nan"), "x": 1.5})
    again = wire.decode_from_member(wire.encode(beat))
    assert again.figures["x"] == 1.5
    assert again.figures["loss"] != again.figures["loss"]
    commit = wire.Commit(value=generation("ab"))
    assert wire.decode_from_coordinator(wire.encode(commit)) == commit
    with pytest.raises(wire.MessageError):
        wire.decode_from_member(wire.encode(commit))
