from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from farstep.train.checkpoint.erasure import Scheme
from farstep.train.checkpoint.placement import Domain, Tolerance, place, replace_lost, tolerance


def domains(text: str) -> list[Domain]:
    """Members as "site+host": "a1 a1 b2"."""
    return [Domain(f"m{i}", word[0], word[1:]) for i, word in enumerate(text.split())]


def test_every_member_of_a_small_group_holds_one() -> None:
    members = domains("a1 a1 a2 b1 b2")
    assert sorted(place(members, 5)) == [0, 1, 2, 3, 4]
    assert tolerance(place(members, 5), members, Scheme(3, 5)) == Tolerance(members=2, hosts=1, sites=0)


def test_sites_are_taken_in_turn() -> None:
    members = domains("a1 a2 a3 a4 b1 c1")
    holders = place(members, 3)
    assert {members[holder].site for holder in holders} == {"a", "b", "c"}
    assert tolerance(holders, members, Scheme(2, 3)).sites == 1


def test_hosts_are_taken_in_turn_within_a_site() -> None:
    members = domains("a1 a1 a1 a2 a3")
    assert {members[holder].host for holder in place(members, 3)} == {"1", "2", "3"}


def test_the_member_that_is_insured_holds_none_if_others_can() -> None:
    members = domains("a1 a2 b1 b2")
    assert 0 not in place(members, 3, avoid=0)
    assert Counter(place(members, 4, avoid=0)) == Counter(range(4))


def test_few_members_hold_several() -> None:
    members = domains("a1 b1")
    holders = place(members, 5)
    assert sorted(Counter(holders).values()) == [2, 3]
    assert tolerance(holders, members, Scheme(3, 5)).members == 0
    assert tolerance(holders, members, Scheme(2, 5)).members == 1


@given(
    sites=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12")), min_size=1, max_size=9),
    shards=st.integers(2, 12),
    data=st.data(),
)
def test_shards_are_spread_evenly_and_held_ones_stay(sites, shards: int, data: st.DataObject) -> None:
    members = [Domain(f"m{i}", site, host) for i, (site, host) in enumerate(sites)]
    holders = place(members, shards)
    per_member = Counter(holders)
    assert (
        max(per_member.values()) - (min(per_member.values()) if len(per_member) == len(members) else 0) <= 1
    )
    lost = data.draw(st.sets(st.integers(0, shards - 1)))
    held = {number: holders[number] for number in range(shards) if number not in lost}
    again = replace_lost(held, members, sorted(lost), shards=shards)
    assert all(again[number] == member for number, member in held.items())
    assert len(again) == shards
    assert max(Counter(again).values()) <= max(per_member.values())


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=6), data=st.data())
def test_tolerance_is_that_of_the_worst_case(counts: list[int], data: st.DataObject) -> None:
    holders = [member for member, count in enumerate(counts) for _ in range(count)]
    if len(holders) < 2:
        return
    scheme = Scheme(data.draw(st.integers(1, len(holders) - 1)), len(holders))
    members = [Domain(str(i), str(i), str(i)) for i in range(len(counts))]
    survived = tolerance(holders, members, scheme)
    worst = sorted(counts, reverse=True)
    assert sum(worst[: survived.members]) <= scheme.tolerated < sum(worst[: survived.members + 1])
    assert survived.members == survived.hosts == survived.sites
